"""The batches of local training: their order, and their sizes. Every order is keyed by (seed, round, client)."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedray.common.rng import generator
from fedray.engine.messages import Broadcast, ClientTask
from fedray.partitions.shards import Shards
from fedray.sections import Training

AHEAD = 32
"""Clients whose batches are drawn together."""
SMALL = 4096
"""Samples that a client visits in a round, at most, for its batches to be drawn ahead."""
LEAST_SHARE = 1 / 64
"""Part of all local steps that must have a batch size for it to be recorded."""


def draw_batches(
    training: Training,
    samples: int,
    seed: int,
    round: int,
    client: int,
    purpose: str = "",
    steps: int | None = None,
) -> Iterator[np.ndarray]:
    """Yield positions in the client's shard, one int64 array per step.

    An epoch's last batch may be smaller, or left out.

    Args:
        training: batch size, epochs or steps.
        samples: number of samples in the client's shard.
        seed: the run's seed. Together with round, client and purpose it keys the order.
        round: t, from 0.
        client: its id.
        purpose: purpose of the draw; empty for ordinary local training.
        steps: number of steps; by default the configuration's.
    """
    rng = generator(seed, f"{purpose}shuffle", round, client)
    size = training.find_largest_batch(samples)
    left = training.count_steps(samples) if steps is None else steps
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
    training: Training, shards: Shards, seed: int, broadcast: Broadcast, tasks: Sequence[ClientTask]
) -> Iterator[tuple[ClientTask, list[np.ndarray] | None]]:
    """Yield each client with its batches, which are drawn for several small clients at a time.

    Going back and forth between NumPy and torch takes longer than a draw. A large client draws while it trains: None.

    Args:
        training: as in `draw_batches`.
        shards: each client's training samples.
        seed: the run's seed.
        broadcast: the round, and its number of steps if the method draws it.
        tasks: the clients.
    """

    def draw(client: int) -> list[np.ndarray] | None:
        samples = len(shards[client])
        steps = training.count_steps(samples) if broadcast.steps is None else broadcast.steps
        if steps * training.find_largest_batch(samples) > SMALL:
            return None
        return list(draw_batches(training, samples, seed, broadcast.round, client, "", steps))

    for start in range(0, len(tasks), AHEAD):
        group = tasks[start : start + AHEAD]
        yield from zip(group, [draw(task.client) for task in group], strict=True)


def find_batch_sizes(training: Training, samples: np.ndarray) -> frozenset[int]:
    """Return the sizes of batches that are recorded: those of at least 1/64 of the local steps.

    Args:
        training: batch size and `last_batch`.
        samples: int64 `(N,)`, each client's training samples.
    """
    samples = samples[samples > 0]
    batch = samples if training.batch_size == "full" else np.minimum(training.batch_size, samples)
    rest = samples % batch if training.last_batch == "keep" else np.zeros_like(samples)
    sizes = np.concatenate([batch, rest])
    steps = np.bincount(sizes, weights=np.concatenate([samples // batch, np.ones_like(rest)]))
    steps[0] = 0
    return frozenset(map(int, np.flatnonzero(steps >= LEAST_SHARE * max(steps.sum(), 1))))
