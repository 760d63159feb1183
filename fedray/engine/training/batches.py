"""The batches of local training: their order, and their sizes. Every order is keyed by (seed, round, client)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedray.common.rng import generator
from fedray.config import Training
from fedray.datasets.dataset import Samples
from fedray.engine.messages import Broadcast, ClientTask
from fedray.partitions.shards import Shards

AHEAD = 32
"""Clients whose batches are drawn together."""
SMALL = 4096
"""Samples that a client visits in a round, at most, for its batches to be drawn ahead."""
GATHERED = 1 << 18
"""Bytes of inputs that are gathered together, at most: they fit a processor's cache."""


@dataclass
class Drawn:
    """The batches of a client's round, drawn before it trains.

    order: positions in its shard, one int64 array per step. batches: their inputs and labels, if gathered already.
    """

    order: list[np.ndarray]
    batches: list[tuple[Tensor, Tensor]] | None = None


class Counts(NamedTuple):
    """K_i and the steps of one pass of a client, samples of a whole batch, and K_i as methods divide by it."""

    steps: int
    per_epoch: int
    batch_size: int
    counted_steps: float


def draw_batches(
    training: Training, samples: int, seed: int, round: int, client: int, purpose: str = ""
) -> Iterator[np.ndarray]:
    """Yield positions in the client's shard of this many samples, one int64 array per step.

    An epoch's last batch may be smaller, or left out. Seed, round (from 0), client and purpose (empty for ordinary
    local training) key the order.
    """
    rng = generator(seed, f"{purpose}shuffle", round, client)
    size = training.find_largest_batch(samples)
    left = training.count_steps(samples)
    while left > 0:
        order = rng.permutation(samples) if training.shuffle else np.arange(samples)
        for start in range(0, samples, size):
            if left == 0:
                return
            if training.last_batch == "drop" and 0 < start > samples - size:
                break
            left -= 1
            yield order[start : start + size]


def draw_ahead(
    training: Training,
    shards: Shards,
    seed: int,
    broadcast: Broadcast,
    tasks: Sequence[ClientTask],
    samples: Samples | None = None,
) -> Iterator[tuple[ClientTask, Drawn | None]]:
    """Yield each client with its batches, which are drawn and gathered for several small clients at a time.

    Going back and forth between NumPy, torch and Python takes longer than a draw, or than gathering a small batch. A
    large client draws while it trains: None. Without `samples` each client gathers its own batches.
    """

    def draw(client: int) -> list[np.ndarray] | None:
        samples = len(shards[client])
        if training.count_steps(samples) * training.find_largest_batch(samples) > SMALL:
            return None
        return list(draw_batches(training, samples, seed, broadcast.round, client))

    group: list[tuple[ClientTask, list[np.ndarray]]] = []
    held, each = 0, 0 if samples is None else samples.input_bytes
    for task in tasks:
        order = draw(task.client)
        size = 0 if order is None else each * sum(map(len, order))
        if order is None or len(group) == AHEAD or held + size > GATHERED:
            yield from _gather(samples, shards, group)
            group, held = [], 0
        if order is None:
            yield task, None
        else:
            group.append((task, order))
            held += size
    yield from _gather(samples, shards, group)


def _gather(
    samples: Samples | None, shards: Shards, group: Sequence[tuple[ClientTask, list[np.ndarray]]]
) -> Iterator[tuple[ClientTask, Drawn]]:
    """Yield clients with their batches, gathered in one call if there are several clients."""
    if samples is None or len(group) < 2:
        yield from ((task, Drawn(order)) for task, order in group)
        return
    batches = samples.make_batches([shards[task.client][part] for task, order in group for part in order])
    for task, order in group:
        yield task, Drawn(order, [next(batches) for _ in order])
