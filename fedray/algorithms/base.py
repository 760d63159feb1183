"""Contract of a federated algorithm: the paper's formulas on flat vectors, independent of where they run.

An algorithm is its hyper-parameters (a frozen pydantic model, so `algorithm.rho: -1` is refused before anything starts)
and a few small functions. The engine calls them in this order:

    server                                     each client of the cohort                    server
    weights, broadcast,                        begin, [direction, rate -> step] x K_i,      server_step,
    message -> theta, message ->               upload                                    -> aggregate

First, `initial` makes x⁰. Declarations say what is averaged and what each client keeps (`shares`, `keeps`), and what a
client's personal model is (`personal`, `finetuning`, `prepare`, `personal_logits`); the engine does the rest. Needs of
only some methods have hooks that others can ignore: batches before the first step (`Client.batches`), a rate per step
(`rate`), another model in a client (`Client.second`), whether a client participates for the first time
(`Client.first`), the kept parameters of a client without a state (`newcomers_own`).

All vectors are float32 `(P,)` in `model.parameters()` order unless said otherwise. Formulas branch on hyper-parameters,
never on the value of a tensor, and treat every vector as immutable: `c.theta = c.theta - ...`, not `c.theta -= ...`.
A method that changes theta, a message or a state in place is refused with its first client; changes through
`tensor.data` or a NumPy view go undetected, and give numbers that depend on the number of actors. Only `begin`,
`upload` and `prepare` may assign `c.theta`, only `aggregate` may assign `server.theta`: of the other hooks the value
counts.

Inputs and outputs of a method are defined in `fedray.algorithms.exchange`; a method imports them from here.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import ConfigDict
from torch import Tensor

from fedray.algorithms.descent import Rule
from fedray.algorithms.exchange import (
    Client,
    Cohort,
    Finetuning,
    Forward,
    Loss,
    ParameterGroup,
    Part,
    PerClient,
    Received,
    SecondModel,
    Server,
    Share,
    Sum,
    Uploads,
)
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors, unit
from fedray.components.base import Component
from fedray.models.base import ModelSpec
from fedray.models.network import BESIDE, Layout, Output

__all__ = [
    "Algorithm",
    "Client",
    "Cohort",
    "Finetuning",
    "Forward",
    "Loss",
    "ParameterGroup",
    "Part",
    "PerClient",
    "Proximal",
    "Received",
    "Rule",
    "SecondModel",
    "Server",
    "Share",
    "Sum",
    "Uploads",
    "Vectors",
    "unit",
]


class Algorithm(Component):
    """Base of all algorithms; by itself it behaves like FedAvg. Subclasses override what their paper changes.

    Examples:
        >>> class LookBack(Algorithm):
        ...     kappa: float = 0.5
        ...
        ...     def direction(self, c):
        ...         return c.grad(c.theta + self.kappa * (c.theta_0 - c.theta))
        >>> method = {"name": LookBack, "kappa": 0.2}  # in a module of yours: {"name": "lookback:LookBack", ...}
        >>> fedray.simulate(config | {"algorithm": method, "runtime": {"backend": "inline"}})
        <Result of __main__:LookBack on digits: 2 of 2 rounds, test accuracy ...>
    """

    model_config = ConfigDict(allow_inf_nan=False)

    section = "algorithm"
    idea: ClassVar[str] = ""
    """The method's addition, in one line for lists."""
    reads_taps: ClassVar[bool] = False
    """True if the method reads `Output.taps`."""
    reads_features: ClassVar[bool] = False
    """True if the method learns through `Output.features`, the input of the head."""
    perturbs_inputs: ClassVar[bool] = False
    """True if the method changes the inputs, which then cannot be tokens."""
    shares: ClassVar[Share] = "all"
    """The parameters that are sent and averaged. The others of x stay at their initial values."""
    keeps: ClassVar[Share] = "none"
    """The parameters that each client keeps from round to round and starts with, and the running statistics of their
    layers. They never leave the client. If clients keep some, there is no single model to test: each client's is
    tested, and the results are averaged."""
    personal: ClassVar[Literal["tuned", "trained", "kept"]] = "tuned"
    """Kind of personal model. tuned: the client's model at the start of a round, after `evaluation.personal.epochs`
    epochs of `finetuning`; trained: the same after the local training of a round; kept: the same, unchanged."""
    generic: ClassVar[bool] = True
    """True if the generic accuracy (GA) is the global model's; otherwise it is the mean of the personal models'."""
    bound_to_sgd: ClassVar[str] = ""
    """Why the formulas hold for SGD's steps only, as a sentence without its subject ("divides updates by K η"); empty
    if `training.optimizer` may be another."""
    scales_update: ClassVar[bool] = False
    """True if the server averages multiples of the updates that clients upload themselves, instead of the update."""
    optimizer: ClassVar[Literal["", "adamw", "muon"]] = ""
    """The `training.optimizer` that the method's name stands for; empty for the configuration's."""
    stacks: ClassVar[bool] = False
    """True if the client's hooks also admit `(S, P)` wherever they see `(P,)`: S clients at once. Then operations work
    row by row, and gradients come from `c.grad(theta)`. If numbers differ between the clients, they are missing;
    `upload` is called for each client if it needs one of them. A class says it for itself, not for its subclasses."""

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        """Return x⁰, from the model's own initial parameters; draws come from torch's generator, which is keyed."""
        return theta

    def server_state(self, theta: Tensor) -> Vectors:
        """Return the server's vectors before round 0, besides theta."""
        return Vectors()

    def client_state(self, theta: Tensor) -> Vectors:
        """Return a client's vectors before its first participation. theta: the run's initial parameters."""
        return Vectors()

    def newcomers_own(self, initial: Tensor, message: Vectors) -> Tensor:
        """Return a stateless client's parameters of `keeps`, in theta's order; default `initial`, taken from x⁰."""
        return initial

    def broadcast(self, server: Server) -> Tensor:
        """Return the parameters that clients start from; default x."""
        return server.theta

    def message(self, server: Server) -> Vectors:
        """Return the vectors sent to every client, besides theta."""
        return Vectors()

    def weights(self, cohort: Cohort) -> np.ndarray | None:
        """Return π_i of the clients of a round, float64 `(M,)`, summing to 1; None for `training.aggregation`'s."""
        return None

    def begin(self, c: Client) -> None:
        """Prepare `c.local` before a client's first step."""

    def local_optimizer(self, c: Client) -> Rule | None:
        """After `begin`: return the method's own local optimiser for this round; None for `training.optimizer`.

        A method that has one sets `bound_to_sgd`, and what its server needs of the optimiser's vectors is uploaded from
        them: pass `c.local` as the rule's `state`.
        """
        return None

    @property
    def radii(self) -> Callable[[Client], Tensor] | None:
        """Function that gives each parameter's perturbation `(..., P)`, in multiples of the method's own radius, for
        the probe `lambda`; None if it is 1 for all.
        """
        return None

    def gradient(self, c: Client) -> Tensor:
        """Return the descent gradient within q; sharpness-aware methods take it at a perturbed point."""
        return c.grad(c.theta)

    def rate(self, c: Client) -> float:
        """Return η_k, the learning rate of this local step; default η_t."""
        return c.lr

    def direction(self, c: Client) -> Tensor:
        """Return q, the direction of this step before clipping, weight decay, momentum and learning rate."""
        return self.gradient(c)

    def trained_part(self, c: Client) -> ParameterGroup:
        """Return the part that this step changes: gradient, weight decay and momentum do not affect the others."""
        return "all"

    def decoupled_weight(self, c: Client) -> float:
        """Return λ if q has a λ y that the authors' code adds as weight decay, after clipping (D-12); otherwise 0."""
        return 0.0

    def upload(self, c: Client) -> Uploads:
        """After the last step: set `c.state`, and return uploads besides the update (the engine sends that)."""
        return {}

    @property
    def averaged_statistics(self) -> str:
        """Part of the model whose layers' running statistics are averaged; a client without a state has them."""
        return BESIDE[self.keeps]

    @property
    def tests_average(self) -> bool:
        """True if the mean of the last two iterates is tested instead of the last."""
        return False

    def server_step(self, server: Server, got: Received) -> float:
        """Return the factor on η_g in this round, before `aggregate`."""
        return 1.0

    def aggregate(self, server: Server, got: Received) -> None:
        """Set `server.theta` and `server.state` from the reduced uploads."""
        server.theta = server.theta + server.server_lr * got.update

    def logits(self, output: Output) -> Tensor:
        """Return the logits `(n, C)` with which the generic model is tested."""
        return output.logits

    @property
    def finetuning(self) -> Finetuning:
        """How a client's model is fine-tuned before it is tested (`personal`: tuned), or when it never trained."""
        return Finetuning()

    def prepare(self, c: Client) -> None:
        """Before a personal model at `c.theta` is tested: prepare `c.local` for `personal_logits`."""

    def personal_logits(self, c: Client) -> Tensor:
        """Return a client's answer to the batch `c.x`: logits, or other scores, `(n, C)`.

        Default: the output of the model at `c.theta`. A method may use several models, at any theta: `c.predict` and
        `c.second.predict`.
        """
        return self.logits(c.predict(c.theta))

    @property
    def answers_alone(self) -> bool:
        """True if `personal_logits` is the answer of the model at `c.theta`, which then is the personal model."""
        return not self.overrides("personal_logits")

    def check(self, model: ModelSpec) -> None:
        """Check the model when the configuration is read. Raises UserError if it cannot serve the method."""
        if self.reads_taps and not model.taps:
            raise UserError(f"model.name: found {model.name}, which names no taps; {self.name} reads inner layers")
        if self.reads_features and not model.has_body:
            raise UserError(f"model.name: found {model.name}, all of it head; {self.name} needs a feature layer")
        if self.perturbs_inputs and model.takes_tokens:
            raise UserError(f"model.name: found {model.name}, whose inputs are tokens; {self.name} needs real numbers")

    def check_built(self, layout: Layout, tokens: bool) -> None:
        """Check again once model and data exist, for properties of user classes. Raises UserError."""
        if self.reads_features and layout.heads == set(layout.names):
            raise UserError(f"model: every trained parameter belongs to the head; {self.name} needs a feature layer")
        for part in (self.shares, self.keeps):
            if part not in ("all", "none", "norm"):
                self.refuse_untrained(layout, part)
        if both := layout.name_part(self.shares) & layout.name_part(self.keeps):
            raise UserError(
                f"algorithm: {self.name} has shares = {self.shares!r} and keeps = {self.keeps!r}, so clients would "
                f"send {sorted(both)[0]} and then take their own; let shares be the other part"
            )
        if self.perturbs_inputs and tokens:
            raise UserError(f"data.name: the inputs are tokens; {self.name} needs real numbers")

    def overrides(self, hook: str) -> bool:
        """Return True if the method has a hook of its own, such as `weights`."""
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    def refuse_untrained(self, layout: Layout, part: str) -> None:
        """Refuse a model without a trained parameter in a part that the method needs, or whose head shares one with its
        body. Raises UserError.
        """
        if layout.tied and part in ("head", "body"):
            raise UserError(f"model: {' and '.join(layout.tied)} are one tensor; {self.name} needs head and body apart")
        if not layout.name_part(part):
            raise UserError(f"model: no parameter of {part} is trained; {self.name} needs some")


