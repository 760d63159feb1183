"""With one actor the trial trains, killed or suspended as it may be; Tune receives little about each cell."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from fedray.cluster.object_states import ObjectState
from fedray.cluster.ray_backend import TrialBackend
from fedray.cluster.timeouts import FIRST, FLOOR, SILENT, CallTimeouts, Heartbeat
from fedray.config import Runtime
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import make_result
from fedray.engine.server.simulation import Simulation
from fedray.sweep import plan as planning
from fedray.sweep import tune as trials
from fedray.sweep.plan import Options
from fedray.sweep.run import execute
from fedray.sweep.sweep import Sweep
from fedray.sweep.trainable import CellTrainable
from fedray.sweep.tune import Watchdog
from tests.cluster.test_ray_backend import keeping
from tests.sweep.running import SWEEP, runs, undisturbed


@pytest.mark.faults
def test_a_killed_and_a_stopped_trial_change_nothing(
    local_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real SIGKILL in round 1 and a real SIGSTOP in round 6: both cells continue from their checkpoints."""
    monkeypatch.setattr(trials, "SILENT", 8.0)
    dies, hangs = project / "dies", project / "hangs"
    training = SWEEP["base"]["training"] | {"lr_decay": 0.9}

    def sweep(*algorithms: object) -> dict[str, Any]:
        return {"name": "two", "base": SWEEP["base"] | {"training": training}, "grid": {"algorithm": list(algorithms)}}

    disturbed = sweep(
        {"name": "tests.plugins:dying_scaffold", "marker": str(dies)},
        {"name": "tests.plugins:HangsLate", "marker": str(hangs)},
    )
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


def test_a_process_killed_between_two_cells_costs_neither(
    local_ray: None, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real SIGKILL while the process takes over its second cell: Tune tells of one death twice."""
    marker = project / "marker"
    marker.touch()
    method = {"name": "tests.plugins:DiesAtNextCell", "marker": str(marker)}
    short = {"algorithm": method, "training": {"rounds": 3}, "runtime": {"actors": 1, "checkpoint_every": 1}}
    base = SWEEP["base"] | short
    sweep = {"name": "two", "base": base, "grid": {"seed": [0, 1]}}
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
        self.trial: Any = SimpleNamespace(
            trial_id="t",
            temporary_state=SimpleNamespace(ray_actor="actor"),
            run_metadata=SimpleNamespace(num_failures=2),
        )
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(trials.ray_private, "read_heartbeat", lambda trial: self.told)
        monkeypatch.setattr(trials.ray_private, "delete_heartbeat", lambda trial: None)
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


def test_a_slow_trial_says_so_and_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.watch.on_trial_start(0, [], watched.trial)
    watched.reports(1)
    watched.told = "17.0 5000.0"  # type: ignore[assignment]
    watched.passes(SILENT + 4000)
    assert not watched.killed
    watched.passes(1010)
    assert watched.killed


def test_a_driver_that_was_stopped_does_not_count_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.watch.on_trial_start(0, [], watched.trial)
    watched.reports(1)
    watched.passes(36_000, step=36_000)
    assert not watched.killed


def test_only_a_new_round_resets_the_count_of_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.reports(5)
    assert watched.trial.run_metadata.num_failures == 0
    watched.trial.run_metadata.num_failures = 1
    watched.reports(5)
    assert watched.trial.run_metadata.num_failures == 1
