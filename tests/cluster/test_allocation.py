"""`runtime.actors: auto`: processes only where they pay, none of the capacity idles, and no number changes."""

import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from fedray import results, simulate
from fedray.cells.cell import Cell
from fedray.cluster.connection import _refuse_other_code
from fedray.cluster.resources import FreeCapacity, hold_bundles, with_actor_count
from fedray.common.errors import UserError
from fedray.config import RunConfig, Runtime
from fedray.engine import loop
from fedray.engine.loop import make_rounds, pays, run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.sweep import plan as planning
from fedray.sweep.run import execute
from fedray.sweep.single import run_problem
from fedray.sweep.sweep import Sweep
from fedray.sweep.tune import ActorAllocator
from tests import small
from tests.conftest import each
from tests.sweep.running import SWEEP, runs, undisturbed

AUTO = SWEEP["base"] | {"runtime": SWEEP["base"]["runtime"] | {"actors": "auto"}}


@pytest.fixture
def idle_ray(local_ray: None) -> None:
    """Ray, once it has noticed that the actors of the test before have ended."""
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)


def test_room_is_what_nodes_have_less_what_is_held(idle_ray: None) -> None:
    """Eight CPUs and a GPU: four actors of 2; less three CPUs it is 5 / 2, rounded down."""
    room = FreeCapacity()
    assert room.count_actors(Runtime()) == 8
    assert room.count_actors(Runtime(cpus_per_actor=2)) == 4
    assert room.count_actors(Runtime(cpus_per_actor=2), [{"CPU": 1.0}] * 3) == 2
    assert room.count_actors(Runtime(), [{"CPU": 1.0}] * 9) == 0
    assert room.count_actors(Runtime(gpus_per_actor=0.5)) == 2
    assert room.count_actors(Runtime(gpus_per_actor=2)) == 0
    assert room.count_actors(Runtime(gpus_per_actor=0.25), [{"CPU": 1.0, "GPU": 0.5}]) == 2, "half of the GPU is held"


