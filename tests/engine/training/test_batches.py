"""Batches of small clients are drawn and gathered together, with the bits that each would have alone; and K as methods
divide by it (`training.nominal_steps`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import Training
from fedray.datasets.dataset import ALIGNED, Dataset, Samples
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.training import batches
from fedray.engine.training.batches import AHEAD, SMALL, Drawn, draw_ahead, draw_batches
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards
from tests import small

RNG = np.random.default_rng(0)
INPUTS: dict[str, np.ndarray] = {
    "rows of 12 bytes": RNG.standard_normal((40, 3), dtype=np.float32),
    "rows of 256 bytes": RNG.standard_normal((40, 64), dtype=np.float32),
    "images": RNG.integers(0, 256, (40, 1, 5, 5), dtype=np.uint8),
    "tokens": RNG.integers(0, 9, (40, 7), dtype=np.uint8),
}


def make_samples(x: np.ndarray) -> Samples:
    y = np.arange(len(x)) % 3
    return Samples(x, y, Dataset("random", x, y, x[:5], y[:5], 3, *(((0.5,), (0.3,)) if x.ndim == 4 else ())), "cpu")


@pytest.mark.parametrize("kind", INPUTS)
def test_batches_gathered_together_are_those_gathered_alone(kind: str) -> None:
    """Each begins where a tensor of its own would: at a multiple of 64 bytes."""
    samples = make_samples(INPUTS[kind])
    assert list(samples.make_batches([])) == []
    parts = [np.array(part) for part in ([3, 1, 39], [7], [0, 2, 4, 6, 8], [11, 12])]
    found = list(samples.make_batches(parts))
    assert len(found) == len(parts)
    for part, (x, y) in zip(parts, found, strict=True):
        alone_x, alone_y = samples.make_batch(part)
        assert x.dtype == alone_x.dtype
        assert torch.equal(x, alone_x)
        assert torch.equal(y, alone_y)
        assert x.is_contiguous()
        assert x.data_ptr() % ALIGNED == 0
        assert x[0].numel() * x.element_size() == samples.input_bytes


def test_a_method_may_write_into_its_batch() -> None:
    """As with a batch of its own: the others neither change nor get a gradient."""
    first, second = (x for x, _ in make_samples(INPUTS["rows of 256 bytes"]).make_batches([np.arange(2), np.arange(3)]))
    before, noise = second.clone(), torch.ones(2, 64, requires_grad=True)
    first += noise
    first.sum().backward()
    assert noise.grad is not None
    assert torch.equal(second, before)
    assert not second.requires_grad
    assert second._version == 0


def draw(sizes: Sequence[int], samples: Samples | None, **training: Any) -> list[tuple[int, Drawn | None]]:
    """Draw ahead for clients that hold that many samples, of a set that repeats 40."""
    shards = Shards.from_lists([np.arange(n) % 40 for n in sizes])
    none = torch.zeros(0)
    broadcast = Broadcast(round=2, lr=0.1, theta=none, buffers=none, message=Vectors(), cohort=len(sizes))
    tasks = [ClientTask(i, 1.0, Vectors()) for i in range(len(sizes))]
    drawn = draw_ahead(
        Training(**{"batch_size": 4, "local_epochs": 1} | training), shards, 5, broadcast, tasks, samples
    )
    return [(task.client, found) for task, found in drawn]


def test_what_is_drawn_ahead_is_what_each_client_draws_and_too_many_samples_are_not() -> None:
    """Client 3 visits more than 4,096 samples: it draws while it trains, between the groups of the others."""
    samples = make_samples(INPUTS["images"])
    sizes = [5, 9, 4, SMALL + 1, 6, *[3] * AHEAD]
    found = draw(sizes, samples)
    assert [client for client, _ in found] == list(range(len(sizes)))
    assert [client for client, drawn in found if drawn is None] == [3]
    for client, drawn in found:
        if drawn is None:
            continue
        order = list(draw_batches(Training(batch_size=4, local_epochs=1), sizes[client], 5, 2, client))
        assert [part.tolist() for part in drawn.order] == [part.tolist() for part in order]
        if drawn.batches is not None:
            for part, (x, y) in zip(order, drawn.batches, strict=True):
                alone_x, alone_y = samples.make_batch(part % 40)
                assert torch.equal(x, alone_x)
                assert torch.equal(y, alone_y)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_no_bit_depends_on_what_is_gathered_and_added_up_together(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together: six clients of a few hundred parameters in one group. Alone: no room for a second one."""

    def run() -> tuple[str, str, list[dict[str, float]]]:
        training = {"rounds": 2, "local_epochs": 2, "batch_size": 7}
        return small.outcome(small.simulation(algorithm, clients=(8, 6), partition=0.5, training=training))

    together = run()
    monkeypatch.setattr(batches, "GATHERED", 0)
    monkeypatch.setattr("fedray.engine.process.train.AHEAD", 1)
    assert run() == together


class Rest(Partition):
    """Everything for client 1."""

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_owner(np.ones(len(labels), dtype=np.int64), clients)


def test_a_client_0_without_samples_is_refused() -> None:
    with pytest.raises(UserError, match=r"^training\.nominal_steps: found client0, and client 0 has no samples$"):
        small.problem(
            "scaffold",
            (2, 1),
            partition={"name": "tests.engine.training.test_batches:Rest", "min_size": 0},
            training={"nominal_steps": "client0"},
        )
