"""Tune's part of a sweep: the processes that run trials, a sweep that is interrupted at once, and schedulers. With one
actor the trial trains, killed or suspended as it may be; Tune receives little about each cell."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

import fedray
from fedray.analysis.data.collect import collect
from fedray.cluster.object_states import ObjectState
from fedray.cluster.ray_backend import TrialBackend
from fedray.cluster.ray_private import make_median_rule
from fedray.cluster.timeouts import FIRST, FLOOR, SILENT, CallTimeouts, Heartbeat
from fedray.common.errors import UserError
from fedray.config import RunConfig, Runtime
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import make_result
from fedray.engine.server.simulation import Simulation
from fedray.sweep import plan as planning
from fedray.sweep import tune
from fedray.sweep.plan import Options
from fedray.sweep.run import drive, execute
from fedray.sweep.sweep import Sweep
from fedray.sweep.trainable import CellTrainable
from fedray.sweep.tune import Watchdog, get_group, make_scheduler
from fedray.tracking.store import find_sweeps, open_store
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import write
from tests.cluster.test_ray_backend import keeping
from tests.sweep.running import SWEEP, runs, undisturbed

HELD_OUT, TRAINING = {"name": "digits", "validation": {"fraction": 0.2}}, {"rounds": 8, "local_epochs": 1}
BASE = small.sections(clients={"total": 20}, model="mlp", data=HELD_OUT, training=TRAINING, runtime={})


@pytest.mark.usefixtures("local_ray", "project")
def test_tune_sees_the_axes_of_what_it_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
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
        logged = cells[f"metrics.{metric}"].tolist()
        assert trials[metric].tolist() == pytest.approx(logged, rel=1e-15), "pandas 2 reads a last bit otherwise"
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
    (cell,) = collect("sooner").cells.to_dict("records")
    assert found.curves["round"].max() == 1
    (accuracy,) = found.curves[found.curves["metric"] == "test_accuracy"]["value"]
    assert cell["metrics.final_test_accuracy"] == accuracy


@pytest.mark.usefixtures("local_ray", "project")
def test_told_to_stop_before_any_trial(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Tune returns without having started a trial: the sweep is interrupted, even if not all cells were requested."""
    monkeypatch.setattr(tune, "_run_tune", lambda *_: None)
    assert drive(planning.make_plan(Sweep.model_validate(SWEEP), Options(only=["1"]))) == 130
    assert "small: 4 missing" in capsys.readouterr().out
    forced = planning.make_plan(Sweep.model_validate(SWEEP), Options(force=True, only=["1"]))
    cells = [cell.to_json() for cell in forced.sheet.cells.values()]
    write(Tracker(), cells, [50], name="small")
    assert drive(forced) == 130, "the cell has a record, of an earlier call"
    # Meanwhile `fedray run --cell` has run two cells, whose sweep the driver closes.
    plan = planning.make_plan(Sweep.model_validate(SWEEP), Options(only=["2"]))
    write(Tracker(), cells, [None, 50, 50], name="small")
    assert drive(plan) == 0
    sweep = find_sweeps(*open_store())["small"]
    assert (sweep.data.tags["fedray.cells"], sweep.info.status) == ("3 finished, 1 missing", "FAILED")


def config(**other: Any) -> RunConfig:
    return RunConfig.parse(BASE | other)


