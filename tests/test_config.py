"""Cells keep their hashes: `golden_cells.jsonl` holds points as commit 2f53a38 hashed them, one of every sweep and of
every algorithm, model, partition and section with its options."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedray.algorithms.feddyn import FedDyn
from fedray.config import RunConfig

GOLDEN = [json.loads(line) for line in Path(__file__).with_name("golden_cells.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _no_init_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.config._file_digest", lambda key, path: "filedigest")


def test_cells_hashed_by_commit_2f53a38_are_found() -> None:
    assert len(GOLDEN) == 129
    changed = [(old, point) for old, point in GOLDEN if RunConfig.parse(point).cell("d") != old]
    assert not changed, f"{len(changed)} cells have new hashes; first: {changed[:1]}"


def test_a_corrected_method_gets_new_hashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedDyn, "revision", 1)
    changed = [point["algorithm"] for old, point in GOLDEN if RunConfig.parse(point).cell("d") != old]
    names = {name if isinstance(name, str) else name["name"] for name in changed}
    assert names == {"feddyn", "fedsol"}, "and what is built on it"
    assert all("feddyn" in str(algorithm) for algorithm in changed)


@pytest.mark.parametrize(
    ("algorithm", "revised"),
    [
        ("scaffold", False),
        ({"name": "scaffold", "variates": "samples"}, True),
        ({"name": "fedgamma", "variates": "samples"}, True),
        ({"name": "fedlesam-s", "variates": "samples"}, True),
        ({"name": "fedsol", "proximal": {"name": "scaffold", "variates": "samples"}}, True),
        ({"name": "fedsol", "proximal": "scaffold"}, False),
        ("fedas", True),
        ({"name": "fedrep", "newcomer": "average"}, True),
        ("fedrep", False),
        ({"name": "fedala", "layers": 3}, False),
        ({"name": "fedala", "layers": 4}, True),
        ({"name": "fedgloss", "rho": 0, "warmup": 2}, True),
        ({"name": "fedgloss", "rho": 0, "warmup": 1}, False),
        ({"name": "fedgloss", "rho": 0, "warmup": 2, "start_rho": 0}, False),
        ({"name": "fedgloss", "rho_l": 0, "warmup": 2}, False),
    ],
)
def test_only_cells_whose_numbers_were_wrong_have_new_hashes(algorithm: Any, revised: bool) -> None:
    point = {"data": "digits", "partition": "iid", "model": "lenet", "algorithm": algorithm}
    assert ('"revision": 1' in json.dumps(RunConfig.parse(point).identity("d"))) == revised
