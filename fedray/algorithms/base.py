"""The contract of a federated algorithm: the paper's formulas on flat vectors, and nothing about where they run.

An algorithm is its hyper-parameters (a frozen pydantic model, so `algorithm.rho: -1` is refused before anything starts)
and a few small functions. The engine calls them in this order:

    server                                     each client of the cohort                    server
    broadcast, message, -> theta, message ->   begin, [direction, rate -> step] x K_i,   -> aggregate, reply
    drawn_steps                                upload

Before all that `initial` makes x⁰. What is averaged and what each client keeps is declared (`shares`, `keeps`), and so
is what a client's personal model is (`personal`, `adapt`, `prepare`, `personal_logits`); the engine does the rest.
What only some methods need has a hook that the others never meet: batches before the first step (`Client.batches`), a
rate per step (`rate`), another model in a client (`Client.second`), whether this is a client's first activity
(`Client.first`), what a client that has kept nothing yet starts with (`newcomers_own`), a number of steps drawn for the
round (`drawn_steps`), a message for each client of the cohort (`reply`).

All vectors are float32 `(P,)` in `model.parameters()` order unless said otherwise. Formulas branch on hyper-parameters,
never on the value of a tensor, and treat every vector as immutable: `c.theta = c.theta - ...`, not `c.theta -= ...`.
A method that changes theta, a message or a state in place is refused with its first client; changes through
`tensor.data` or a NumPy view are not seen, and give numbers that depend on the number of actors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from pydantic import ConfigDict
from torch import Tensor

from fedray.common.component import Component
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors, unit
from fedray.models.base import ModelSpec
from fedray.models.network import Layout, Output

__all__ = [
    "Algorithm",
    "Client",
    "Part",
    "PerClient",
    "Proximal",
    "Received",
    "Server",
    "Sum",
    "Uploads",
    "Vectors",
    "unit",
]


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


@dataclass
class Server:
    """What the server knows when it aggregates.

    theta: x, the global model. state: the algorithm's own vectors. clients: N. cohort: M, the clients that took part.
    round: t, from 0. lr: η_t, the local learning rate of this round. server_lr: η_g.
    """

    theta: Tensor
    state: Vectors
    layout: Layout
    clients: int
    cohort: int = 0
    round: int = 0
    lr: float = 0.0
    server_lr: float = 1.0


class SecondModel(Protocol):
    """Another model in a client, with running statistics, random draws (dropout) and momentum of its own.

    Whatever is done with it leaves the first model bit for bit where it would be without. Its parameters are a vector
    that the method keeps in `c.state`; its running statistics the engine keeps.
    """

    def grad(self, theta: Tensor, loss: Loss | None = None, part: Part = "all") -> Tensor:
        """As `Client.grad`, for the second model at theta `(P,)`."""

    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `Client.grad_with`, for the second model at theta `(P,)`."""

    def predict(self, theta: Tensor) -> Output:
        """As `Client.predict`, with the second model's running statistics."""

    def step(self, theta: Tensor, q: Tensor) -> Tensor:
        """The canonical step (clip, weight decay, momentum, η_k) from theta `(P,)` along q `(P,)`; the new theta."""

    def adopt_statistics(self) -> None:
        """Take over the first model's running statistics as they are now."""

    def use(self, theta: Tensor) -> None:
        """In `prepare`: test theta `(P,)` with the second model's running statistics as the personal model."""


