"""All that a run is between two rounds."""

import hashlib
from dataclasses import dataclass, field

from torch import Tensor

from fedray.common.vectors import Vectors


@dataclass(frozen=True)
class State:
    """All that a run is after `round` rounds, never modified. There is no generator state: every draw is keyed."""

    round: int
    theta: Tensor
    buffers: Tensor
    server: Vectors
    clients: dict[int, Vectors] = field(default_factory=dict)
    active: dict[int, int] = field(default_factory=dict)
    """client -> the round (1-based) that last changed its state."""
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time of all rounds, evaluation excluded."""
    dropped: int = 0
    """How often a client was left out of a round because its numbers went wrong."""

    def sha256(self) -> str:
        """Hash of server, every client, buffers and round: equal exactly when everything that matters is."""
        digest = hashlib.sha256(str(self.round).encode())
        parts = [("theta", self.theta), ("buffers", self.buffers)]
        parts += [(f"server.{name}", v) for name, v in sorted(self.server.items())]
        for i, state in sorted(self.clients.items()):
            parts += [(f"client.{i}.{name}", v) for name, v in sorted(state.items())]
        for name, v in parts:
            digest.update(f"{name}{v.dtype}{tuple(v.shape)}".encode())
            digest.update(v.contiguous().numpy().tobytes())
        return digest.hexdigest()


def theta_sha256(theta: Tensor) -> str:
    """SHA-256 of the parameters' bytes (float32, little-endian)."""
    return hashlib.sha256(theta.contiguous().numpy().astype("<f4").tobytes()).hexdigest()
