"""Samples held out for validation, and the remaining shards for training."""

from dataclasses import replace

import numpy as np

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets.base import Validation
from fedray.datasets.dataset import Dataset
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards


def split_validation(
    partition: Partition, data: Dataset, clients: int, seed: int, validation: Validation | None
) -> tuple[Shards, Shards | None]:
    """Deal the training set, without the samples held out for validation.

    Args:
        partition: deals the samples.
        data: the whole data set.
        clients: N.
        seed: of the run. It keys the held-out samples, even if the partition has a seed of its own.
        validation: what to hold out; None: nothing.

    Returns:
        Each client's training samples, and the held-out samples: each client's (`from: clients`), or all of it as one
        entry (`from: pool`). Both index the whole training set.

    Raises:
        UserError: the partition is impossible, or the fraction is too small to hold out any sample.
    """
    if validation is None:
        return partition.split(data, clients, seed), None
    if validation.source == "pool":
        shards, held = _hold_out_pool(partition, data, clients, seed, validation.fraction)
    else:
        shards, held = hold_out(partition.split(data, clients, seed), data.y_train, validation.fraction, seed)
    if not len(held.indices):
        raise UserError(
            f"data.validation.fraction: found {validation.fraction:g}; that is not a single sample of "
            f"{'the training set' if validation.source == 'pool' else 'any client'}"
        )
    return shards, held


def _hold_out_pool(
    partition: Partition, data: Dataset, clients: int, seed: int, fraction: float
) -> tuple[Shards, Shards]:
    held = draw_stratified(data.y_train, _count_held_out(fraction, len(data.y_train)), generator(seed, "validation"))
    rest = np.setdiff1d(np.arange(len(data.y_train)), held)
    left = replace(
        data,
        x_train=data.x_train[rest],
        y_train=data.y_train[rest],
        client_train=None if data.client_train is None else data.client_train[rest],
    )
    shards = partition.split(left, clients, seed)
    return Shards(rest[shards.indices], shards.offsets), Shards.from_lists([held])


def hold_out(shards: Shards, labels: np.ndarray, fraction: float, seed: int) -> tuple[Shards, Shards]:
    """Hold out a fraction of every client's samples.

    A client's own draw leaves it at least one sample. Partitions that give a sample to several clients, or to one
    client several times, lose every copy of a held-out sample, so that no client trains on it.

    Args:
        shards: each client's samples.
        labels: of the training set, int64 `(n,)`.
        fraction: of each client's different samples, rounded to the nearest integer (half up).
        seed: keys the draw, together with the client's number.

    Returns:
        The shards for training, and the samples that each client holds out.
    """
    held = []
    for client in range(len(shards)):
        own = np.unique(shards[client])
        count = _count_held_out(fraction, len(own))
        if count:
            own = own[draw_stratified(labels[own], count, generator(seed, "validation", client=client))]
        held.append(own if count else own[:0])
    validation = Shards.from_lists(held)
    is_kept = np.ones(len(labels), dtype=bool)
    is_kept[validation.indices] = False
    kept = is_kept[shards.indices]
    before = np.concatenate([[0], np.cumsum(kept)])
    return Shards(shards.indices[kept], before[shards.offsets]), validation


def _count_held_out(fraction: float, samples: int) -> int:
    return max(min(int(fraction * samples + 0.5), samples - 1), 0)


def draw_stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw samples class by class in proportion: floor(count x share of the class), then the largest remainders.

    Args:
        labels: int64 `(n,)`.
        count: number of samples, less than n.
        rng: draws the samples of a class, and breaks ties of remainders.

    Returns:
        Their positions, int64 `(count,)`, ascending.
    """
    sizes = np.bincount(labels)
    taken, remainders = np.divmod(count * sizes, len(labels))
    order = np.lexsort((rng.random(len(sizes)), -remainders))
    taken[order[: count - taken.sum()]] += 1
    members = rng.permutation(len(labels))
    members = members[np.argsort(labels[members], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(members[rank < np.repeat(taken, sizes)])
