"""Clients' states in Ray's object store, and who trains whom so that they seldom travel."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import ray
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.common.vectors import Vectors
from fedray.datasets.dataset import as_tensor
from fedray.engine.state import ClientState, StateRef

Arrays = dict[str, np.ndarray]
STAYS_FROM = 64 << 10
"""Bytes from which on a state stays in the object store; smaller ones travel with the reply."""
SLACK = 1.1
"""How much longer than longest-first's the largest share may be for clients to stay where their states lie."""


@dataclass(eq=False)
class ObjectState(StateRef):
    """A state in the object store of the node that computed it, owned by the trial, so that it survives its actor.

    Pickled it is the reference alone. `load` gives tensors over the store's memory, which the version counters of
    `engine.guard` protect; a state of another node is copied to this node's store first.
    """

    ref: "ray.ObjectRef[Arrays]"
    sha256: str | None = None

    def load(self) -> Vectors:
        """As in the base class. Raises ray.exceptions.ObjectLostError where its node is gone."""
        return Vectors({name: as_tensor(array) for name, array in ray.get(self.ref).items()})


def states_stay(algorithm: Algorithm) -> bool:
    """Whether states stay; where the server answers each client they pass through it anyway."""
    return type(algorithm).reply is Algorithm.reply


def note_hashes(hashes: Mapping[int, str], states: Mapping[int, ClientState]) -> None:
    """Keep the hashes of states in the object store, so that each is computed once."""
    for i, digest in hashes.items():
        if isinstance(state := states[i], ObjectState):
            state.sha256 = digest


def pack(state: ClientState) -> "Arrays | StateRef":
    """A state as it travels: a reference, or arrays."""
    return state if isinstance(state, StateRef) else as_arrays(state)


def unpack(state: "Arrays | StateRef") -> ClientState:
    """The other way; the tensors are copies."""
    if isinstance(state, StateRef):
        return state
    return Vectors({name: copy_tensor(array) for name, array in state.items()})


def as_arrays(vectors: Mapping[str, Tensor]) -> Arrays:
    """NumPy arrays over the same memory."""
    return {name: v.numpy() for name, v in vectors.items()}


def copy_tensor(array: np.ndarray) -> Tensor:
    """A tensor of its own: what comes out of the object store is read-only and shared."""
    return as_tensor(array).clone()


def assign_longest_first(loads: Sequence[int], parts: int) -> list[list[int]]:
    """Deal positions to parts: the longest first, each to the least loaded (Graham 1969).

    The largest part's load is at most 4/3 - 1/(3 parts) of the best possible.

    Args:
        loads: of each position.
        parts: number of parts.

    Returns:
        For each part the positions, of 0..len(loads)-1.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
        load, part = heapq.heappop(heap)
        shares[part].append(k)
        heapq.heappush(heap, (load + loads[k], part))
    return shares


def assign_to_actors(loads: Sequence[int], homes: Sequence[int | None], parts: int) -> list[list[int]]:
    """As `longest_first`, but whoever has a home stays there as long as the balance allows.

    Args:
        loads: of each position.
        homes: the part where each one's state lies; None where it has none.
        parts: how many.

    Returns:
        Positions of each part. The largest part's load is at most SLACK times that of `longest_first`.
    """
    balanced = assign_longest_first(loads, parts)
    if all(home is None for home in homes):
        return balanced
    limit = SLACK * max(sum(loads[k] for k in share) for share in balanced)
    shares: list[list[int]] = [[] for _ in range(parts)]
    sums = [0] * parts
    for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
        home = homes[k]
        least = min(range(parts), key=sums.__getitem__)
        part = home if home is not None and sums[home] + loads[k] <= limit else least
        shares[part].append(k)
        sums[part] += loads[k]
    return shares if max(sums) <= limit else balanced
