"""Tune's part of a sweep: the processes that run trials, a sweep that is interrupted at once, and schedulers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

import fedray
from fedray.config import RunConfig
from fedray.sweep import plan as planning
from fedray.sweep import tune
from fedray.sweep.plan import Options
from fedray.sweep.run import drive
from fedray.sweep.sweep import Sweep
from fedray.sweep.tune import get_group, make_scheduler
from tests import small
from tests.sweep.running import SWEEP

BASE = small.sections(
    clients={"total": 20},
    model="mlp",
    data={"name": "digits", "validation": {"fraction": 0.2}},
    training={"rounds": 8, "local_epochs": 1},
    runtime={},
)


def test_tune_sees_the_axes_of_what_it_schedules(
    local_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune's schedulers, reporters and result grid, and `Results.trials`, have each axis under its name."""
    scheduled, grids, fit = list[Trial](), list[ray.tune.ResultGrid](), ray.tune.Tuner.fit
    monkeypatch.setattr(FIFOScheduler, "on_trial_add", lambda self, controller, trial: scheduled.append(trial))
    monkeypatch.setattr(ray.tune.Tuner, "fit", lambda tuner: grids.append(fit(tuner)) or grids[-1])
    axes = {"algorithm": ["fedavg", {"name": "fedsam", "rho": 0.2}], "partition.alpha": [0.1, 0.5]}
    short = SWEEP | {"base": SWEEP["base"] | {"training": {"rounds": 3}}}
    assert drive(planning.make_plan(Sweep.model_validate(short | {"grid": axes}), Options(max_concurrent=1))) == 0
    found = fedray.results("small")
    expected = [("fedavg", None, 0.1), ("fedavg", None, 0.5), ("fedsam", 0.2, 0.1), ("fedsam", 0.2, 0.5)]
    names = ("algorithm", "algorithm.rho", "partition.alpha")
    for configs in (
        [trial.config for trial in scheduled],
        [trial.evaluated_params for trial in scheduled],  # what a reporter prints
        [result.config or {} for result in grids[0]],
    ):
        assert sorted((tuple(config.get(name) for name in names) for config in configs), key=str) == expected
    trials, cells = found.trials, found.cells.set_index("cell")
    assert trials["config/cell"].tolist() == list(cells.index)
    shown = trials[["config/algorithm", "config/algorithm.rho", "config/partition.alpha"]].astype(object)
    assert sorted(shown.where(shown.notna(), None).itertuples(index=False, name=None), key=str) == expected
    for metric in ("test_accuracy", "test_loss"):
        assert trials[metric].tolist() == cells[f"metrics.{metric}"].tolist()
    assert trials["round"].tolist() == found.curves.groupby("cell", sort=False)["round"].max().tolist()
    # A changed file shows the trials of its own cells; one that was trained before keeps its trial.
    changed = axes | {"partition.alpha": [0.5, 1.0]}
    assert drive(planning.make_plan(Sweep.model_validate(short | {"grid": changed}), Options(max_concurrent=1))) == 0
    later = fedray.results("small").trials
    assert sorted(later["config/partition.alpha"]) == [0.5, 0.5, 1.0, 1.0]
    both = trials.merge(later, on="trial_id")
    assert len(both) == 2
    assert (both["timestamp_x"] == both["timestamp_y"]).all(), "it was trained again"


def test_a_sweep_that_stops_sooner_than_an_earlier_call_has_a_run_of_its_own(local_ray: None, project: Path) -> None:
    """A callback ends the cell after round 9, the sweep's rule already after its first: rows and summary are of one."""
    config = SWEEP["base"] | {"algorithm": "scaffold"}
    rounds = list[float]()

    def end(row: dict[str, float]) -> object:
        rounds.append(row["round"])
        return fedray.STOP if row["round"] == 9 else None

    fedray.simulate(config | {"runtime": {"backend": "inline"}}, track="early", evaluated=end)
    assert rounds[-1] == 9
    sweep: dict[str, Any] = {"name": "sooner", "base": config, "stop": {"test_accuracy": 1}}
    assert drive(planning.make_plan(Sweep.model_validate(sweep))) == 0
    found = fedray.results("sooner")
    (cell,) = found.cells.to_dict("records")
    assert found.curves["round"].max() == 1
    (accuracy,) = found.curves[found.curves["metric"] == "test_accuracy"]["value"]
    assert cell["metrics.final_test_accuracy"] == accuracy