@pytest.mark.parametrize(("name", "first"), [("asha", 1), ("median", 3)])
def test_a_hard_setting_loses_nothing_to_an_easy_one(name: str, first: int) -> None:
    """Accuracies 50 to 54 of one setting, then 10 to 14 of another: in each the first `first` meet too few others.
    asha, factor 2: the better half of those at round 2 continues, so with falling values all but the first end. median:
    three others have to have been there. Among all ten the second setting would have lost all."""
    file: dict[str, Any] = {"name": "s", "base": BASE, "search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 5}
    asked = {"name": name, "grace": 2} | ({"factor": 2} if name == "asha" else {})
    runs = {
        f"{setting}{draw}": config(partition=setting, training=BASE["training"] | {"lr": 0.1 + draw / 10})
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


def test_rivals_of_a_search_and_of_a_grid_are_alike_in_all_else() -> None:
    searched = {"training.lr", "algorithm.mu"}
    prox: dict[str, Any] = {"algorithm": {"name": "fedprox", "mu": 0.1}}
    one = get_group(config(**prox), searched)
    other = config(algorithm={"name": "fedprox", "mu": 1}, training=BASE["training"] | {"lr": 1})
    assert get_group(other, searched) == one
    training = {"training": TRAINING | {"local_epochs": 2}}
    for apart in ({"partition": {"name": "dirichlet", "alpha": 1}}, {"seed": 1}, training, {"algorithm": "fedavg"}):
        assert get_group(config(**prox | apart), searched) != one
    one = get_group(config(**prox), set())
    other = config(algorithm={"name": "fedprox", "mu": 1}, training={"rounds": 8, "local_epochs": 5})
    assert get_group(other, set()) == one
    for apart in ({"algorithm": "fedavg"}, {"seed": 1}, {"clients": {"total": 30}}):
        assert get_group(config(**prox | apart), set()) != one


@pytest.mark.faults
def test_a_killed_and_a_stopped_trial_change_nothing(
    local_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real SIGKILL in round 1 and a real SIGSTOP in round 6: both cells continue from their checkpoints."""
    monkeypatch.setattr(tune, "SILENT", 8.0)
    dies, hangs = project / "dies", project / "hangs"
    training = SWEEP["base"]["training"] | {"lr_decay": 0.9}

    def sweep(*algorithms: object) -> dict[str, Any]:
        return {"name": "two", "base": SWEEP["base"] | {"training": training}, "grid": {"algorithm": list(algorithms)}}

    markers = {"dying_scaffold": dies, "HangsLate": hangs}
    disturbed = sweep(*({"name": f"tests.plugins:{name}", "marker": str(path)} for name, path in markers.items()))
    dies.touch()
    hangs.touch()
    assert execute(planning.make_plan(Sweep.model_validate(disturbed))).plan.sheet.counts == {"finished": 2}
    assert not dies.exists(), "nothing was killed"
    assert not hangs.exists(), "nothing was stopped"
    stopped = int((project / "hangs.pid").read_text())
    assert not Path(f"/proc/{stopped}").exists(), "the stopped process is still there"
    out = capsys.readouterr().out
    assert "hangs: silent for" in out
    assert out.count("died; starting it again from its checkpoint") == 2
    found = {run.data.tags["fedray.state_sha256"] for run in runs(project)}
    assert found == set(undisturbed(sweep("scaffold", "fedavg")).values())


def test_of_two_refusals_of_a_store_the_first_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that began with an empty database in mid-sweep refuses the end of the sweep's run as well."""
    plan = planning.make_plan(Sweep.model_validate(SWEEP))
    monkeypatch.setattr(planning.Plan, "to_run", [])
    monkeypatch.setattr("fedray.sweep.run._run_until_done", Mock(side_effect=UserError("the experiment is gone")))
    monkeypatch.setattr("fedray.sweep.session.Session.close", Mock(side_effect=UserError("its run is not found")))
    with pytest.raises(UserError, match="the experiment is gone"):
        execute(plan)


def test_a_kill_between_cells_costs_neither(local_ray: None, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real SIGKILL while the process takes over its second cell: Tune tells of one death twice."""
    marker = project / "marker"
    marker.touch()
    method = {"name": "tests.plugins:DiesAtNextCell", "marker": str(marker)}
    short = {"algorithm": method, "training": {"rounds": 3}, "runtime": {"actors": 1, "checkpoint_every": 1}}
    sweep = {"name": "two", "base": SWEEP["base"] | short, "grid": {"seed": [0, 1]}}
    plan = planning.make_plan(Sweep.model_validate(sweep), Options(max_concurrent=1))
    assert execute(plan).plan.sheet.counts == {"finished": 2}
    assert not marker.exists(), "nothing was killed"
    assert capsys.readouterr().out.count("died; starting it again from its checkpoint") == 1


def test_states_stay_in_the_object_store_and_the_numbers_are_the_same(local_ray: None) -> None:
    built, backend = keeping("scaffold"), TrialBackend()
    backend.stays_from = 1
    simulation = Simulation(built, backend)
    for _ in range(5):
        simulation.step()
    kept = simulation.state.clients
    assert kept
    assert all(isinstance(state, ObjectState) for state in kept.values())
    assert make_result(simulation).summary()["state_sha256"] == run(built, InlineBackend()).summary()["state_sha256"]
    assert all(isinstance(state, ObjectState) and state.sha256 for state in kept.values())


def test_what_a_trial_asks_for() -> None:
    """One actor is the trial; several are its own processes, and it asks for nothing itself."""
    cell = SimpleNamespace(run=SimpleNamespace(runtime=Runtime(cpus_per_actor=2, gpus_per_actor=0.5)))
    one, three = (CellTrainable.default_resource_request({"cell": cell, "actors": n}) for n in (1, 3))
    assert (one.head_bundle_is_empty, one.bundles) == (False, [{"CPU": 2, "GPU": 0.5}])
    assert (three.head_bundle_is_empty, three.bundles) == (True, [{"CPU": 2, "GPU": 0.5}] * 3)


@pytest.mark.parametrize("again", [0, 2], ids=["undisturbed", "one begins again"])
def test_the_median_rule_counts_each_round_once(again: int) -> None:
    """Values t, t and t of three cells in round t have the running mean (t + 1)/2; a fourth with 1.9 in each round is
    below it in round 3. Cells that died after round 2 report their rows again: the mean of all would be 9/5."""
    rule, controller = make_median_rule("value", 1), Mock()
    *others, last = (Mock(trial_id=str(k), status=Trial.RUNNING) for k in range(4))
    for one in others:
        rule.on_trial_add(controller, one)
        for t in [1, 2, *range(1, again + 1), *range(3, 9)]:
            assert rule.on_trial_result(controller, one, {"round": t, "value": float(t)}) == rule.CONTINUE
    rule.on_trial_add(controller, last)
    ends = [rule.on_trial_result(controller, last, {"round": t, "value": 1.9}) for t in (1, 2, 3)]
    assert ends == [rule.CONTINUE, rule.CONTINUE, rule.STOP]


def test_a_scheduler_sees_each_round_of_a_resumed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of its checkpoint, one after another: the accuracy of round 4 would else be compared with the others'
    of round 1. A cell whose driver died before it had read the end reports all of them again."""
    monkeypatch.setattr("ray.get", lambda data: data)
    monkeypatch.setattr("fedray.sweep.trainable.write_heartbeat", Mock())
    base = BASE | {"training": TRAINING | {"rounds": 6}, "runtime": {"checkpoint_every": 1}, "evaluation": {"every": 1}}
    problems = planning.Problems()
    sheet, _ = planning.make_sheet(Sweep.model_validate({"name": "resumed", "base": base}), problems)
    (cell,) = sheet.cells.values()
    for steps, made in ((3, [1, 2, 3]), (9, [1, 2, 3, 4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])):
        trial = CellTrainable.__new__(CellTrainable)
        trial._trial_info = None
        trial.setup({"cell": cell, "actors": 1}, data=problems.data, cells=tmp_path, report_each=True)
        reports = list[dict[str, Any]]()
        while len(reports) < steps and not (reports and reports[-1]["done"]):
            reports.append(trial.step())
        trial.cleanup()
        assert [[row["round"] for row in report["rows"]] for report in reports] == [[t] for t in made]
        assert [report["round"] for report in reports] == made
    assert reports[-1]["record"].ending.status == "finished"


def test_a_trial_speaks_only_before_a_call_that_may_outlast_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """SILENT is 240 s. A call of 120 s fits in it; the first of its kind, 3600 s, does not: the driver waits 3720 s."""
    now, told = [0.0], list[float]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    heartbeat, timeouts = Heartbeat(told.append), CallTimeouts()
    heartbeat.note_report()
    heartbeat.announce(timeouts.get_limit("train", 1, 0))
    assert told == [FIRST + FLOOR]
    timeouts.note("train", 1, 0.1)
    heartbeat.note_report()
    for now[0] in (1.0, SILENT - FLOOR):
        heartbeat.announce(timeouts.get_limit("train", 1, 0))
    assert told == [FIRST + FLOOR]
    now[0] = SILENT - FLOOR + 1
    heartbeat.announce(timeouts.get_limit("train", 1, 0))
    assert told == [FIRST + FLOOR, 2 * FLOOR]


class Watched:
    """A watch over one trial, with a clock and what the trial has told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.told, self.killed = 0.0, None, 0
        state, metadata = SimpleNamespace(ray_actor="actor"), SimpleNamespace(num_failures=2)
        self.trial: Any = SimpleNamespace(trial_id="t", temporary_state=state, run_metadata=metadata)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(tune.ray_private, "read_heartbeat", lambda trial: self.told)
        monkeypatch.setattr(tune.ray_private, "delete_heartbeat", lambda trial: None)
        monkeypatch.setattr(ray, "kill", self._kill)
        self.watch = Watchdog(lambda text: None)

    def _kill(self, actor: object) -> None:
        self.killed += 1

    def passes(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.now += step
            self.watch.on_step_end(0, [self.trial])

    def reports(self, made: int) -> None:
        self.watch.on_trial_result(0, [], self.trial, {"made": made})


def test_a_silent_trial_is_killed_each_time_after_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for kill in range(3):
        watched.watch.on_trial_start(0, [], watched.trial)
        watched.reports(1)
        watched.passes(SILENT * 2**kill)
        assert watched.killed == kill
        watched.passes(2)
        assert watched.killed == kill + 1
        watched.watch.on_trial_recover(0, [], watched.trial)
        watched.passes(10 * SILENT)
        assert watched.killed == kill + 1, "it has no process"


def test_a_slow_trial_says_so_and_a_new_round_resets_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.watch.on_trial_start(0, [], watched.trial)
    watched.reports(1)
    watched.told = "17.0 5000.0"  # type: ignore[assignment]
    watched.passes(SILENT + 4000)
    assert not watched.killed
    watched.passes(1010)
    assert watched.killed
    watched = Watched(monkeypatch)
    watched.watch.on_trial_start(0, [], watched.trial)
    watched.reports(1)
    watched.passes(36_000, step=36_000)
    assert not watched.killed
    watched = Watched(monkeypatch)
    watched.reports(5)
    assert watched.trial.run_metadata.num_failures == 0
    watched.trial.run_metadata.num_failures = 1
    watched.reports(5)
    assert watched.trial.run_metadata.num_failures == 1
