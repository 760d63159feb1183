"""The training samples of each client: one index array for all, and one offset per client; clients' test samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SHARE_SIZE = 1000


@dataclass(frozen=True)
class Shards:
    """Client i holds the samples `indices[offsets[i]:offsets[i + 1]]` (int64; offsets has one entry more than clients).

    Memory is proportional to the samples held plus the number of clients, since only offsets are kept for a client.
    """

    indices: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, parts: Sequence[np.ndarray]) -> "Shards":
        """Build from one index array per client."""
        if odd := [part.dtype for part in map(np.asarray, parts) if len(part) and part.dtype.kind not in "iu"]:
            raise TypeError(f"samples are {odd[0]}; integers are required")
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        indices = np.concatenate(parts).astype(np.int64, copy=False) if len(parts) else np.zeros(0, dtype=np.int64)
        return cls(indices, offsets)

    @classmethod
    def from_owner(cls, owner: np.ndarray, clients: int) -> "Shards":
        """Build from the client of each sample, shape (n,), -1 for an unused sample; the order within a client is
        kept.
        """
        order = np.argsort(owner, kind="stable")
        order = order[np.searchsorted(owner[order], 0) :]
        offsets = np.zeros(clients + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner[owner >= 0], minlength=clients), out=offsets[1:])
        return cls(order.astype(np.int64, copy=False), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        """Return the training samples of one client, int64 `(n_i,)`."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the samples per client, int64 `(clients,)`; computed once, since a round must not visit every
        client.
        """
        sizes = np.diff(self.offsets)
        sizes.setflags(write=False)
        return sizes

    def take(self, first: int, last: int) -> "Shards":
        """Return the clients from `first` to before `last`, without a copy of their samples."""
        offsets = self.offsets[first : last + 1]
        return Shards(self.indices[offsets[0] : offsets[-1]], offsets - offsets[0])

    def join(self, others: "Shards") -> "Shards":
        """Return these clients and then others."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + others.offsets[1:]])
        return Shards(np.concatenate([self.indices, others.indices]), offsets)

    def __getstate__(self) -> dict[str, np.ndarray]:
        return {"indices": self.indices, "offsets": self.offsets}

    def count_labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the samples per client and class, int64 `(clients, classes)`."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        cells = owner * num_classes + labels[self.indices]
        return np.bincount(cells, minlength=len(self) * num_classes).reshape(len(self), num_classes)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of indices and offsets, as little-endian int64."""
        return hashlib.sha256(self.offsets.astype("<i8").tobytes() + self.indices.astype("<i8").tobytes()).hexdigest()


def draw_by_share(counts: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Shards:
    """Draw floor(1000 x the class's share of the shard) test samples of each class, without repetition (FedSOL).

    Every client draws independently, so test sets overlap. If a class has fewer test samples, all of them are used.
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
    """
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label, holders in enumerate(counts.T):
        if holders.sum() == 0:
            continue
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(holders) * len(members) // holders.sum()
        owner[members] = np.repeat(np.arange(len(counts)), np.diff(cuts, prepend=0))
    return Shards.from_owner(owner, len(counts))


def split_naturally(train: np.ndarray, test: np.ndarray, shards: Shards, rng: np.random.Generator) -> Shards:
    """Return the test samples with a client's natural id; the pieces of a divided id share them evenly."""
    holding = np.flatnonzero(shards.sizes)
    ids = train[shards.indices[shards.offsets[holding]]]
    known, held = np.unique(ids, return_inverse=True)
    at = np.minimum(np.searchsorted(known, test), len(known) - 1)
    tested, holders = (Shards.from_owner(of, len(known)) for of in (np.where(known[at] == test, at, -1), held))
    owner = np.full(len(test), -1, dtype=np.int64)
    for i in range(len(known)):
        members, theirs = rng.permutation(tested[i]), holding[holders[i]]
        owner[members] = theirs[np.arange(len(members)) % len(theirs)]
    return Shards.from_owner(owner, len(shards))
