"""`gpus_per_actor: auto`: from one client's memory to actors per GPU. The GPU is logical: memory is the stand-in's."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from fedray.cluster.gpu_sharing import (
    STEPS,
    Packing,
    compute_fraction,
    count_kept,
    list_kinds,
    measure_one_client,
    shorten,
)
from fedray.cluster.resources import count_capacity
from fedray.common.errors import UserError
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import Peak, measure_others
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.conftest import start_ray

GIB = 2**30
RUN = small.sections(
    clients=(6, 2),
    partition=0.3,
    runtime={"gpus_per_actor": "auto"},
    training={"rounds": 50, "batch_size": 20},
    evaluation={"personal": {}},
)


@pytest.mark.parametrize(
    ("used", "total", "expected", "actors"),
    [
        (3.0, 10, 0.3333, 3),  # 9 of 10 GiB are usable: 3 x 3
        (3.1, 10, 0.5, 2),
        (0.7, 80, 0.0098, 102),  # 72 / 0.7 = 102.9; 10,000 / 102 = 98.04
        (9.5, 10, 1.0, 1),
    ],
)  # it ran, so one fits
def test_as_many_as_fit(used: float, total: int, expected: float, actors: int) -> None:
    measured = Peak(int(used * GIB), total * GIB)
    assert compute_fraction(measured) == expected
    assert count_capacity(Runtime(gpus_per_actor=expected, cpus_per_actor=0.001), {"CPU": 8, "GPU": 1}) >= actors
    assert actors * expected <= 1


@pytest.mark.parametrize(
    ("others", "kept", "actors"),
    [
        (0.0, 0.0, 9),  # 9 / 1
        (4.0, 0.0, 5),  # (9 - 4) / 1
        (0.0, 0.2, 7),  # 9 / 1.2 = 7.5: all fit with everything that they keep
        (0.0, 50.0, 7),  # (9 - 0.2 x 10) / 1: each keeps at most a fifth of its share
        (8.5, 0.0, 1),  # it ran
    ],
)
def test_what_others_hold_and_actors_keep_is_left_to_them(others: float, kept: float, actors: int) -> None:
    """An actor takes 1 of 10 GiB, of which 9 are usable."""
    measured = Peak(GIB, 10 * GIB, int(others * GIB), int(kept * GIB))
    assert int(1 / compute_fraction(measured) + 1e-9) == actors


def test_each_kind_of_gpu_of_the_cluster_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind on which fewest actors fit decides, because a trial may be placed on any node with a GPU."""
    nodes = [
        {"CPU": 4.0, "GPU": 2.0, "accelerator_type:A100": 1.0},
        {"CPU": 4.0, "GPU": 1.0, "accelerator_type:L4": 1.0},
        {"CPU": 4.0, "GPU": 1.0, "accelerator_type:A100": 1.0},
        {"CPU": 4.0},
    ]
    seen = []

    def measure(self: Packing, run: RunConfig, data: Dataset, kind: str) -> Peak:
        seen.append(kind)
        return Peak(3 * GIB, {"accelerator_type:A100": 40, "accelerator_type:L4": 24}[kind] * GIB)

    monkeypatch.setattr("fedray.cluster.gpu_sharing.list_nodes", lambda: nodes)
    monkeypatch.setattr(Packing, "_measure_on", measure)
    nothing: Any = None
    found = Packing().resolve_auto_gpus(RunConfig.parse(RUN), nothing)
    assert seen == ["accelerator_type:A100", "accelerator_type:L4"]
    assert found.runtime.gpus_per_actor == 0.1428, "0.9 x 24 / 3 = 7.2"
    assert list_kinds([{"GPU": 1.0}]) == [""]


def test_shards_and_states_of_all_clients_are_counted() -> None:
    """SCAFFOLD keeps a vector of 8 x 64 + 8 + 10 x 8 + 10 numbers; a sample of digits takes 64 bytes, its label 8."""
    problem = Problem.build(RunConfig.parse(RUN | {"runtime": {}, "algorithm": "scaffold"}))
    simulation = Simulation(shorten(problem), InlineBackend())
    simulation.step()
    assert count_kept(problem, simulation) == len(problem.data.y_train) * (64 + 8) + 6 * 4 * (8 * 64 + 8 + 10 * 8 + 10)


