"""Tune's part of a sweep: the processes that run trials, and a sweep that is interrupted at once."""

import os
from pathlib import Path

import pytest
import ray
from ray.tune.execution.class_cache import _ActorClassCache
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

import fedray
from fedray.sweep.driver.run import drive
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan import plan as planning
from fedray.sweep.trials import tune
from tests.sweep.running import SWEEP


class Told:
    """A replacement for a Trainable."""

    def pid(self) -> int:
        return os.getpid()


def test_a_trial_takes_a_process_that_waits_for_work(local_ray: None) -> None:
    """A trial with environment variables of its own, which Tune would set, would get a new process."""
    ray.get(ray.remote(lambda: None).remote())  # its process then waits
    asked = _uptime()
    trial = _ActorClassCache().get(Told).remote()
    ticks = int(Path(f"/proc/{ray.get(trial.pid.remote())}/stat").read_text().rpartition(")")[2].split()[19])
    assert ticks / os.sysconf("SC_CLK_TCK") < asked, "its process began when it was asked for"
    ray.kill(trial)


def test_tune_sees_the_axes_of_what_it_schedules(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune's schedulers, reporters and result grid, and `Results.trials`, have each axis under its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    scheduled, grids, fit = list[Trial](), list[ray.tune.ResultGrid](), ray.tune.Tuner.fit
    monkeypatch.setattr(FIFOScheduler, "on_trial_add", lambda self, controller, trial: scheduled.append(trial))
    monkeypatch.setattr(ray.tune.Tuner, "fit", lambda tuner: grids.append(fit(tuner)) or grids[-1])
    axes = {"algorithm": ["fedavg", {"name": "fedsam", "rho": 0.2}], "partition.alpha": [0.1, 0.5]}
    assert drive(planning.make_plan(Sweep.model_validate(SWEEP | {"grid": axes}))) == 0
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
    assert drive(planning.make_plan(Sweep.model_validate(SWEEP | {"grid": changed}))) == 0
    later = fedray.results("small").trials
    assert sorted(later["config/partition.alpha"]) == [0.5, 0.5, 1.0, 1.0]
    both = trials.merge(later, on="trial_id")
    assert len(both) == 2
    assert (both["timestamp_x"] == both["timestamp_y"]).all(), "it was trained again"


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def test_told_to_stop_before_the_first_trial(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tune returns without having started a trial: the sweep is interrupted, even if not all cells were requested."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setattr(tune, "_run_tune", lambda *_: None)
    plan = planning.make_plan(Sweep.model_validate(SWEEP), only=["1"])
    assert drive(plan) == 130
    told = capsys.readouterr()
    assert "small: 4 missing" in told.out
    assert told.err == "interrupted: run the same command again to resume\n"
