"""Clients' states in Ray's object store, and an assignment of clients to actors that seldom moves them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import ray
from torch import Tensor

from fedray.common.vectors import Vectors
from fedray.datasets.dataset import as_tensor
from fedray.engine.state import ClientState, StateRef

Arrays = dict[str, np.ndarray]
STAYS_FROM = 64 << 10
"""Size in bytes from which a state stays in the object store; smaller ones travel with the reply."""
SLACK = 1.1
"""How much the largest share may exceed the one without homes so that clients can stay with their states."""


@dataclass(eq=False)
class ObjectState(StateRef):
    """A state in the object store of the node that computed it, owned by the trial, so that it survives its actor.

    Pickling keeps only the reference. `load` gives tensors over the store's memory, which the version counters of
    `engine.guard` protect; a state on another node is copied to this node's store first.
    """

    ref: "ray.ObjectRef[Arrays]"
    sha256: str | None = None

    def load(self) -> Vectors:
        """Return the state. Raises ray.exceptions.ObjectLostError if its node is gone."""
        return as_vectors(ray.get(self.ref))


def pack(state: ClientState) -> "Arrays | StateRef":
    """Return a state in the form that is sent: a reference, or arrays."""
    return state if isinstance(state, StateRef) else as_arrays(state)


def unpack(state: "Arrays | StateRef") -> ClientState:
    """Reverse `pack`; the tensors are copies."""
    return state if isinstance(state, StateRef) else as_vectors(state, copied=True)


def as_arrays(vectors: Mapping[str, Tensor]) -> Arrays:
    """Return NumPy arrays that share the tensors' memory."""
    return {name: v.numpy() for name, v in vectors.items()}


def as_vectors(arrays: Arrays, copied: bool = False) -> Vectors:
    """Return tensors over the arrays' memory, or copies: arrays from the object store are read-only and shared."""
    tensors = ((name, as_tensor(array)) for name, array in arrays.items())
    return Vectors({name: tensor.clone() if copied else tensor for name, tensor in tensors})


def assign_to_actors(loads: Sequence[int], homes: Sequence[int | None], parts: int) -> list[list[int]]:
    """Return the positions of each part, out of 0..len(loads)-1, at home, where their states are, if balance allows.

    Those without a home go longest first to the least loaded part (Graham 1969). If all do, the largest part's load is
    at most 4/3 - 1/(3 parts) of the best possible; with homes it is at most SLACK times that one's.
    """

    def assign(homes: Sequence[int | None], limit: float) -> tuple[list[list[int]], int]:
        """Return the positions of each part, at home up to the limit, and the largest load."""
        shares: list[list[int]] = [[] for _ in range(parts)]
        sums = [0] * parts
        for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
            part = homes[k]
            if part is None or sums[part] + loads[k] > limit:
                part = min(range(parts), key=sums.__getitem__)
            shares[part].append(k)
            sums[part] += loads[k]
        return shares, max(sums)

    balanced, least = assign([None] * len(loads), 0)
    kept, most = assign(homes, SLACK * least)
    return kept if most <= SLACK * least else balanced