@pytest.mark.parametrize(("printed", "held"), [("1234\n", 1234 << 20), ("[N/A]\n", 0), (None, 0)])
def test_memory_of_other_processes(
    printed: str | None, held: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From nvidia-smi's answer for the GPU that this process sees; said if there is none, or no number."""
    if printed is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\n[ "$1" = --id=GPU-7 ] && printf "{printed}"\n', encoding="utf-8")
        tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-8")
    assert measure_others() == held
    assert ("is not known" in caplog.text) == (held == 0)


@pytest.fixture(scope="module", params=[1, 0], ids=["a GPU", "no GPU"])
def gpus(request: pytest.FixtureRequest) -> Iterator[int]:
    start_ray(num_cpus=2, num_gpus=request.param)
    yield request.param
    ray.shutdown()


def by_model(config: bytes, data: Dataset) -> Peak:
    """A stand-in that only works with a GPU for itself: a third of one for a hidden layer of 8, else a half."""
    assert ray.get_gpu_ids() == [0]
    return Peak(3 * GIB if RunConfig.unpack(config).model.list_options()["hidden"] == [8] else 4 * GIB, 10 * GIB)


def test_each_kind_of_run_is_measured_once_and_alone(gpus: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedray")
    runs = [
        RunConfig.parse(RUN | {"seed": seed, "model": {"name": "mlp", "hidden": [hidden]}})
        for seed in (0, 1)
        for hidden in (8, 9)
    ]
    data, packing = runs[0].data.load(), Packing(by_model)
    if not gpus:
        with pytest.raises(UserError, match=r"^runtime\.gpus_per_actor: found auto, and no node of the cluster has"):
            packing.resolve_auto_gpus(runs[0], data)
        return
    resolve_auto_gpus = [packing.resolve_auto_gpus(run, data) for run in runs]
    assert [run.runtime.gpus_per_actor for run in resolve_auto_gpus] == [0.3333, 0.5] * 2
    assert [record.getMessage().rpartition("one client takes ")[2] for record in caplog.records[1::2]] == [
        "3.00 of 10.00 GiB of a GPU: 0.3333 GPUs per actor",
        "4.00 of 10.00 GiB of a GPU: 0.5 GPUs per actor",
    ]
    assert [run.hash_cell("x") for run in resolve_auto_gpus] == [run.hash_cell("x") for run in runs], (
        "the cells are what they were"
    )
    fixed = RunConfig.parse(RUN | {"runtime": {"gpus_per_actor": 0.25}})
    assert packing.resolve_auto_gpus(fixed, data) is fixed


@pytest.mark.parametrize(
    ("change", "batch", "measured"),
    [
        ({"seed": 1}, 20, 1),
        ({"seed": 1}, "full", 2),
        ({"partition": {"name": "dirichlet", "alpha": 0.01}}, 20, 1),
        ({"partition": {"name": "dirichlet", "alpha": 0.01}}, "full", 2),
        ({"clients": {"total": 2, "per_round": 2}}, "full", 2),
        ({"training": {"lr": 0.3}}, "full", 1),
    ],
)
def test_a_batch_that_is_a_whole_shard_is_measured_for_each_way_to_deal_samples_out(
    change: dict[str, Any], batch: int | str, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory grows with the largest shard."""
    seen = []
    monkeypatch.setattr(Packing, "_measure_alone", lambda self, run, data: seen.append(run) or Peak(3 * GIB, 10 * GIB))
    packing: Packing = Packing()
    nothing: Any = None
    for changed in ({}, change):
        training = RUN["training"] | changed.get("training", {}) | {"batch_size": batch}
        packing.resolve_auto_gpus(RunConfig.parse(RUN | changed | {"training": training}), nothing)
    assert len(seen) == measured


def test_what_stops_the_measured_client_is_said_in_one_line(gpus: int) -> None:
    """Here: Ray promises a GPU that CUDA does not find."""
    run = RunConfig.parse(RUN)
    if gpus:
        with pytest.raises(UserError, match=r"^runtime\.device: no CUDA device is visible to PyTorch here"):
            Packing(measure_one_client).resolve_auto_gpus(run, run.data.load())


def test_the_measured_round_is_the_longest_clients_first_steps() -> None:
    """The same round, on a CPU."""
    problem = Problem.build(RunConfig.parse(RUN | {"runtime": {}}))
    short = shorten(problem)
    assert short.config.clients.cohorts == ((int(problem.shards.sizes.argmax()),),)
    assert short.config.training.count_steps(10**6) == STEPS
    simulation = Simulation(short, InlineBackend())
    simulation.step()
    assert simulation.done
    assert len(simulation.state.history) == 1, "testing is measured too"
