"""Messages between the server and the processes that train clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedray.common.vectors import Vectors
from fedray.engine.state import ClientState


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Message to every client of a round t, from 0, with η_t = `lr`, theta `(P,)` and buffers `(B,)`, both float32.

    `message` holds the method's own vectors (`Algorithm.message`). The round has `cohort` clients, whom the probes look
    at after their training if it is `measured`.
    """

    round: int
    lr: float
    theta: Tensor
    buffers: Tensor
    message: Vectors
    cohort: int
    measured: bool = False

    @property
    def kind(self) -> str:
        """The name under which such calls are timed: probes can take many times as long as the training."""
        return "train measured" if self.measured else "train"


@dataclass(frozen=True)
class ClientTask:
    """One client's part of a round: its id, its weight π_i and its state (empty before its first participation)."""

    client: int
    weight: float
    state: ClientState


@dataclass
class Reply:
    """Results of some clients of a round; all but the sums, and the bytes that they upload, map a client to its own.

    sums: reduced uploads, int64, as `Accumulator` has them. each: uploads that are not reduced. diverged: why a client
    diverged. probes: its measurements.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    each: dict[int, Vectors] = field(default_factory=dict)
    states: dict[int, ClientState] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)
    probes: dict[int, dict[str, float]] = field(default_factory=dict)
    sent: int = 0


@dataclass(frozen=True)
class PersonalEval:
    """The tests that personal models take: on the client's own test samples, the whole test set, own training samples.

    epochs: of fine-tuning, ascending; `everyone` and `train` apply to the last one only. newcomers: the clients have
    never trained: test the model that each receives, and its own after each number of epochs by the method's rule for
    newcomers, on its own test samples. Replaces the other tests.
    """

    epochs: tuple[int, ...]
    own: bool
    everyone: bool
    train: bool = False
    newcomers: bool = False

    @property
    def kind(self) -> str:
        """The name under which such calls are timed: newcomers may be trained although the others are only tested, and
        models that are tested often may be fine-tuned now and then."""
        name = "evaluate_newcomers" if self.newcomers else "evaluate_personal"
        return name + " tuned" * (self.epochs[-1] > 0)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the total size in bytes; a tensor that appears under two names counts once."""
    return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def join(parts: Sequence[Reply]) -> Reply:
    """Join the per-client parts of all replies; the processes' sums stay separate."""
    whole = Reply()
    for part in parts:
        whole.states |= part.states
        whole.each |= part.each
        whole.diverged |= part.diverged
        whole.probes |= part.probes
        whole.sent += part.sent
    return whole
