"""Every default, as `defaults.json` holds it: a cell does not say what is default, so its hash cannot tell a new one.
`python -m tests.test_defaults` writes the file again."""

import json
from pathlib import Path
from typing import Any

from fedray import config
from fedray.algorithms import ALGORITHMS
from fedray.algorithms.feddisco import FedDisco
from fedray.algorithms.fedexp import FedExP
from fedray.algorithms.local_optimizers import AdamWOptions, MuonOptions
from fedray.components.base import Checked
from fedray.components.identity import list_default_entries, sum_revisions
from fedray.config import Clients, Evaluation, Personal, Runtime, Training
from fedray.config.training import LrStep
from fedray.datasets.base import Test, Validation
from fedray.models import MODELS
from fedray.models.lora import LoRA
from fedray.papers.variants import VARIANTS
from fedray.partitions import PARTITIONS
from fedray.probes import PROBES

FILE = Path(__file__).with_name("defaults.json")
SECTIONS: dict[str, type[Checked]] = {
    "clients": Clients, "training": Training, "training.feddisco": FedDisco, "training.fedexp": FedExP,
    "training.adamw": AdamWOptions, "training.muon": MuonOptions, "training.lr_step": LrStep, "evaluation": Evaluation,
    "evaluation.personal": Personal, "runtime": Runtime, "model.lora": LoRA, "data.validation": Validation,
    "data.test": Test, **{f"algorithm.{name}": kind for name, kind in {**ALGORITHMS, **VARIANTS}.items()},
    **{f"model.{name}": kind for name, kind in MODELS.items()},
    **{f"partition.{name}": kind for name, kind in PARTITIONS.items()},
    **{f"probe.{name}": kind for name, kind in PROBES.items()},
}  # fmt: skip


def present() -> dict[str, Any]:
    """Return the defaults of the code, as the file holds them."""
    found = {name: {"revision": sum_revisions(kind), **list_default_entries(kind)} for name, kind in SECTIONS.items()}
    return {"numerics": config.NUMERICS, **found}


def refuse_silent_changes(held: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise AssertionError for a default that has changed while the hashes of cells have not."""
    if found["numerics"] > held["numerics"]:
        return
    for section in SECTIONS.keys() & held.keys():
        old, new = held[section], found[section]
        if new["revision"] > old["revision"]:
            continue
        for key in old.keys() & new.keys():
            assert new[key] == old[key], (
                f"the default of {section}.{key} was {old[key]!r} and is {new[key]!r}: finished cells that do not "
                f"write it would be taken for cells with the new value. Increment `revision` of the class, or NUMERICS "
                "in fedray/config/run.py; then run `python -m tests.test_defaults`"
            )


def test_a_changed_default_changes_hashes() -> None:
    held, found = json.loads(FILE.read_text()), json.loads(json.dumps(present()))
    refuse_silent_changes(held, found)
    assert found == held, f"{FILE} is not of this code: run `python -m tests.test_defaults`"


if __name__ == "__main__":
    if FILE.exists():
        refuse_silent_changes(json.loads(FILE.read_text()), json.loads(json.dumps(present())))
    FILE.write_text(json.dumps(present(), indent=1) + "\n")
