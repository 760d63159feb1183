"""Types exchanged between engine and method: a client and the server for the method, uploads back.

`fedray.algorithms.base` says what each side may rely on. All vectors are float32 `(P,)` in `model.parameters()` order
unless said otherwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from fedray.algorithms.descent import Rule
from fedray.common.errors import UserError, truncate_repr
from fedray.common.vectors import Vectors
from fedray.models.network import Layout, Output


class Forward(Protocol):
    """Forward pass at some theta.

    Examples:
        >>> def decay_logits(forward: Forward) -> Tensor:  # a `Loss` that `c.grad(theta, decay_logits)` differentiates
        ...     return forward(client.x).logits.square().mean()
        >>> decay_logits(lambda x: Output(x, x))  # a model whose features and logits are its inputs, 3 and 4
        tensor(12.5000)
    """

    def __call__(self, x: Tensor) -> Output: ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """The head alone: maps features `(n, d)` to logits."""


Loss = Callable[..., Tensor]
"""Loss of one batch, to differentiate: a method `loss(self, forward, x, y, *tensors)`, or a function of the forward
pass alone.

A method reads its arguments and the method's options, nothing else; what changes from client to client or from round to
round is a tensor among its arguments, which is moved to theta's device if it is on another. So a GPU can launch its
gradient from a recording, ten times as fast as a function's with a small model.

Examples:
    >>> class Smooth(Algorithm):
    ...     share: float = 0.1
    ...
    ...     def loss(self, forward: Forward, x: Tensor, y: Tensor, scales: Tensor) -> Tensor:
    ...         logits = scales * forward(x).logits
    ...         return torch.nn.functional.cross_entropy(logits, y, label_smoothing=self.share)
    ...
    ...     def gradient(self, c: Client) -> Tensor:
    ...         return c.grad(c.theta, self.loss, c.counts / c.samples)
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> Smooth().loss(lambda x: Output(x, x), x, torch.tensor([1]), torch.ones(2))  # ln(1 + 1/e) + 0.1/2
    tensor(0.3633)
"""
Part = Literal["all", "body", "head", "norm", "not_norm", "lora_A", "not_lora_A", "lora_B", "not_lora_B"]
"""Parts of the parameters; the layout marks the head (the rest is the body) and, by type, normalisation layers and the
matrices of adapters.

Examples:
    >>> layout = Layout(("body.weight", "head.weight"), ((2, 2), (1, 2)), heads=frozenset({"head.weight"}))
    >>> layout.part("head")
    tensor([0., 0., 0., 0., 1., 1.])
"""
Share = Part | Literal["none"]
"""A `Part`, or none.

Examples:
    >>> class KeepsNorms(Algorithm):  # clients keep their normalisation layers; the server averages the rest
    ...     shares: ClassVar[Share] = "not_norm"
    ...     keeps: ClassVar[Share] = "norm"
"""
ParameterGroup = Share | Literal["unbiased"]
"""A `Share`; unbiased: all but the head's bias.

Examples:
    >>> class BodyFirst(Algorithm):
    ...     def trained_part(self, c: Client) -> ParameterGroup:
    ...         return "body" if c.epoch < 1 else "all"
