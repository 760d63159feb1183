"""A process on a device: shards and states stay there, one upload per client, one wait per share; no bit changes.

There need be no GPU: the process behaves on the CPU as on a device (`Worker.reside`). A stand-in counts the copies,
which all go through `fedray.common.vectors`, and a dispatch mode sees operations that make a process wait for a GPU.
"""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedray.common import vectors
from fedray.common.vectors import Vectors, digest_tensors
from fedray.datasets.augment import Crop, Cutout, Flip, Rotate
from fedray.datasets.dataset import ClientSamples, Dataset, ResidentSamples, Samples
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.evaluate import evaluate
from fedray.engine.process.residence import Residence
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests import small
from tests.methods import METHODS

ROOM = 1 << 30
ALONE = {"backend": "inline", "stack": 1}
WAITS = {
    torch.ops.aten._local_scalar_dense.default: "a number is read",
    torch.ops.aten.nonzero.default: "positions are counted",
    torch.ops.aten.masked_select.default: "entries are counted",
    torch.ops.aten.bincount.default: "the largest entry is read",
}


class ResidentBackend(InlineBackend):
    """One worker on the CPU that keeps shards and states as it would on a device."""

    def __init__(self, limit: int = ROOM) -> None:
        self.limit = limit

    def open(self, problem: Problem) -> None:
        super().open(problem)
        self._worker.reside(self.limit)
        self._worker.keep_states(self.spill)


class Waits(TorchDispatchMode):
    """Counts the operations that would make this process wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITS:
            self.seen[WAITS[function]] += 1
        if function is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.seen["entries are counted"] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of copies to the device, and of waits for copies from it."""
    seen: Counter[str] = Counter()
    copy, fetch = vectors.copy_to, vectors.download

    def copy_to(packed: Tensor, device: Any) -> Tensor:
        seen["uploads"] += 1
        return copy(packed, device).clone()  # as on a device: another memory

    def download(tensors: Sequence[Tensor]) -> list[Tensor]:
        seen["waits"] += 1
        return [tensor.clone() for tensor in fetch(tensors)]

    monkeypatch.setattr(vectors, "copy_to", copy_to)
    for module in ("reduction", "residence"):
        monkeypatch.setattr(f"fedray.engine.process.{module}.download", download)
    return seen


def run(backend: InlineBackend, algorithm: str, **options: Any) -> Simulation:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 32, "lr": 0.05, "weight_decay": 1e-3}
    training["momentum"] = small.momentum(algorithm)
    sections = {"partition": 0.3, "training": training, "evaluation": {"every": 2}, **options}
    return Simulation(small.problem(algorithm, (6, 3), 12, **sections), backend)


@pytest.mark.parametrize("algorithm", METHODS)
def test_no_bit_changes(algorithm: str) -> None:
    """With room for everything; for some methods also with room for a few shards or states, and with none."""
    expected = small.outcome(run(InlineBackend(), algorithm))
    for limit in (ROOM, 3_000, 0) if algorithm in ("fedavg", "scaffold", "fedrep") else (ROOM,):
        assert small.outcome(run(ResidentBackend(limit), algorithm)) == expected


@pytest.mark.parametrize("chance", [1.0, 0.5])
def test_draws_of_augmentation_are_the_same_in_one_copy(chance: float, copies: Counter[str]) -> None:
    """For the batches of a round, of which the last is smaller; with a fresh generator each."""
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    chain = (Flip(), Crop(crop=2, chance=chance), Rotate(rotate=20), Cutout(cutout=4))
    data = Dataset("d", x, np.arange(40) % 4, x, np.arange(40) % 4, 4, (0.5,) * 3, (0.2,) * 3, augment=chain)
    samples, indices = Samples(x, data.y_train, data, "cpu"), np.arange(40)[::-1][:25].copy()
    resident = ResidentSamples(samples, *samples.gather(indices))
    copies.clear()
    order = [np.arange(10), np.arange(10, 20), np.arange(20, 25)]
    left, right = (
        list(one.iter_batches(iter(order), np.random.default_rng(3)))
        for one in (ClientSamples(samples, indices), resident)
    )
    assert copies == {"uploads": 1}
    for (x1, y1), (x2, y2) in zip(left, right, strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)
    assert torch.equal(ClientSamples(samples, indices).get_labels(), resident.get_labels())
    assert all(map(torch.equal, ClientSamples(samples, indices).cut(3, 9), resident.cut(3, 9)))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtoga", "mofedsam"])
