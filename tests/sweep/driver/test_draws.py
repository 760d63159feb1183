"""A search with Optuna through a real sweep: its draws are in the store, and a call with another version keeps them."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from fedray.tracking.archive.merge import import_sweep
from fedray.tracking.archive.pack import export_sweep

from fedray.sweep.driver.run import execute, plan_and_print
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan import plan as planning
from fedray.sweep.plan.studies import make_studies
from fedray.tracking.store import read_draws
from tests.sweep.plan.test_studies import Other
from tests.sweep.running import runs

SEARCH: dict[str, Any] = {
    "name": "learns",
    "base": {
        "data": "digits",
        "partition": "iid",
        "clients": {"total": 4, "per_round": 2},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": "fedavg",
        "training": {"rounds": 2, "local_epochs": 1, "batch_size": 50},
    },
    "search": {"training.lr": {"loguniform": [0.01, 1]}},
    "select": "last10_test_accuracy",
    "searcher": {"name": "optuna", "generation": 1},
}


def test_a_search_begun_by_another_optuna_goes_on(
    local_ray: None,
    tmp_path: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two cells with this version, the second by TPE; a call for three under version 9 runs one more, drawn by that.

    In between, the sweep goes into an archive and comes into another store with its draws.
    """
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.chdir(tmp_path)
    here = optuna.__version__
    first = planning.make_plan(Sweep.model_validate(SEARCH | {"samples": 2}))
    assert execute(first, 1).counts == {"finished": 2}
    assert "begun with Optuna" not in capsys.readouterr().out
    stored = read_draws("learns")
    assert stored["optuna"] == here
    ((key, values),) = stored["studies"].items()
    assert {str(one["training.lr"]) for one in values} == {run.data.params["training.lr"] for run in runs(tmp_path)}
    assert export_sweep("learns", tmp_path / "learns.zip") == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.chdir(tmp_path / "other")
    import_sweep(tmp_path / "learns.zip")
    assert read_draws("learns") == stored

    monkeypatch.setattr(optuna.samplers, "TPESampler", Other)
    for module in ("sweep.driver.run", "sweep.plan.plan"):
        monkeypatch.setattr(f"fedray.{module}.version", lambda package: "9.0")
    plan = planning.make_plan(Sweep.model_validate(SEARCH | {"samples": 3}))
    assert (len(plan.cells), len(plan.to_run)) == (3, 1), "two are finished, and one is drawn from what they gave"
    assert execute(plan).counts == {"finished": 3}
    assert f"learns: begun with Optuna {here}, whose draws stay; new ones of 9.0 may differ" in capsys.readouterr().out
    found = read_draws("learns")
    assert found["optuna"] == here
    assert found["studies"][key][:2] == values
    assert len(found["studies"][key]) == 3
    assert len(runs(tmp_path / "other")) == 3
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path / "other")
    assert planning.make_plan(Sweep.model_validate(SEARCH | {"samples": 3})).to_run == [], (
        "and this one keeps all three"
    )


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"samples": 12}, 0),
        ({"samples": 3}, 2),
        ({"select": "best_test_accuracy"}, 5),
        ({"search": {"training.lr": {"loguniform": [0.01, 2]}}}, 5),
        ({"grid": {"algorithm": ["fedavg", "fedprox"]}}, 0),
        ({"grid": {"algorithm": ["fedprox"]}}, 5),
    ],
    ids=str,
)
def test_a_search_says_how_many_stored_draws_it_leaves_out(
    changes: dict[str, Any],
    left: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Five draws are stored; a draw that is asked for now is none of an earlier call."""
    monkeypatch.chdir(tmp_path)
    drawn = [{"training.lr": 0.01 * (1 + i)} for i in range(5)]
    (study,) = make_studies(Sweep.model_validate(SEARCH | {"samples": 5}), lambda point: pytest.fail("not made"))
    monkeypatch.setattr(
        planning, "read_draws", lambda sweep: {"optuna": optuna.__version__, "studies": {study.key: drawn}}
    )
    plan_and_print(Sweep.model_validate(SEARCH | {"samples": 5} | changes), "search.yaml")
    line = f"learns: draws of earlier calls that this search leaves out: {left}; the store keeps their cells"
    assert (line in capsys.readouterr().out) == bool(left)