def test_all_nodes_have_the_code_of_this_process(idle_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of Ray reads it there; here it seems to be gone."""
    _refuse_other_code("--address")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with small.refused(" has other code of fedray than this process; install the same on all nodes"):
        _refuse_other_code("--address")


def test_actors_of_a_run_are_granted_together(idle_ray: None, caplog: pytest.LogCaptureFixture) -> None:
    """Of eight CPUs one run holds five. Another one with five waits, and holds none of the rest meanwhile."""
    caplog.set_level("INFO", "fedray")

    def hold() -> float:
        with hold_bundles(Runtime(actors=5)):
            return float(ray.available_resources()["CPU"])

    with ThreadPoolExecutor(1) as pool:
        with hold_bundles(Runtime(actors=5)):
            other = pool.submit(hold)
            assert not wait([other], 3).done
            assert ray.available_resources()["CPU"] == 3
        assert other.result(timeout=60) == 3
    assert "waiting until the cluster has room for 5 actors" in caplog.text


def test_one_run_takes_all_the_room_its_cohort_can_use(idle_ray: None) -> None:
    clients = {"total": 10, "per_round": 2}
    config = RunConfig.parse(AUTO | {"algorithm": "scaffold", "clients": clients, "training": {"rounds": 2}})
    assert with_actor_count(config).runtime.actors == 2
    found = simulate(config).summary()
    assert found["state_sha256"] == run(Problem.build(config), InlineBackend()).summary()["state_sha256"]


@each((20, 3, [1] * 9), (3, 5, [2, 3, 3, 0]), (1, 10, [8, 0]), (1, 2, [2]))
def test_a_cell_gets_its_share_of_the_room(left: int, cohort: int, given: list[int], idle_ray: None) -> None:
    """Eight CPUs, divided among the cells that have not begun, and no more than a cohort. Nothing is free: 0; but while
    more have not begun than fit, each has one actor, and waits inside Tune."""
    base = AUTO | {"algorithm": "fedavg", "clients": {"total": 10, "per_round": cohort}}
    shares, run = ActorAllocator(None), RunConfig.parse(base)
    cells: list[Any] = [SimpleNamespace(hash=str(number), run=run) for number in range(len(given))]
    assert [shares.give(cell, max(left - place, 1)) for place, cell in enumerate(cells)] == given


def test_the_largest_cohort() -> None:
    cohorts = {"total": 10, "cohorts": [[0, 1], [2, 3, 4, 5]]}
    base = AUTO | {"algorithm": "fedavg", "training": AUTO["training"] | {"rounds": 2}}
    assert RunConfig.parse(base).clients.largest_cohort == 3
    assert RunConfig.parse(base | {"clients": cohorts}).clients.largest_cohort == 4


def test_what_processes_must_save() -> None:
    """One and a half times 8 s: 24 / 2 = 16 x 3/4 = 12 s are not more than that."""
    assert [pays(seconds, 2) for seconds in (24, 25)] == [pays(seconds, 4) for seconds in (16, 17)] == [False, True]


def test_it_is_decided_once_after_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of two seconds, of which four more follow."""
    config, asked = RunConfig.parse(AUTO | {"algorithm": "fedavg", "training": {"rounds": 5}}), list[float]()
    simulation, now = Simulation(Problem.build(config), InlineBackend()), [0.0]
    step, first = simulation.step, simulation.backend

    def take_two_seconds() -> None:
        step()
        now[0] += 2

    monkeypatch.setattr(simulation, "step", take_two_seconds)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in make_rounds(simulation, spread=lambda seconds: asked.append(seconds)):
        pass
    assert asked == [8]
    assert simulation.backend is first


def test_a_run_goes_on_if_no_ray_can_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Here any run pays."""

    def refuse(*_: Any) -> None:
        raise UserError("no room in /dev/shm")

    monkeypatch.setattr(loop, "START_SECONDS", 0.0)
    monkeypatch.setattr("fedray.cluster.resources.prepare_ray", refuse)
    monkeypatch.setattr("fedray.sweep.single.count_usable_cpus", lambda: 2)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests of this file have one
    training = AUTO["training"] | {"rounds": 4}
    problem = Problem.build(RunConfig.parse(AUTO | {"algorithm": "fedavg", "training": training}))
    assert len(run_problem(problem).history) == 4
    assert "runtime.actors: auto: the run goes on in this process: no room in /dev/shm" in caplog.text


def test_a_cell_of_a_sweep_moves_to_the_bundles_that_it_holds(local_ray: None, project: Path) -> None:
    """A first round of 1.5 s: 17 more would be 25 s in one process, of which two save 12.7."""
    base = AUTO | {
        "algorithm": {"name": "tests.plugins:StartsSlowly", "nap": 1.5},
        "clients": {"total": 10, "per_round": 2},
        "training": AUTO["training"] | {"rounds": 18},
    }
    sweep: dict[str, Any] = {"name": "moves", "base": base, "grid": {"seed": [0]}}
    assert execute(planning.make_plan(Sweep.model_validate(sweep))).plan.sheet.counts == {"finished": 1}
    trials = results("moves").trials
    assert trials["processes"].tolist() == [2]
    assert trials["moved_clients"].ge(0).all()
    (made,) = runs(project)
    assert made.data.tags["runtime.actors"] == "2"
    assert made.data.tags["fedray.state_sha256"] in undisturbed(sweep).values()


def test_a_sweep_leaves_no_room_idle(idle_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for three actors of 2.5 of the eight CPUs, two cells: 3 / 2, then all that is left."""
    given, give = list[int](), ActorAllocator.give

    def spy(shares: ActorAllocator, cell: Cell, left: int) -> int:
        given.append(give(shares, cell, left))
        return given[-1]

    monkeypatch.setattr(ActorAllocator, "give", spy)
    runtime = AUTO["runtime"] | {"cpus_per_actor": 2.5}
    base = AUTO | {"algorithm": "scaffold", "training": {"rounds": 3}, "runtime": runtime}
    sweep: dict[str, Any] = {"name": "auto", "base": base, "grid": {"seed": [0, 1]}}
    assert execute(planning.make_plan(Sweep.model_validate(sweep))).plan.sheet.counts == {"finished": 2}
    assert given == [1, 2]
    assert {run.data.tags["fedray.state_sha256"] for run in runs(project)} == set(undisturbed(sweep).values())
