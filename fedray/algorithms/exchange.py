"""What the engine and a method hand each other: a client and the server to the method, uploads back.

The contract is that of `fedray.algorithms.base`. All vectors are float32 `(P,)` in `model.parameters()` order unless
said otherwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from fedray.common.vectors import Vectors
from fedray.models.network import Layout, Output


class Forward(Protocol):
    """The forward pass at some theta."""

    def __call__(self, x: Tensor) -> Output: ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """The head alone: features `(n, d)` to logits."""


Loss = Callable[[Forward], Tensor]
"""A loss of one batch: given the forward pass at some theta, the scalar to differentiate."""
Part = Literal["all", "body", "head", "norm", "not_norm"]
"""Which parameters: the layout marks the head (the rest is the body) and, by module type, normalisation layers."""
Share = Part | Literal["none"]
"""As `Part`, or nothing."""
ParameterGroup = Share | Literal["unbiased"]
"""As `Share`; unbiased: all but the head's bias."""


@dataclass(frozen=True)
class Sum:
    """One upload: the server receives Σ_i weight_i · vector_i over the cohort, exactly, whatever the order.

    The same tensor in two uploads is sent once (that is what the cost of a method counts); scalars are free.
    """

    vector: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class PerClient:
    """One upload that reaches the server from every client by itself: stacked `(M, ...)`, by ascending client id.

    For what cannot be summed (classifiers that teach as an ensemble). Its traffic grows with the cohort.
    """

    vector: Tensor


Uploads = Mapping[str, Sum | PerClient]


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, ascending by id, before they train.

    samples: n_i, int64 `(M,)`. count_labels(): n_ic, samples of each client in each class, int64 `(M, C)`.
    """

    samples: np.ndarray
    count_labels: Callable[[], np.ndarray]


@dataclass
class Server:
    """What the server knows when it aggregates.

    theta: x, the global model. state: the algorithm's own vectors. clients: N. cohort: M, the clients that took part.
    round: t, from 0. lr: η_t, the local learning rate of this round. server_lr: η_g. first_lr: η_0. lr_decay: η_{t+1}
    over η_t.
    """

    theta: Tensor
    state: Vectors
    layout: Layout
    clients: int
    cohort: int = 0
    round: int = 0
    lr: float = 0.0
    server_lr: float = 1.0
    first_lr: float = 0.0
    lr_decay: float = 1.0


class SecondModel(ABC):
    """Another model in a client, with running statistics, random draws (dropout) and momentum of its own.

    Whatever is done with it leaves the first model bit for bit where it would be without. Its parameters are a vector
    that the method keeps in `c.state`; its running statistics the engine keeps.
    """

    @abstractmethod
    def grad(self, theta: Tensor, loss: Loss | None = None, part: Part = "all") -> Tensor:
        """As `Client.grad`, for the second model at theta `(P,)`."""

    @abstractmethod
    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `Client.grad_with`, for the second model at theta `(P,)`."""

    @abstractmethod
    def predict(self, theta: Tensor) -> Output:
        """As `Client.predict`, with the second model's running statistics."""

    @abstractmethod
    def step(self, theta: Tensor, q: Tensor) -> Tensor:
        """The canonical step (clip, weight decay, momentum, η_k) from theta `(P,)` along q `(P,)`; the new theta."""

    @abstractmethod
    def adopt_statistics(self) -> None:
        """Take over the first model's running statistics as they are now."""

    @abstractmethod
    def use(self, theta: Tensor) -> None:
        """In `prepare`: test theta `(P,)` with the second model's running statistics as the personal model."""