"""


@dataclass(frozen=True)
class Finetuning:
    """How a client's model is fine-tuned.

    part: the parameters that change. plain: True for steps y <- y - η g(y), without clipping, weight decay or momentum.
    direction: q of a step; default the plain gradient, for any direction of training. rate: a step's length; default
    η_t. rule: the method's own optimiser, without anything of earlier rounds; default `training.optimizer`.

    Examples:
        >>> class HeadFirst(Algorithm):
        ...     @property
        ...     def finetuning(self) -> Finetuning:
        ...         return Finetuning(part="head", rate=lambda c: 0.1 * c.lr)
    """

    part: ParameterGroup = "all"
    plain: bool = False
    direction: "Callable[[Client], Tensor]" = lambda c: c.grad(c.theta)
    rate: "Callable[[Client], float]" = lambda c: c.lr
    rule: "Callable[[Client], Rule | None]" = lambda c: None


@dataclass(frozen=True)
class Sum:
    """One upload: the server receives Σ_i weight_i · vector_i over the cohort, exactly and in any order.

    Terms are rounded to 2^-44, and cohort x |term| has to stay below 2^18; wide: 2^-71 and 2^30, for squared gradients.
    A tensor in two uploads is sent once (and counts once in the method's cost); scalars are free.

    Examples:
        >>> Sum(client.theta - client.theta_0, weight=0.5)
        Sum(vector=tensor([1.]), weight=0.5, wide=False)
    """

    vector: Tensor
    weight: float = 1.0
    wide: bool = False

    def __post_init__(self) -> None:
        _refuse_other(self)


@dataclass(frozen=True)
class PerClient:
    """One upload that the server receives from each client separately: stacked `(M, ...)`, by ascending client id.

    For vectors that cannot be summed (classifiers that teach as an ensemble). Its traffic grows with the cohort.

    Examples:
        >>> PerClient(client.theta)
        PerClient(vector=tensor([2.]))
    """

    vector: Tensor

    def __post_init__(self) -> None:
        _refuse_other(self)


def _refuse_other(upload: Sum | PerClient) -> None:
    """Raise UserError for an upload of anything but a tensor."""
    if not isinstance(upload.vector, Tensor):
        raise UserError(f"{type(upload).__name__}: vector: found {truncate_repr(upload.vector)}; Tensor is required")


Uploads = Mapping[str, Sum | PerClient]
"""Uploads of a client by name, besides the update.

Examples:
    >>> def upload(c: Client) -> Uploads:
    ...     return {"h": Sum(c.theta - c.theta_0, c.weight), "last": PerClient(c.theta)}
    >>> sorted(upload(client))
    ['h', 'last']
"""


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, ascending by id, before they train.

    samples: n_i, int64 `(M,)`. count_labels(): n_ic, samples of each client and class, int64 `(M, C)`.

    Examples:
        >>> cohort = Cohort(np.array([1, 4]), lambda: np.array([[1, 0], [0, 4]]))
        >>> np.sqrt(cohort.samples) / np.sqrt(cohort.samples).sum()  # as `Algorithm.weights`, for π_i ~ √n_i
        array([0.33333333, 0.66666667])
    """

    samples: np.ndarray
    count_labels: Callable[[], np.ndarray]


@dataclass
class Server:
    """State of the server during aggregation.

    theta: x, the global model. state: the algorithm's own vectors. clients: N. cohort: M, the clients that took part.
    round: t, from 0. lr: η_t, the local learning rate of this round. server_lr: η_g. first_lr: η_0, after a warm-up.
    lr_decay: η_{t+1} over η_t.

    Examples:
        >>> server = Server(torch.tensor([1.0]), Vectors(), Layout(("w",), ((1,),)), clients=10, server_lr=0.5)
        >>> Algorithm().aggregate(server, Received(Vectors(update=torch.tensor([2.0]))))  # x <- x + η_g U
        >>> server.theta
        tensor([2.])
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

    Using it leaves the first model unchanged, bit for bit. Its parameters are a vector that the method keeps in
    `c.state`; the engine keeps its running statistics.

    Examples:
        >>> class Follower(Algorithm):  # each client also trains v, drawn to y with strength 0.1
        ...     def client_state(self, theta):
        ...         return Vectors(v=theta)
        ...
        ...     def begin(self, c):
        ...         c.local.v = c.state.v
        ...
        ...     def direction(self, c):
        ...         q = c.second.grad(c.local.v) + 0.1 * (c.local.v - c.theta)
        ...         c.local.v = c.second.step(c.local.v, q)
        ...         return c.grad(c.theta)
        ...
        ...     def upload(self, c):
        ...         c.state.v = c.local.v
        ...         return {}
        >>> fedray.simulate(config | {"algorithm": {"name": Follower}, "runtime": {"backend": "inline"}})
        <Result of __main__:Follower on digits: 2 of 2 rounds, test accuracy ...>
    """

    @abstractmethod
    def grad(self, theta: Tensor, loss: Loss | None = None, *tensors: Tensor, part: Part = "all") -> Tensor:
        """Return the gradient as `Client.grad` does, for the second model at theta `(P,)`."""

    @abstractmethod
    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients as `Client.grad_with` does, for the second model at theta `(P,)`."""

    @abstractmethod
    def predict(self, theta: Tensor) -> Output:
        """Return the output as `Client.predict` does, with the second model's running statistics."""

    @abstractmethod
    def step(self, theta: Tensor, q: Tensor) -> Tensor:
        """Return theta after the canonical step (clip, weight decay, momentum, η_k) along q; all are `(P,)`.

        There is one momentum, so step one vector.
        """

    @abstractmethod
    def adopt_statistics(self, share: float = 1.0) -> None:
        """Adopt the first model's current running statistics, or this share of them and 1 - share of its own."""

    @abstractmethod
    def use(self, theta: Tensor) -> None:
        """In `prepare`: test theta `(P,)` with the second model's running statistics as the personal model."""


@dataclass(kw_only=True, eq=False)
class Client(ABC):
    """A client during a local step.

    theta_0: x, the parameters received. theta: y, the current ones. message: the server's broadcast besides theta.
    state: what this client keeps between rounds; assign to it in `upload`. local: scratch vectors of this round.
    x, y: the batch, its inputs and int64 labels. step: k. steps: K_i, the steps this client makes in the round.
    lr: η_t. momentum: m of the local optimiser. weight: π_i, its share in the average of the cohort.
    counted_steps: K_i for methods that divide by it, equal to `steps` unless `training.nominal_steps` is set (D-23).
    first_lr: η_0, after a warm-up. batch_size: samples of a whole batch. per_epoch: steps of one pass over the shard.
    first: True if the client has no state yet; for methods whose clients keep a state, at its first participation.
    samples: n_i, its number of training samples; total_samples: Σ n_j over all clients; total_clients: N. layout:
    slices of theta by parameter, with their parts. input_shape: shape of one input.

    Examples:
        >>> def direction(c: Client) -> Tensor:  # FedProx's, with μ = 0.1
        ...     return c.grad(c.theta) + 0.1 * (c.theta - c.theta_0)
        >>> direction(client)  # in a test, anything with these attributes serves as a client
        tensor([2.1000])
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
    per_epoch: int
    first: bool
    samples: int
    total_samples: int
    total_clients: int
    layout: Layout
    input_shape: tuple[int, ...]

    @property
    @abstractmethod
    def second(self) -> SecondModel:
        """The client's second model; it starts with the run's initial running statistics."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """η_k of this local step, by `Algorithm.rate` and `training.lr_decay_within`; η_t before the first one."""

    @property
    def epoch(self) -> int:
        """Number of whole passes over the shard before this step."""
        return self.step // self.per_epoch

    @property
    def epochs(self) -> int:
        """Number of passes in this round, the last one possibly incomplete."""
        return -(-self.steps // self.per_epoch)

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """n_ic: this client's number of training samples of each class, float32 `(C,)`."""

    @property
    @abstractmethod
    def all_counts(self) -> Tensor:
        """n_jc: every client's number of training samples of each class, float32 `(N, C)`, known in advance."""

    @property
    @abstractmethod
    def update(self) -> Tensor:
        """u_i = theta - theta_0."""

    @property
    @abstractmethod
    def shared_update(self) -> Tensor:
        """u_i of the shared parameters only (`Algorithm.shares`), in theta's order; the engine sends this."""

    @abstractmethod
    def grad(self, theta: Tensor, loss: Loss | None = None, *tensors: Tensor, part: Part = "all") -> Tensor:
        """Return the mini-batch gradient at `theta` of the mean loss (default: cross-entropy), without weight decay or
        clip.

        A loss that is a method gets the forward pass, `x`, `y` and the tensors, a function the forward pass alone. The
        gradient is 0 outside `part`; for the head nothing is propagated through the body. The caller owns the result:
        later calls do not change it.
        """

    @abstractmethod
    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient as `grad`, and the gradient by `extra` (any shape), the loss's second argument."""

    @abstractmethod
    def full_grad(self, theta: Tensor) -> Tensor:
        """Return the gradient at `theta` of the mean cross-entropy over all of this client's samples."""

    @abstractmethod
    def predict(self, theta: Tensor) -> Output:
        """Return the output on the batch at `theta`, without gradient, in evaluation mode.

        For received parameters (`c.theta_0` or a vector of `c.message`, exactly this tensor) the running statistics
        are the received ones; for any other theta they are the current ones, which every step changes.
        """

    @abstractmethod
    def batches(
        self, purpose: str, size: int | None = None, share: float = 1.0, epoch: int | None = None
    ) -> Iterator[int]:
        """Make one pass over the shard in `begin`, `upload` or `prepare`: `for _ in c.batches("alignment"):
        c.grad(...)`.

        Each turn sets `x` and `y`, without augmentation. Gradients taken there affect neither the training loss nor
        running statistics of the first model.

        Args:
            purpose: keys the order; passes of one client and round need different purposes.
            size: samples per batch; default that of the local steps.
            share: fraction of the shard to draw, in (0, 1].
            epoch: for a pass in which a second model trains, its number: with augmentation, the last batch and the
                learning rate as in this epoch of the local steps; default for a pass that measures.

        Yields:
            The number of the batch, from 0.
        """

    @abstractmethod
    def draw(self) -> tuple[Tensor, Tensor]:
        """Return another batch x, y for this step, drawn from the shard without repetition, as large as the first.

        Every call returns a new one.
        """

    @abstractmethod
    def shard(self, theta: Tensor) -> tuple[Output, Tensor]:
        """Return the output at `theta` on all the client's samples, not augmented, and their labels; see `predict`."""


@dataclass(frozen=True)
class Received:
    """Uploads of a round by name: the sum of a Sum, the stack `(M, ...)` of a PerClient.

    `update` is U = Σ_i π_i u_i, 0 outside the shared parameters; `shared_update` holds these alone.

    Examples:
        >>> got = Received(Vectors(update=torch.tensor([2.0]), h=torch.tensor([3.0])))
        >>> got.h, got.with_update(got.update / 2).update
        (tensor([3.]), tensor([1.]))
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