class Client(Protocol):
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
    theta: Tensor
    message: Vectors
    state: Vectors
    local: Vectors
    x: Tensor
    y: Tensor
    step: int
    steps: int
    lr: float
    momentum: float
    weight: float
    counted_steps: float
    first_lr: float
    batch_size: int
    first: bool

    @property
    def second(self) -> SecondModel:
        """The client's second model; it starts with the run's initial running statistics."""

    @property
    def total_clients(self) -> int:
        """N."""

    @property
    def total_samples(self) -> int:
        """Σ n_j over all clients."""

    @property
    def rate(self) -> float:
        """η_k of this local step, by `Algorithm.rate` and `training.lr_decay_within`; η_t before the first one."""

    @property
    def epoch(self) -> int:
        """Whole passes over the shard that were made before this step."""

    @property
    def epochs(self) -> int:
        """Passes that the round will make, the last one perhaps not whole."""

    @property
    def layout(self) -> Layout:
        """Which slice of theta is what."""

    @property
    def samples(self) -> int:
        """n_i: training samples of this client."""

    @property
    def counts(self) -> Tensor:
        """n_ic: training samples of this client in each class, float32 `(C,)`."""

    @property
    def all_counts(self) -> Tensor:
        """n_jc: training samples of every client in each class, float32 `(N, C)`; what a method shares beforehand."""

    @property
    def update(self) -> Tensor:
        """u_i = theta - theta_0."""

    @property
    def shared_update(self) -> Tensor:
        """u_i of the shared parameters alone (`Algorithm.shares`), in theta's order: what the engine sends."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    def grad(self, theta: Tensor, loss: Loss | None = None, part: Part = "all") -> Tensor:
        """Mini-batch gradient at `theta` of the mean loss (default: cross-entropy), without weight decay or clip.

        0 outside `part`; for the head nothing is propagated through the body. The result is the caller's: no later call
        changes it.
        """

    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `grad`, and the gradient by `extra`, of any shape, which the loss receives as its second argument."""

    def full_grad(self, theta: Tensor) -> Tensor:
        """Gradient at `theta` of the mean cross-entropy over all of this client's samples."""

    def predict(self, theta: Tensor) -> Output:
        """Output on the batch at `theta`, without gradient, in evaluation mode.

        At the received parameters (`c.predict(c.theta_0)`: this very tensor) the running statistics are those received
        with them; at any other theta the present ones, which every step moves.
        """

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

    def draw(self) -> tuple[Tensor, Tensor]:
        """Another batch x, y of this step, drawn from the shard without repetition, of the size of the first.

        Every call gives one of its own.
        """

    def shard(self, theta: Tensor) -> tuple[Output, Tensor]:
        """Output on all of this client's samples, not augmented, at `theta`, and their labels; else as `predict`."""


@dataclass(frozen=True)
class Received:
    """The uploads of a round by name: a Sum's sum, a PerClient's stack `(M, ...)`; `update` is U = Σ_i π_i u_i."""

    sums: Vectors = field(default_factory=Vectors)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.sums[name]
        except KeyError:
            raise AttributeError(f"no upload named {name!r}; there are: {', '.join(self.sums)}") from None


