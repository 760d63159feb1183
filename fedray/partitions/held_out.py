"""Samples held out for testing and validation, and the remaining shards for training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from fedray.common.errors import UserError
from fedray.common.rng import generator, key_draws
from fedray.datasets.base import DataSource
from fedray.datasets.dataset import Dataset, take_train
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards


@dataclass(frozen=True)
class Split:
    """The samples of each client, as positions in the (merged) data set.

    test: the clients' test samples, with `data.test` or if personal models are evaluated; else None. validation: the
    held-out samples with `data.validation`, each client's (`from: clients`) or all of them as one entry (`from: pool`);
    else None. unseen: the samples of the clients that never train (`clients.unseen`), which hold none out for
    validation; None if there are none.
    """

    train: Shards
    test: Shards | None = None
    validation: Shards | None = None
    unseen: "Split | None" = None

    @cached_property
    def dealt(self) -> Shards:
        """Every client's training samples, unseen clients last."""
        return self.train if self.unseen is None else self.train.join(self.unseen.train)

    @cached_property
    def newcomers(self) -> np.ndarray:
        """The unseen clients that have training samples and test samples, int64, ascending."""
        if self.unseen is None or self.unseen.test is None:
            return np.zeros(0, dtype=np.int64)
        return len(self.train) + np.flatnonzero((self.unseen.train.sizes > 0) & (self.unseen.test.sizes > 0))


def split_samples(
    source: DataSource, partition: Partition, data: Dataset, clients: int, seed: int, unseen: int = 0
) -> Split:
    """Hold out samples for testing and validation, as `data.test` and `data.validation` ask, and deal the rest.

    With `data.test` the data are merged. The run's seed keys the held-out samples, even if the partition has a seed of
    its own. `unseen` clients after the others never train. Raises UserError if the partition is impossible, or a
    fraction is too small to hold out any sample.
    """
    try:
        with key_draws(True, seed, "split"):  # of code of the user's own
            return _split_samples(source, partition, data, clients, clients + unseen, seed)
    except UserError as error:  # a partition knows only the number of clients that it deals to
        if not unseen:
            raise
        raise UserError(str(error).replace("clients.total", "clients.total + clients.unseen")) from None


def _split_samples(
    source: DataSource, partition: Partition, data: Dataset, clients: int, dealt: int, seed: int
) -> Split:
    """Split the samples among `dealt` clients; the first `clients` of them train."""
    validation, test = source.validation, source.test
    if partition.splits:
        return _set_apart(_read_split(source, partition, data, dealt, seed), clients)
    held = tests = None
    if validation is not None and validation.source == "pool":
        count = _count(validation.fraction, len(data.y_train))
        pool = draw_stratified(data.y_train, count, generator(seed, "validation"))
        held, rest = Shards.from_lists([pool]), np.setdiff1d(np.arange(len(data.y_train)), pool)
        left = _deal(partition, take_train(data, rest), dealt, seed)
        shards = Shards(rest[left.indices], left.offsets)
        _refuse_nothing("validation", held, validation.fraction, "the training set")
    else:
        shards = _deal(partition, data, dealt, seed)
    if test is not None:
        taken = partial(_count, test.fraction, up=True)  # as PFLlib
        shards, tests = hold_out(shards, data.y_train, taken, seed, "client test", test.stratify)
        _refuse_nothing("test", tests, test.fraction, "any client that has two")
    if validation is not None and held is None:
        shards, held = hold_out(shards, data.y_train, partial(_count, validation.fraction), seed, clients=clients)
        _refuse_nothing("validation", held, validation.fraction, "any client")
    return _set_apart(Split(shards, tests, held), clients)


def _set_apart(split: Split, clients: int) -> Split:
    """Return a split with all clients after the first ones as unseen; validation samples of theirs are not used."""
    dealt = len(split.train)
    if dealt == clients:
        return split
    train, test, held = split.train, split.test, split.validation
    unseen = Split(train.take(clients, dealt), None if test is None else test.take(clients, dealt))
    return Split(
        train.take(0, clients),
        None if test is None else test.take(0, clients),
        held.take(0, clients) if held is not None and len(held) == dealt else held,
        unseen,
    )


def _deal(partition: Partition, data: Dataset, clients: int, seed: int) -> Shards:
    """Deal the training samples, and look at what a partition of the user's own returns. Raises UserError."""
    return partition.check_dealt("split", partition.split(data, clients, seed), clients, len(data.y_train))


def _read_split(source: DataSource, partition: Partition, data: Dataset, clients: int, seed: int) -> Split:
    """Return the split that a partition lists itself. Raises UserError if `data` sets another one."""
    samples = len(data.y_train)
    shards = _deal(partition, data, clients, seed)
    held, tests = partition.get_held_out("validation"), partition.get_held_out("test")
    if source.validation is not None:
        raise UserError(
            "data.validation: the split is that of partition.path, which may list validation samples itself"
        )
    if source.test is not None and source.test != type(source.test)():
        raise UserError("data.test: has options, but the test samples are those of partition.path")
    if source.test is None:
        tests = None
    elif tests is None:
        raise UserError("data.test: the file of partition.path lists no test samples")
    else:
        partition.check_dealt("get_held_out", tests, clients, samples)
    if held is not None:
        pool = isinstance(held, Shards) and len(held) == 1
        partition.check_dealt("get_held_out", held, 1 if pool else clients, samples)
    return Split(shards, tests, held)


def _refuse_nothing(section: str, held: Shards, fraction: float, whose: str) -> None:
    if not len(held.indices):
        raise UserError(f"data.{section}.fraction: found {fraction:g}; that is not a single sample of {whose}")


def hold_out(
    shards: Shards,
    labels: np.ndarray,
    count: Callable[[int], int],
    seed: int,
    purpose: str = "validation",
    stratify: bool = True,
    clients: int | None = None,
) -> tuple[Shards, Shards]:
    """Hold out `count` of the samples of the first `clients` (None: of all); return the shards for training, and what
    each client holds out.

    A client's own draw leaves it at least one sample. Partitions that give a sample to several clients, or to one
    client several times, lose every copy of a held-out sample, so that no client trains on it.
    """
    held = []
    for client in range(len(shards)):
        own = np.unique(shards[client])
        if taken := count(len(own)) if clients is None or client < clients else 0:
            rng = generator(seed, purpose, client=client)
            drawn = draw_stratified(labels[own], taken, rng) if stratify else np.sort(rng.permutation(len(own))[:taken])
            own = own[drawn]
        held.append(own if taken else own[:0])
    out = Shards.from_lists(held)
    is_kept = np.ones(len(labels), dtype=bool)
    is_kept[out.indices] = False
    kept = is_kept[shards.indices]
    before = np.concatenate([[0], np.cumsum(kept)])
    return Shards(shards.indices[kept], before[shards.offsets]), out


def _count(fraction: float, samples: int, up: bool = False) -> int:
    """Return the fraction of some samples, leaving one: to the nearest integer (half up), or up as in scikit-learn."""
    count = math.ceil(fraction * samples - 1e-9) if up else int(fraction * samples + 0.5)
    return max(min(count, samples - 1), 0)


def draw_stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ascending positions of samples drawn class by class: floor(count x share), then the largest remainders."""
    sizes = np.bincount(labels)
    taken, remainders = np.divmod(count * sizes, len(labels))
    order = np.lexsort((rng.random(len(sizes)), -remainders))
    taken[order[: count - taken.sum()]] += 1
    members = rng.permutation(len(labels))
    members = members[np.argsort(labels[members], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(members[rank < np.repeat(taken, sizes)])
