"""`runtime.actors: auto`: the remaining cells share the capacity, none of it idles, and no number changes."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from fedray import simulate
from fedray.cluster.allocation import FreeCapacity, Running, allocate, count_useful_actors, with_actor_count
from fedray.config import RunConfig, Runtime
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.sweep.driver.run import execute
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan import plan as planning
from fedray.sweep.plan.cells import Cell
from fedray.sweep.trials.allocator import ActorAllocator
from tests.sweep.running import SWEEP, runs, undisturbed

AUTO = SWEEP["base"] | {"runtime": SWEEP["base"]["runtime"] | {"actors": "auto"}}
NEVER = math.inf
UNKNOWN = math.nan


@pytest.mark.parametrize(
    ("free", "left", "running", "seconds", "expected"),
    [
        (8, 1, [], UNKNOWN, 8),
        (8, 3, [], UNKNOWN, 2),
        (2, 28, [], UNKNOWN, 1),
        (0, 1, [Running(2, 1)], 100, 0),
        # Two cores, the last cell of 100 s. The other one ends in 1 s: 1 + 100 / 2 = 51 s against 100 s.
        (1, 1, [Running(1, 1)], 100, 0),
        # It ends in 60 s: 60 + 50 = 110 s against 100 s.
        (1, 1, [Running(1, 60)], 100, 1),
        (1, 1, [Running(1, NEVER)], 100, 1),
        (1, 1, [Running(1, 1)], UNKNOWN, 1),
        # More cells than fit: freed actors will be used.
        (1, 2, [Running(1, 1)], 100, 1),
        # One of three ends in 1 s.
        (1, 1, [Running(1, 2), Running(1, 1), Running(1, 90)], 100, 0),
    ],
)
def test_the_next_cells_share_of_the_room(
    free: int, left: int, running: list[Running], seconds: float, expected: int
) -> None:
    assert allocate(free, left, running, seconds, most=100) == expected


def test_a_cell_takes_no_more_than_its_cohort_and_waits_for_no_more() -> None:
    """A cohort of 2: waiting 1 s for two more actors would not make it faster."""
    assert allocate(4, 1, [], UNKNOWN, most=2) == 2
    assert allocate(2, 1, [Running(2, 1)], 100, most=2) == 2
    base = AUTO | {"algorithm": "fedavg"}
    assert count_useful_actors(RunConfig.parse(base)) == 3
    cohorts = {"total": 10, "cohorts": [[0, 1], [2, 3, 4, 5]]}
    training = AUTO["training"] | {"rounds": 2}
    assert count_useful_actors(RunConfig.parse(base | {"clients": cohorts, "training": training})) == 4


def test_room_is_what_nodes_have_less_what_is_held(local_ray: None) -> None:
    """Eight CPUs and a GPU: four actors of 2; less three CPUs it is 5 / 2, rounded down."""
    room = FreeCapacity()
    assert room.count_actors(Runtime()) == 8
    assert room.count_actors(Runtime(cpus_per_actor=2)) == 4
    assert room.count_actors(Runtime(cpus_per_actor=2), [{"CPU": 1.0}] * 3) == 2
    assert room.count_actors(Runtime(), [{"CPU": 1.0}] * 9) == 0
    assert room.count_actors(Runtime(gpus_per_actor=0.5)) == 2
    assert room.count_actors(Runtime(gpus_per_actor=2)) == 0


def test_one_run_takes_all_the_room_its_cohort_can_use(local_ray: None) -> None:
    config = RunConfig.parse(AUTO | {"algorithm": "scaffold", "training": {"rounds": 2}})
    assert with_actor_count(config).runtime.actors == 3
    found = simulate(config).summary()
    assert found["state_sha256"] == run(Problem.build(config), InlineBackend()).summary()["state_sha256"]


def test_a_sweep_leaves_no_room_idle_and_changes_no_number(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight CPUs, three cells: 8 / 3, then 6 / 2, then all that is left."""
    until = time.monotonic() + 60  # Ray gives back what actors of an earlier test held a little after their end
    while ray.available_resources().get("CPU", 0) < 8 and time.monotonic() < until:
        time.sleep(0.1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    given, give = list[int](), ActorAllocator.give

    def spy(shares: ActorAllocator, cell: Cell, left: int) -> int:
        given.append(give(shares, cell, left))
        return given[-1]

    monkeypatch.setattr(ActorAllocator, "give", spy)
    sweep: dict[str, Any] = {"name": "auto", "base": AUTO | {"algorithm": "scaffold"}, "grid": {"seed": [0, 1, 2]}}
    assert execute(planning.make_plan(Sweep.model_validate(sweep))).counts == {"finished": 3}
    assert given == [2, 3, 3]
    assert {run.data.tags["fedray.state_sha256"] for run in runs(tmp_path)} == set(undisturbed(sweep).values())