class Algorithm(Component):
    """Base of all algorithms, and by itself FedAvg's behaviour. Subclasses override what their paper changes."""

    model_config = ConfigDict(allow_inf_nan=False)

    section = "algorithm"
    idea: ClassVar[str] = ""
    """One line for lists: what the method adds."""
    reads_taps: ClassVar[bool] = False
    """Whether the method reads `Output.taps`."""
    reads_features: ClassVar[bool] = False
    """Whether the method learns through `Output.features`, the input of the head."""
    perturbs_inputs: ClassVar[bool] = False
    """Whether the method moves the inputs, which then cannot be tokens."""
    needs_everyone: ClassVar[bool] = False
    """Whether the method is defined for full participation alone: all clients in every round."""
    shares: ClassVar[Share] = "all"
    """Which parameters are sent and averaged. The others of x stay as they were initialised."""
    keeps: ClassVar[Share] = "none"
    """Which parameters each client keeps as its own from round to round, and starts with, and the running statistics of
    their layers. They never leave the client. Where clients keep some no one model can be tested: each client's is, and
    averaged."""
    personal: ClassVar[Literal["tuned", "trained", "kept"]] = "tuned"
    """What a personal model is. tuned: what the client would start a round with, after `evaluation.personal.epochs`
    epochs of `adapt`; trained: the same after the local training of a round; kept: the same as it stands."""
    generic: ClassVar[bool] = True
    """Whether the generic accuracy (GA) is the global model's; else it is the mean of the personal ones'."""
    finetuned_part: ClassVar[ParameterGroup] = "all"
    """Which parameters fine-tuning moves."""
    finetunes_plainly: ClassVar[bool] = False
    """Whether fine-tuning makes plain steps, y <- y - η g(y): no clipping, no weight decay, no momentum."""

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        """x⁰, from the model's own initial parameters; random draws come from torch's generator, which is keyed."""
        return theta

    def server_state(self, theta: Tensor) -> Vectors:
        """The server's vectors beside theta before round 0."""
        return Vectors()

    def client_state(self, theta: Tensor) -> Vectors:
        """A client's vectors before its first activity. theta: the run's initial parameters, whatever the round."""
        return Vectors()

    def newcomers_own(self, initial: Tensor, message: Vectors) -> Tensor:
        """What a client that has kept nothing yet has of `keeps`, in theta's order; default `initial`, that of x⁰."""
        return initial

    def broadcast(self, server: Server) -> Tensor:
        """The parameters clients start from; default x."""
        return server.theta

    def message(self, server: Server) -> Vectors:
        """What is sent to every client beside theta."""
        return Vectors()

    def drawn_steps(self, server: Server) -> int | None:
        """K, the number of local steps of this round; None for the configuration's.

        May draw from torch's generator, which is keyed by (seed, round).
        """
        return None

    def begin(self, c: Client) -> None:
        """Before a client's first step: prepare `c.local`."""

    @property
    def adapts_radii(self) -> bool:
        """Whether `radii` differ between parameters; then the probe `lambda` can measure them."""
        return False

    def radii(self, c: Client) -> Tensor | float:
        """By how much each parameter is perturbed, `(..., P)`, in multiples of the method's own radius; 1 for all."""
        return 1.0

    def gradient(self, c: Client) -> Tensor:
        """The descent gradient within q; sharpness-aware methods take it at a perturbed point."""
        return c.grad(c.theta)

    def rate(self, c: Client) -> float:
        """η_k, the learning rate of this local step; default η_t."""
        return c.lr

    def direction(self, c: Client) -> Tensor:
        """q, what this step descends, before clip, weight decay, momentum and learning rate."""
        return self.gradient(c)

    def trained_part(self, c: Client) -> ParameterGroup:
        """Which parameters this step moves: gradient, weight decay and momentum stop at the others."""
        return "all"

    def decoupled_weight(self, c: Client) -> float:
        """λ where q holds a λ y that the authors' code adds as weight decay, after clipping (D-12); else 0."""
        return 0.0

    def upload(self, c: Client) -> Uploads:
        """After the last step: new `c.state`, and uploads beside the update (which the engine sends itself)."""
        return {}

    def aggregate(self, server: Server, got: Received) -> None:
        """New `server.theta` and `server.state` from the reduced uploads."""
        server.theta = server.theta + server.server_lr * got.update

    def reply(self, server: Server, got: Received) -> Vectors:
        """After `aggregate`: a message for each client of the cohort, which its `state` has from then on.

        Returns:
            name -> `(M, ...)`, a row for each client by ascending id. The name `own` replaces what `keeps` kept.
        """
        return Vectors()

    def logits(self, output: Output) -> Tensor:
        """Logits `(n, C)` of the generic model when it is tested."""
        return output.logits

    def adapt(self, c: Client) -> Tensor:
        """The direction of a step of fine-tuning; default the plain gradient, whatever the method trains with."""
        return c.grad(c.theta)

    def finetuning_rate(self, c: Client) -> float:
        """The length of a step of fine-tuning; default η_t."""
        return c.lr

    def prepare(self, c: Client) -> None:
        """Before a personal model at `c.theta` is tested: what `personal_logits` wants in `c.local`."""

    def personal_logits(self, c: Client) -> Tensor:
        """What a client answers to the batch `c.x`: logits, or scores of another kind, `(n, C)`.

        Default: what the one model at `c.theta` answers. A method may ask several, at any theta: `c.predict` and
        `c.second.predict`.
        """
        return self.logits(c.predict(c.theta))

    def check(self, model: ModelSpec) -> None:
        """Called when the configuration is read. Raises UserError where the model cannot serve the method."""
        if self.reads_taps and not model.taps:
            raise UserError(f"model.name: found {model.name}, which names no taps; {self.name} reads inner layers")
        if self.reads_features and not model.has_body:
            raise UserError(f"model.name: found {model.name}, all of it head; {self.name} needs a feature layer")
        if self.perturbs_inputs and model.takes_tokens:
            raise UserError(f"model.name: found {model.name}, whose inputs are tokens; {self.name} needs real numbers")

    def check_built(self, layout: Layout, tokens: bool) -> None:
        """The same once model and data are there, for what cannot be told of a user's own before. Raises UserError."""
        if self.reads_features and layout.heads == set(layout.names):
            raise UserError(f"model.name: every parameter belongs to the head; {self.name} needs a feature layer")
        if self.perturbs_inputs and tokens:
            raise UserError(f"data.name: the inputs are tokens; {self.name} needs real numbers")


class Proximal(Algorithm):
    """Base of the methods whose step is q = gradient + the gradient of a term of their own."""

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        """Gradient `(..., P)` at `theta` of what the method adds to the local loss. FedSOL perturbs along it."""
        raise NotImplementedError

    def direction(self, c: Client) -> Tensor:
        return self.gradient(c) + self.proximal(c, c.theta)
