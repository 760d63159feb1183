"""The contract of a federated algorithm: the paper's formulas on flat vectors, and nothing about where they run.

An algorithm is its hyper-parameters (a frozen pydantic model, so `algorithm.rho: -1` is refused before anything starts)
and a few small functions. The engine calls them in this order:

    server                                     each client of the cohort                    server
    weights, broadcast,                        begin, [direction, rate -> step] x K_i,      server_step,
    message, drawn_steps -> theta, message ->  upload                                    -> aggregate, reply

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

What a method is given and what it gives is in `fedray.algorithms.exchange`; a method imports it from here.
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict
from torch import Tensor

from fedray.algorithms.exchange import (
    Client,
    Cohort,
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
from fedray.common.component import Component
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors, unit
from fedray.models.base import ModelSpec
from fedray.models.network import Layout, Output

__all__ = [
    "Algorithm",
    "Client",
    "Cohort",
    "Forward",
    "Loss",
    "ParameterGroup",
    "Part",
    "PerClient",
    "Proximal",
    "Received",
    "SecondModel",
    "Server",
    "Share",
    "Sum",
    "Uploads",
    "Vectors",
    "unit",
]


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

    def weights(self, cohort: Cohort) -> np.ndarray | None:
        """π_i of the clients of a round, float64 `(M,)`, summing to 1; None for those of `training.aggregation`."""
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

    @property
    def tests_average(self) -> bool:
        """Whether the mean of the last two iterates is tested, instead of the last."""
        return False

    def server_step(self, server: Server, got: Received) -> float:
        """What η_g is multiplied by in this round, before `aggregate`."""
        return 1.0

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
