"""Finished cells run again: the same, different, or not comparable."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedray
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.sweep.verify import HASHES, _verdict, verify
from fedray.tracking.provenance import PREFIX, environment_tags
from fedray.tracking.store import open_store, runs_of
from fedray.tracking.tracker import Tracker

RUN: dict[str, Any] = {
    "data": "digits",
    "partition": "iid",
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "scaffold",
    "clients": {"total": 5, "per_round": 2},
    "training": {"rounds": 2, "local_epochs": 1},
    "runtime": {"backend": "inline"},
}


@pytest.fixture
def cells(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A store with a sweep of three finished cells; their hashes."""
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in range(3)]
    digest = configs[0].data.load().digest
    for config in configs:
        fedray.simulate(config, track=f"s{config.seed}")
    made = [{"hash": c.cell(digest), "label": f"s{c.seed}", "config": c.resolved()} for c in configs]
    Tracker().open_sweep("three", "", made)
    return [str(cell["hash"]) for cell in made]


def tag(cell: str, key: str, value: str) -> None:
    client, experiment = open_store()
    (run,) = runs_of(client, experiment, [cell])
    client.set_tag(run.info.run_id, key, value)


def test_a_sample_is_spread_over_the_sweep_and_each_cell_gets_its_verdict(cells: list[str]) -> None:
    """Of three cells two: the first and the one at 1 x 3 // 2 = 1."""
    assert [str(verdict) for verdict in verify("three", 2)] == ["same           s0", "same           s1"]
    tag(cells[0], f"{PREFIX}cpu", "Z80")
    tag(cells[1], "fedray.state_sha256", "0" * 64)
    first, second, third = verify("three", 10)
    assert (first.word, second.word, third.word) == ("not comparable", "different", "same")
    assert first.reason.startswith("cpu was Z80, here it is ")
    assert second.reason == "state_sha256"


def test_a_cell_whose_settings_mean_something_else_now_is_not_comparable(
    cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedray.config.NUMERICS", 99)
    (verdict,) = verify("three", 1)
    assert verdict.word == "not comparable"


def test_a_cell_that_was_listed_before_its_gpus_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the sweep that finds everything finished lists it with `auto`."""
    run = RunConfig.parse(RUN | {"runtime": {"gpus_per_actor": "auto"}})
    made = []
    monkeypatch.setattr(
        "fedray.sweep.verify.simulate",
        lambda config: made.append(config) or SimpleNamespace(summary=lambda: dict.fromkeys(HASHES, "0")),
    )
    cell = {"label": "s0", "hash": run.cell(run.data.load().digest), "config": run.resolved()}
    assert str(_verdict(cell, environment_tags() | {f"fedray.{key}": "0" for key in HASHES})) == "same           s0"
    assert (made[0].runtime.backend, made[0].runtime.gpus_per_actor) == ("inline", 1.0)


def test_a_sweep_without_finished_cells_is_refused(cells: list[str]) -> None:
    for cell in cells:
        tag(cell, "fedray.status", "failed")
    with pytest.raises(UserError, match="three: has no finished cell to verify"):
        list(verify("three", 1))
