"""The clients' own test samples, for personal evaluation."""

import numpy as np

from fedray.partitions.shards import Shards

SHARE_SIZE = 1000


def draw_by_share(counts: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Shards:
    """Draw floor(1000 x the class's share of the shard) test samples of each class, without repetition (FedSOL).

    Every client draws independently, so test sets overlap. If a class has fewer test samples, all of them are used.

    Args:
        counts: training samples `(clients, classes)`.
        labels: of the test set.
        rng: the stream to draw from.
    """
    members = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    wanted = SHARE_SIZE * counts // np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Shards.from_lists(
        [
            np.concatenate([rng.choice(m, min(n, len(m)), replace=False) for m, n in zip(members, row, strict=True)])
            for row in wanted
        ]
    )


def split_in_proportion(counts: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Shards:
    """Deal each test sample to one client, each class in proportion to the training samples of its holders (FedGELA).

    Cut points are floor(cumulative share x test samples), as in the training split. Classes without a holder stay
    unused.

    Args:
        counts: training samples `(clients, classes)`.
        labels: of the test set.
        rng: the stream to draw from.
    """
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label, held in enumerate(counts.T):
        if held.sum() == 0:
            continue
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(held) * len(members) // held.sum()
        owner[members] = np.repeat(np.arange(len(counts)), np.diff(cuts, prepend=0))
    return Shards.from_owner(owner, len(counts))


def split_naturally(train: np.ndarray, test: np.ndarray, shards: Shards, rng: np.random.Generator) -> Shards:
    """Return the test samples with a client's natural id; the pieces of a divided id share them evenly.

    Args:
        train: natural id of each training sample.
        test: natural id of each test sample.
        shards: each client's training samples, all of one id. A client without any gets no test set.
        rng: the stream to draw from.
    """
    holding = np.flatnonzero(shards.sizes)
    ids = train[shards.indices[shards.offsets[holding]]]
    owner = np.full(len(test), -1, dtype=np.int64)
    for natural in np.unique(ids):
        members, holders = rng.permutation(np.flatnonzero(test == natural)), holding[ids == natural]
        owner[members] = holders[np.arange(len(members)) % len(holders)]
    return Shards.from_owner(owner, len(shards))