Kind = TypeVar("Kind", bound=type[Algorithm])


def holds(server: Sequence[str] = (), client: Sequence[str] = (), sent: Sequence[str] = ()) -> Callable[[Kind], Kind]:
    """Give a method the hooks for vectors `(P,)` that start at 0 on the server, and in each client, and for those of
    the server that every client receives ("all": every one).
    """

    def start(names: Sequence[str]) -> Any:
        return lambda method, theta: Vectors({name: theta.new_zeros(theta.shape) for name in names})

    def give(method: Kind) -> Kind:
        if server:
            method.server_state = start(server)  # type: ignore[method-assign]
        if client:
            method.client_state = start(client)  # type: ignore[method-assign]
        if sent:
            send: Any = lambda method, server: Vectors(  # noqa: E731
                server.state if sent == "all" else {name: server.state[name] for name in sent}
            )
            method.message = send  # type: ignore[method-assign]
        return method

    return give


class Proximal(Algorithm):
    """Base of the methods whose step is q = gradient + the gradient of an additional term.

    Examples:
        >>> class FedProx(Proximal):
        ...     mu: float = 0.1
        ...
        ...     def proximal(self, c, theta):
        ...         return self.mu * (theta - c.theta_0)
        >>> FedProx().direction(client)  # the gradient 2, and 0.1 (2 - 1)
        tensor([2.1000])
    """

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        """Return the gradient `(..., P)` at `theta` of the term added to the local loss. FedSOL perturbs along it."""
        raise NotImplementedError

    def direction(self, c: Client) -> Tensor:
        gradient, term = self.gradient(c), self.proximal(c, c.theta)
        if not isinstance(term, Tensor) or term.shape[-1:] != c.theta.shape[-1:]:  # PyTorch would repeat it
            found = f"shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"type {type(term).__name__}"
            raise UserError(
                f"algorithm: class {type(self).__name__} ({self.name}) gives proximal of {found}; the gradient of the "
                f"term, of shape {tuple(c.theta.shape)}, is required"
            )
        return gradient + term
