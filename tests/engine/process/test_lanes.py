"""Clients in lanes have the bits that they have alone. On a CPU: networks, draws and turns are those of a GPU."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms.base import Algorithm, Client
from fedray.common.errors import UserError, warn_once
from fedray.engine.process import lanes
from fedray.engine.process.lanes import Lane, Lanes
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.methods import COVER
from tests.recording import Called, record_calls


class Normalised(nn.Module):
    taps = ("norm",)
    noise = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.noise:
            x = x + np.random.rand() * random.random()
        return self.head(nn.functional.dropout(self.norm(self.first(x.flatten(1))).relu(), 0.3, self.training))


class Noisy(Normalised):
    """Draws from NumPy's and Python's generators as well."""

    noise = True


class Failing(Algorithm):
    name = "failing"

    def gradient(self, c: Client) -> Tensor:
        torch.rand(3)
        if c.step == 2 and c.samples < 100:
            raise KeyboardInterrupt
        return c.grad(c.theta)


OPTIONS: dict[str, Any] = {
    "partition": 0.3,
    "clients": (8, 6),
    "model": "tests.engine.process.test_lanes:Normalised",
    "training": {"rounds": 2, "local_epochs": 2, "batch_size": 16, "last_batch": "drop"},
}


def get_worker(running: Simulation) -> Worker:
    worker: Worker = running.backend._worker  # type: ignore[attr-defined]
    return worker


def open_lanes(running: Simulation, count: int | None, records: bool = False, memory: Any = None) -> Lanes | None:
    """Let a run train in lanes, with recordings if asked for."""
    worker = get_worker(running)
    if records:
        worker.record = record_calls
        record_calls(worker.network)
    worker.open_lanes(count, memory)
    return worker.lanes


def in_lanes(count: int, algorithm: Any = "fedavg", records: bool = False, **options: Any) -> Any:
    """What a run leaves: hashes and rows."""
    running = small.simulation(algorithm, **OPTIONS | options)
    open_lanes(running, count, records)
    return small.outcome(running)


@pytest.fixture(autouse=True)
def _warn_again() -> None:
    warn_once.cache_clear()


@pytest.mark.parametrize("name", COVER)
def test_methods_have_the_same_bits_in_lanes(name: str) -> None:
    """With every hook, second and personal models, running statistics and dropout; recorded as well."""
    training = OPTIONS["training"] | {"local_epochs": 1, "momentum": small.momentum(name)}
    evaluation = {"personal": {"epochs": [1]}}
    alone = in_lanes(1, name, training=training, evaluation=evaluation)
    Called.replays = 0
    assert in_lanes(3, name, True, training=training, evaluation=evaluation) == alone
    assert Called.replays


def test_draws_of_numpy_and_python_belong_to_a_lane() -> None:
    noisy = "tests.engine.process.test_lanes:Noisy"
    assert in_lanes(3, model=noisy) == in_lanes(1, model=noisy)


def test_an_interrupt_closes_all_lanes_and_restores_the_generator() -> None:
    running = small.simulation({"name": Failing}, **OPTIONS)
    opened = open_lanes(running, 3)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        running.step()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(lane._steps.gi_frame is None for lane in opened.lanes)


def test_without_memory_half_as_many_lanes_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = in_lanes(1)
    advance = Lane.advance

    def advance_in(room: int) -> Any:
        def run(lane: Lane) -> bool:
            if len(opened.lanes) > room and lane is opened.lanes[-1]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            return advance(lane)

        return run

    running = small.simulation(**OPTIONS)
    opened = open_lanes(running, 4)
    monkeypatch.setattr(Lane, "advance", advance_in(1))
    assert small.outcome(running) == alone
    assert len(opened.lanes) == 1
    assert "runtime.lanes: out of memory with 4" in caplog.text
    assert "now there are 1" in caplog.text
    running = small.simulation(**OPTIONS)
    opened = open_lanes(running, 2)
    monkeypatch.setattr(Lane, "advance", advance_in(0))
    with pytest.raises(UserError, match=r"client \d+ \(\d+ samples\): out of memory: .*lower training\.batch_size"):
        running.step()


@pytest.mark.parametrize(("free", "count"), [(0, 1), (125, 2), (10_000, lanes.MOST)])
def test_the_first_client_tells_how_many_lanes_there_are(free: int, count: int) -> None:
    """It takes 100 bytes, and 0.8 of the free ones are for lanes."""
    running = small.simulation(**OPTIONS)
    held = iter([50, 150])
    opened = open_lanes(running, None, memory=lambda: (next(held), free))
    running.step()
    assert len(opened.lanes) == count


def test_lanes_share_what_is_frozen() -> None:
    options = OPTIONS | {"model": {"name": "mlp", "hidden": [12, 12], "freeze": ["1"]}}
    running = small.simulation(**options)
    opened = open_lanes(running, 2)
    running.step()
    first, second = (lane.network for lane in opened.lanes)
    assert first.frozen
    assert all(first.frozen[name].data_ptr() == t.data_ptr() for name, t in second.frozen.items())
    assert second.initial is first.initial


def test_measured_clients_train_alone() -> None:
    running = small.simulation(**OPTIONS | {"evaluation": {"probes": ["drift"], "every": 1}})
    opened = open_lanes(running, 3)
    running.step()
    assert any("drift" in row for row in running.state.history[-1])
    assert len(opened.lanes) == 1


def test_lanes_on_a_cpu_are_a_line(caplog: pytest.LogCaptureFixture) -> None:
    running = small.simulation(**OPTIONS | {"runtime": {"backend": "inline", "lanes": 4}})
    running.step()
    assert get_worker(running).lanes is None
    assert "runtime.lanes: found 4; lanes are for a GPU" in caplog.text
