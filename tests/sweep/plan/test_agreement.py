"""An archive's description of a cell: its configuration against its identity."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.sweep.plan.agreement import refuse_disagreement

RUN: dict[str, Any] = {
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.1},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedsam", "rho": 0.1},
    "training": {"rounds": 3},
    "evaluation": {"probes": ["drift"]},
    "runtime": {"threads": 2},
}
Change = Callable[[dict[str, Any]], None]
PLUGIN = "foreign_module:Foreign"


def pair(change: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration as a store holds it, and its identity."""
    run = RunConfig.parse(RUN | (change or {}))
    return run.resolve(), run.make_identity("0" * 64)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"seed": 3, "data": {"name": "digits", "validation": {"fraction": 0.2}}},
        {"clients": {"total": 7, "per_round": 2}, "algorithm": "fedavg"},
        {"training": {"rounds": 2, "channels_last": True}, "model": "simple_cnn"},
        {"evaluation": {"personal": {"epochs": [1, 5]}, "probes": ["step", "drift"]}, "algorithm": "fedrep"},
        {"runtime": {"gpus_per_actor": 0.5}},
        {"algorithm": "fedsol", "training": {"aggregation": "feddisco"}},
    ],
    ids=str,
)
def test_what_fedray_writes_agrees(change: dict[str, Any]) -> None:
    refuse_disagreement(*pair(change))


def set_(key: str, value: Any) -> Change:
    def change(nested: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for part in path:
            nested = nested.setdefault(part, {})
        nested[last] = value

    return change


@pytest.mark.parametrize(
    ("of_config", "of_identity", "message"),
    [
        (set_("algorithm.rho", 0.7), None, "algorithm.rho: the configuration says 0.7, the identity of the cell 0.1"),
        (set_("algorithm", {"name": "fedavg"}), None, "algorithm.name: the configuration says 'fedavg'"),
        (set_("seed", 1), None, "seed: the configuration says 1, the identity of the cell 0"),
        (None, set_("seed", 1), "seed: the configuration says 0, the identity of the cell 1"),
        (set_("training.rounds", 4), None, "training.rounds: the configuration says 4, the identity of the cell 3"),
        (None, set_("training.momentum", None), "training.momentum: the configuration says 'the default'"),
        (set_("data.name", "mnist"), None, "data.name: the configuration says 'mnist'"),
        (set_("partition.alpha", 1.0), None, "partition.alpha: the configuration says 1.0"),
        (set_("model.hidden", [9]), None, "model.hidden: the configuration says [9]"),
        (set_("model.init", "/etc/passwd"), None, "model.init: the configuration says True"),
        (None, set_("model.init", "0" * 64), "model.init: the configuration says False"),
        (set_("evaluation.probes", []), None, "evaluation.probes: the configuration says 'the default'"),
        (set_("runtime.threads", 3), None, "runtime.threads: the configuration says 3"),
        (set_("more", 1), None, "more: a configuration has no such key"),
        (None, set_("more", 1), "more: a configuration has no such key"),
        (None, set_("training", 7), "identity.training: expected a mapping, got 7"),
        (None, set_("revisions", []), "identity.revisions: expected a mapping, got []"),
        (set_("training.rounds", 0), None, "training.rounds: found 0"),
        (set_("training.roundz", 1), None, "training: unknown name 'roundz'"),
        (set_("algorithm.name", "no_method"), None, "algorithm.name: unknown name 'no_method'"),
        (set_("clients.per_round", 1000), None, "clients"),
        (set_("algorithm", PLUGIN), None, f"sources: the identity of the cell has no digest of {PLUGIN}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_stranger_changes_is_refused(
    of_config: Callable[[dict[str, Any]], None] | None,
    of_identity: Callable[[dict[str, Any]], None] | None,
    message: str,
) -> None:
    config, identity = pair()
    for change, nested in ((of_config, config), (of_identity, identity)):
        if change is not None:
            change(nested)
    with pytest.raises(UserError) as caught:
        refuse_disagreement(config, identity)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("section", ["data", "partition", "model", "algorithm", "evaluation"])
def test_beside_a_plug_in_the_other_sections_are_compared(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the plug-in is not imported, although a file of its name is in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign_module.py").write_text("open('owned', 'w').close()\n")
    config, identity = pair()
    config[section] = {"probes": [PLUGIN]} if section == "evaluation" else {"name": PLUGIN, "strength": 1}
    identity["sources"] = {PLUGIN: "0" * 64}
    refuse_disagreement(config, identity)
    config["training"]["rounds"] = 4
    with pytest.raises(UserError, match=r"^training\.rounds: the configuration says 4, the identity of the cell 3"):
        refuse_disagreement(config, identity)
    assert not (tmp_path / "owned").exists()


def test_a_cell_of_an_option_that_has_moved_is_imported_under_its_old_hash() -> None:
    """0.2 had `lambda_norm` in `fedsol`, and `divisor` in the SCAFFOLD within it; both are compared under new names."""
    proximal = {"name": "scaffold@forms", "divisor": "effective"}
    config, identity = pair({"algorithm": {"name": "fedsol@forms", "lambda_norm": "layer", "proximal": proximal}})
    for stored in (config, identity):
        stored["algorithm"]["name"], stored["algorithm"]["proximal"]["name"] = "fedsol", "scaffold"
    refuse_disagreement(config, identity)
    with pytest.raises(UserError, match=r"algorithm\.lambda_norm: the configuration says 'layer'"):
        refuse_disagreement(config, identity | {"algorithm": identity["algorithm"] | {"lambda_norm": "tensor"}})


def test_other_numerics_or_revisions_had_other_defaults() -> None:
    config, identity = pair()
    config["algorithm"]["rho"] = 0.5
    refuse_disagreement(config, identity | {"revisions": {"fedsam": 1}})
    refuse_disagreement(config, identity | {"numerics": 0})
    with pytest.raises(UserError, match=r"^algorithm\.rho"):
        refuse_disagreement(config, identity | {"revisions": {"fedavg": 1}})