@dataclass(kw_only=True, eq=False)
class Client(ABC):
    """What a local step sees.

    theta_0: x, the parameters received. theta: y, the current ones. message: what the server broadcasts beside theta.
    state: what this client keeps between rounds; assign to it in `upload`. local: scratch vectors of this round.
    x, y: the batch, its inputs and int64 labels. step: k. steps: K_i, the steps this client makes in the round.
    lr: η_t. momentum: m of the local optimiser. weight: π_i, its share in the average of the cohort.
    counted_steps: K_i where a method divides by it, `steps` unless `training.nominal_steps` (D-23). first_lr: η_0.
    batch_size: samples of a whole batch. first: whether the client has kept nothing yet, for methods whose clients keep
    something: its first activity.
    """

    theta_0: Tensor
    theta: Tensor = field(init=False)
    message: Vectors
    state: Vectors
    local: Vectors = field(default_factory=Vectors, init=False)
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    step: int = field(default=0, init=False)
    steps: int
    lr: float
    momentum: float
    weight: float
    counted_steps: float
    first_lr: float
    batch_size: int
    first: bool

    @property
    @abstractmethod
    def second(self) -> SecondModel:
        """The client's second model; it starts with the run's initial running statistics."""

    @property
    @abstractmethod
    def total_clients(self) -> int:
        """N."""

    @property
    @abstractmethod
    def total_samples(self) -> int:
        """Σ n_j over all clients."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """η_k of this local step, by `Algorithm.rate` and `training.lr_decay_within`; η_t before the first one."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Whole passes over the shard that were made before this step."""

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Passes that the round will make, the last one perhaps not whole."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Which slice of theta is what."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """n_i: training samples of this client."""

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """n_ic: training samples of this client in each class, float32 `(C,)`."""

    @property
    @abstractmethod
    def all_counts(self) -> Tensor:
        """n_jc: training samples of every client in each class, float32 `(N, C)`; what a method shares beforehand."""

    @property
    @abstractmethod
    def update(self) -> Tensor:
        """u_i = theta - theta_0."""

    @property
    @abstractmethod
    def shared_update(self) -> Tensor:
        """u_i of the shared parameters alone (`Algorithm.shares`), in theta's order: what the engine sends."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @abstractmethod
    def grad(self, theta: Tensor, loss: Loss | None = None, part: Part = "all") -> Tensor:
        """Mini-batch gradient at `theta` of the mean loss (default: cross-entropy), without weight decay or clip.

        0 outside `part`; for the head nothing is propagated through the body. The result is the caller's: no later call
        changes it.
        """

    @abstractmethod
    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `grad`, and the gradient by `extra`, of any shape, which the loss receives as its second argument."""

    @abstractmethod
    def full_grad(self, theta: Tensor) -> Tensor:
        """Gradient at `theta` of the mean cross-entropy over all of this client's samples."""

    @abstractmethod
    def predict(self, theta: Tensor) -> Output:
        """Output on the batch at `theta`, without gradient, in evaluation mode.

        At the received parameters (`c.predict(c.theta_0)`: this very tensor) the running statistics are those received
        with them; at any other theta the present ones, which every step moves.
        """

    @abstractmethod
    def batches(self, purpose: str, size: int | None = None, share: float = 1.0) -> Iterator[int]:
        """One pass over the shard in `begin`, `upload` or `prepare`: `for _ in c.batches("alignment"): c.grad(...)`.

        Each turn sets `x` and `y`. Gradients taken there count neither in the training loss nor for running statistics.

        Args:
            purpose: Keys the order; passes of one client and round need different ones.
            size: Samples per batch; default that of the local steps.
            share: The part of the shard that is drawn, in (0, 1].

        Yields:
            The number of the batch, from 0.
        """

    @abstractmethod
    def draw(self) -> tuple[Tensor, Tensor]:
        """Another batch x, y of this step, drawn from the shard without repetition, of the size of the first.

        Every call gives one of its own.
        """

    @abstractmethod
    def shard(self, theta: Tensor) -> tuple[Output, Tensor]:
        """Output on all of this client's samples, not augmented, at `theta`, and their labels; else as `predict`."""


@dataclass(frozen=True)
class Received:
    """The uploads of a round by name: a Sum's sum, a PerClient's stack `(M, ...)`.

    `update` is U = Σ_i π_i u_i, 0 outside the shared parameters; `shared_update` holds these alone.
    """

    sums: Vectors = field(default_factory=Vectors)

    def with_update(self, update: Tensor) -> "Received":
        """Return the same uploads with another U `(P,)`."""
        return Received(Vectors(self.sums, update=update))

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.sums[name]
        except KeyError:
            raise AttributeError(f"no upload named {name!r}; there are: {', '.join(self.sums)}") from None