def test_one_upload_per_client_and_one_wait_per_share(algorithm: str, copies: Counter[str]) -> None:
    """One copy brings what the server sends, one a client's order of the round, one the shard of a client that is new.

    The share ends with one wait, for losses, checks and sums together; nothing makes the process wait before it,
    once the positions of the model's parts are known. Without stacks: the first one's clients also train alone, and are
    compared.
    """
    backend = ResidentBackend()
    training = {"rounds": 4, "batch_size": 64, "local_epochs": 2}
    running = run(backend, algorithm, training=training, evaluation={"every": 100, "last": 1}, runtime=ALONE)
    waits, met, train = Waits(), set[int](), backend.train

    def watched(*args: Any) -> Any:
        copies.clear()
        with waits:
            found = train(*args)
        counted.append(dict(copies))
        return found

    counted: list[dict[str, int]] = []
    backend.train = watched  # type: ignore[method-assign]
    for t in range(3):
        cohort = set(map(int, running.draw_cohort(t)))
        running.step()
        assert counted[-1] == {"uploads": 1 + len(cohort) + len(cohort - met), "waits": 1}
        met |= cohort
        if t == 0:
            waits.seen.clear()
    assert not waits.seen


def test_an_evaluation_waits_once(copies: Counter[str]) -> None:
    """360 samples in one chunk: its counts and its loss are read together at the end."""
    running = run(ResidentBackend(), "fedavg")
    worker, waits = running.backend._worker, Waits()  # type: ignore[attr-defined]
    copies.clear()
    with waits:
        found = evaluate(worker, running.state.theta, running.state.buffers, [0])
    assert copies["waits"] == 1
    assert not waits.seen
    assert found["answers"].sum() == 360 * 2**32
    assert found["confusion"].diagonal().equal(found["correct"])


def make_residence(limit: int) -> tuple[Residence, Samples]:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    samples = Samples(x, y, Dataset("d", x, y, x, y, 2), "cpu")
    return Residence(samples, limit), samples


def test_what_was_used_least_recently_leaves(copies: Counter[str]) -> None:
    """A sample takes 2 x 4 + 8 bytes, so three shards of five fit into 240 bytes: a fourth one costs the oldest."""
    residence, samples = make_residence(240)
    assert samples.bytes_each == 16
    shards = np.split(np.arange(20), 4)
    for client, uploads in [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (0, 4), (2, 4), (1, 5), (3, 6)]:
        taken = residence.take(client, shards[client])
        assert copies["uploads"] == uploads, client
        assert torch.equal(taken.cut(0, 5)[0], samples.make_batch(shards[client])[0])
        assert residence.used <= 240


def test_states_leave_in_their_turn_and_can_be_read_and_sent() -> None:
    """Two of 16 bytes fit into 40; the third moves the first unless that was used. A gone state takes no room."""
    residence, _ = make_residence(40)
    spilled = []
    residence.spill = lambda state: spilled.append(state) or state  # type: ignore[func-returns-value]
    vectors = [Vectors(h=torch.full((4,), float(k))) for k in range(4)]
    states = [residence.keep(v) for v in vectors[:2]]
    assert states[0].get_on_device() is vectors[0]
    states.append(residence.keep(vectors[2]))
    assert [state.get_on_device() is None for state in states] == [False, True, False]
    assert len(spilled) == 1
    assert all(torch.equal(load_state(state).h, v.h) for state, v in zip(states, vectors, strict=False))
    sent = pickle.loads(pickle.dumps(states[0]))  # noqa: S301
    assert digest_tensors(sent) == digest_tensors(vectors[0])
    del states[0]
    assert residence.used == 16
    states.append(residence.keep(vectors[3]))
    assert len(spilled) == 1