def test_told_to_stop_before_the_first_trial(
    local_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tune returns without having started a trial: the sweep is interrupted, even if not all cells were requested."""
    monkeypatch.setattr(tune, "_run_tune", lambda *_: None)
    plan = planning.make_plan(Sweep.model_validate(SWEEP), Options(only=["1"]))
    assert drive(plan) == 130
    assert "small: 4 missing" in capsys.readouterr().out


def run(**other: Any) -> RunConfig:
    return RunConfig.parse(BASE | other)


@pytest.mark.parametrize(("name", "first"), [("asha", 1), ("median", 3)])
def test_a_hard_setting_loses_nothing_to_an_easy_one(name: str, first: int) -> None:
    """Accuracies 50 to 54 of one setting, then 10 to 14 of another: in each the first `first` meet too few others.

    asha, factor 2: the better half of those at round 2 continues, so with falling values all but the first end. median:
    three others have to have been there. Among all ten the second setting would have lost all.
    """
    file: dict[str, Any] = {"name": "s", "base": BASE, "search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 5}
    asked = {"name": name, "grace": 2} | ({"factor": 2} if name == "asha" else {})
    runs = {
        f"{setting}{draw}": run(partition=setting, training=BASE["training"] | {"lr": 0.1 + draw / 10})
        for setting in ("iid", "natural")
        for draw in range(5)
    }
    asked_for = make_scheduler(Sweep.parse(file | {"scheduler": asked}), 8, runs.__getitem__)
    ended = []
    for accuracy, cell in zip([54, 53, 52, 51, 50, 14, 13, 12, 11, 10], runs, strict=True):
        trial = Mock(trial_id=cell, config={"cell": SimpleNamespace(hash=cell)})
        asked_for.on_trial_add(None, trial)  # type: ignore[arg-type]
        for round in (1, 2):
            result = {"round": round, "validation_accuracy": float(accuracy)}
            if asked_for.on_trial_result(None, trial, result) == "STOP":  # type: ignore[arg-type]
                ended.append(cell)
    assert ended == [f"{setting}{draw}" for setting in ("iid", "natural") for draw in range(first, 5)]


def test_draws_of_a_search_are_rivals_if_all_else_is_alike() -> None:
    searched = {"training.lr", "algorithm.mu"}
    prox = {"algorithm": {"name": "fedprox", "mu": 0.1}}
    one = get_group(run(**prox), searched)
    other = run(algorithm={"name": "fedprox", "mu": 1}, training=BASE["training"] | {"lr": 1})
    assert get_group(other, searched) == one
    for other in (
        {"algorithm": "fedavg"},
        prox | {"partition": {"name": "dirichlet", "alpha": 1}},
        prox | {"seed": 1},
        prox | {"training": BASE["training"] | {"local_epochs": 2}},
    ):
        assert get_group(run(**other), searched) != one


def test_a_grid_searches_the_methods_options_and_training() -> None:
    one = get_group(run(algorithm={"name": "fedprox", "mu": 0.1}), set())
    other = run(algorithm={"name": "fedprox", "mu": 1}, training={"rounds": 8, "local_epochs": 5})
    assert get_group(other, set()) == one
    assert get_group(run(algorithm="fedavg"), set()) != one
    assert get_group(run(algorithm={"name": "fedprox", "mu": 0.1}, seed=1), set()) != one
    assert get_group(run(algorithm={"name": "fedprox", "mu": 0.1}, clients={"total": 30}), set()) != one
