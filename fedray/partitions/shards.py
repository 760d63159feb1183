"""The training samples of each client: one index array for all, and one offset per client."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


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
