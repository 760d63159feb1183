"""Data kept by a process on its training device between calls: its clients' shards and, with one actor, their states.

A limit on the bytes evicts what was used least recently: a shard is dropped (the data set is in shared memory), a state
moves to the host. No number depends on what is kept.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.common.vectors import Vectors, download, mark_read
from fedray.datasets.dataset import ClientSamples, ResidentSamples, Samples
from fedray.engine.messages import count_bytes
from fedray.engine.state import ClientState, StateRef, load_state

KEPT = 0.2
"""Part of a process's share of a GPU's memory for what it keeps there between calls."""
Spill = Callable[[Vectors], ClientState]
"""Stores the state of a client that leaves the device, given on the CPU."""


class Residence:
    """The shards and states on one device, least recently used first, of at most `limit` bytes together.

    spill: where evicted states go; by default this process's memory. used: bytes in use.
    """

    def __init__(self, samples: Samples, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.spill: Spill = lambda state: state
        self._samples = samples
        self._held: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        self._shards: dict[int, ResidentSamples] = {}

    def take(self, client: int, indices: np.ndarray) -> ClientSamples:
        """Return a client's samples on the device; they are copied there unless they are there already."""
        if client not in self._shards:
            size = len(indices) * self._samples.bytes_each
            shard = ResidentSamples(self._samples, *self._samples.gather(indices))
            if size > self.limit:
                return shard
            self._shards[client] = shard
            self._hold(client, size, lambda: self._shards.pop(client))
        self._held.move_to_end(client)
        return self._shards[client].mark_read()

    def keep(self, vectors: Vectors) -> "DeviceState":
        """Return a client's new state as one that stays on the device until it has to leave."""
        state = DeviceState(vectors, self)
        key, reference = state.key, weakref.ref(state)

        def evict() -> None:
            if (kept := reference()) is not None:
                kept.evict()

        self._hold(key, count_bytes(vectors.values()), evict)
        weakref.finalize(state, self._drop, key)
        return state

    def mark_used(self, key: object) -> None:
        """Note that a state is used, so that others are evicted first."""
        if key in self._held:
            self._held.move_to_end(key)

    def _hold(self, key: object, size: int, evict: Callable[[], Any]) -> None:
        self._held[key] = size, evict
        self.used += size
        while self.used > self.limit:
            oldest = next(iter(self._held))
            leave = self._held[oldest][1]
            self._drop(oldest)
            leave()

    def _drop(self, key: object) -> None:
        size, _ = self._held.pop(key, (0, None))
        self.used -= size


class DeviceState(StateRef):
    """A client's state on a training device, or, once evicted, where `Residence.spill` has put it."""

    def __init__(self, vectors: Vectors, residence: Residence) -> None:
        self.key, self.sha256 = object(), None
        self._there: Vectors | None = vectors
        self._residence = residence
        self._evicted: ClientState | None = None

    def get_on_device(self) -> Vectors | None:
        """Return the vectors on the device; None if they have left it."""
        self._residence.mark_used(self.key)
        mark_read((self._there or {}).values())
        return self._there

    def load(self) -> Vectors:
        if self._evicted is not None:
            return load_state(self._evicted)
        assert self._there is not None  # noqa: S101 (a state is on the device until it is evicted)
        return Vectors(zip(self._there, download(list(self._there.values())), strict=True))

    def evict(self) -> None:
        """Move the state to the host."""
        if self._evicted is None:
            self._evicted, self._there = self._residence.spill(self.load()), None

    def __reduce__(self) -> tuple[type, tuple[dict[str, Tensor]]]:
        return Vectors, (dict(self.load()),)


def limit_memory(share: float) -> int:
    """Return the bytes that a process may keep on its GPU. share: its fraction of the GPU."""
    return int(KEPT * share * torch.cuda.mem_get_info()[1])
