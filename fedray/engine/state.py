"""The complete state of a run between two rounds."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedray.common.errors import UserError
from fedray.common.vectors import Vectors, digest_tensors


class StateRef(ABC):
    """A client's state that is held elsewhere: in another process's memory, or in a file.

    `sha256` is its `digest_tensors`, once a process that holds it has computed it.
    """

    sha256: str | None

    @abstractmethod
    def load(self) -> Vectors:
        """Return the state, perhaps in read-only memory. Raises StateDamaged if its file is not as written."""


ClientState = Vectors | StateRef


class StateDamaged(Exception):
    """Raised if a client's state cannot be read from its file; args: the file's name and the reason."""


def load_state(state: ClientState) -> Vectors:
    """Return the state itself, wherever it is held."""
    return state if isinstance(state, Vectors) else state.load()  # to ask for the abstract class takes longer


@dataclass(frozen=True)
class State:
    """A run after `round` rounds, never modified. There is no generator state: every draw is keyed."""

    round: int
    theta: Tensor
    buffers: Tensor
    server: Vectors
    clients: Mapping[int, ClientState] = field(default_factory=dict)
    active: Mapping[int, int] = field(default_factory=dict)
    """client -> the round (1-based) that last changed its state."""
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time of all rounds, without evaluation."""
    dropped: int = 0
    """Number of times that a client was left out of a round because its numbers went wrong."""
    tables: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    """Tables of the latest evaluation, name -> column -> values: `clients` and `confusion`."""
    evaluation_seconds: float = 0.0
    """Wall time of all evaluations."""
    sent: tuple[int, int] = (0, 0)
    """Bytes sent to the clients and by the clients, in all rounds together."""
    frozen: str = ""
    """Hash of the weights that no run changes (`Network.frozen_sha256`); they are not in the state."""

    def digest(self) -> str:
        """Hash of round, theta, buffers, server vectors, frozen weights and each client's hash; equal exactly if all of
        these are.
        """
        server = Vectors({"theta": self.theta, "buffers": self.buffers})
        server |= {f"server.{name}": v for name, v in self.server.items()}
        digest = hashlib.sha256(f"{self.round} {digest_tensors(server)}{self.frozen}".encode())
        for i, state in sorted(self.clients.items()):
            digest.update(f" {i} {digest_state(state)}".encode())
        return digest.hexdigest()


def refuse_other_weights(state: State, theta: Tensor, frozen: str) -> None:
    """Raise UserError if a checkpoint's state belongs to a model with other trained or frozen weights than this one."""
    if len(state.theta) != len(theta):
        raise UserError(f"checkpoint: holds {len(state.theta):,} trained parameters, the model has {len(theta):,}")
    if state.frozen != frozen:
        raise UserError(
            "checkpoint: belongs to other frozen weights than the model has here; another PyTorch draws others, so "
            "continue with the version that began the run"
        )


def digest_state(state: ClientState) -> str:
    """Return the hash of a client's state: the stored one, or computed here."""
    known = state.sha256 if isinstance(state, StateRef) else None
    return known or digest_tensors(load_state(state))


def digest_theta(theta: Tensor) -> str:
    """SHA-256 of the parameters' bytes (float32, little-endian)."""
    return hashlib.sha256(theta.contiguous().numpy().astype("<f4").tobytes()).hexdigest()
