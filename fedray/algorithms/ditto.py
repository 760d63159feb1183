"""Methods whose clients also train a second, personal model: Ditto and APFL."""

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Forward, Uploads, Vectors
from fedray.components.base import option


class PersonalBeside(Algorithm):
    """q = g(y), FedAvg; in addition each client trains a model v of its own, which starts at x⁰ and never leaves it.

    v has running statistics, random draws and momentum of its own, so the shared model is FedAvg's bit for bit.
    """

    personal = "kept"

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(v=theta)

    def begin(self, c: Client) -> None:
        c.local.v = c.state.v

    def advance(self, c: Client) -> None:
        """Take one step of v in `c.local`, on the batch of the shared model's step and before it."""
        raise NotImplementedError

    def direction(self, c: Client) -> Tensor:
        self.advance(c)
        return c.grad(c.theta)

    def upload(self, c: Client) -> Uploads:
        c.state.v = c.local.v
        return {}


class Ditto(PersonalBeside):
    """q = g(y), FedAvg; on the same batch the personal v makes the canonical step on g(v) + λ (v - x).

    x is the model received. v makes as many steps as the shared model, on its batches, as in the authors' code; ports
    of it train v in separate passes (`personal_epochs`, D-64). One fixed λ for all; the authors also choose it per step
    and client on validation data (D-65, not offered). λ = 0 is Local-only. The personal model is v, which is
    x⁰ until a client first trains.
    """

    name = "ditto"
    paper = "Li et al., Ditto: fair and robust federated learning through personalization, ICML 2021, algorithm 1"
    idea = "FedAvg, and a personal model near it in each client"
    lam: float = option(
        1.0,
        ge=0,
        description="λ: strength of the pull of v to x",
        paper={"Ditto, searched": [0.1, 1, 2], "under strong attacks": [0.05, 0.1, 0.2]},
    )
    personal_epochs: int | None = option(
        None,
        gt=0,
        description="epochs of v in separate passes before the shared model trains; default: the same batches (D-64)",
        paper={"PFLlib, FL-bench": 1},
    )

    def count_revisions(self) -> int:  # separate passes had neither augmentation nor rates and batches of training
        return super().count_revisions() + (self.personal_epochs is not None)

    def begin(self, c: Client) -> None:
        super().begin(c)
        for epoch in range(self.personal_epochs or 0):
            for _ in c.batches(f"personal {epoch}", epoch=epoch):
                self.advance(c)

    def advance(self, c: Client) -> None:
        v = c.local.v
        c.local.v = c.second.step(v, c.second.grad(v) + self.lam * (v - c.theta_0))

    def direction(self, c: Client) -> Tensor:
        return super().direction(c) if self.personal_epochs is None else c.grad(c.theta)

    def prepare(self, c: Client) -> None:
        c.second.use(c.state.v)


class APFL(PersonalBeside):
    """q = g(y), FedAvg; on the same batch v makes the canonical step on a g(a v + (1 - a) y), y before its own step.

    With `adaptive` also a <- clip_[0,1](a - η <v - y, g(a v + (1 - a) y)>), each step. The formula of a is the paper's;
    code adds 0.02 a, steps once per round, or has one a per tensor (D-62). Ports that train v on its own loss, or both
    models by one optimiser, are not APFL (D-63). Fixed a = 1 is Local-only, a = 0 FedAvg except for running statistics.
    The personal model is a v + (1 - a) x. Its running statistics follow the client's mixtures; they begin, and stay if
    the client never trains, at a of x⁰'s and 1 - a of the received ones. The learning rates of the paper were not read
    again [M].

    As the code has it: `mix: logits` mixes the logits of both models, z = a z_v + (1 - a) z_y, in training and in test
    (there with z_x instead of z_y); v descends the gradient of that loss by v, and a its derivative by a. For linear
    models both mixtures are the same (D-61).
    """

    name = "apfl"
    paper = "Deng, Kamani and Mahdavi, Adaptive personalized federated learning, 2020, algorithm 1"
    idea = "each client mixes a model of its own into the shared one"
    alpha: float = option(
        0.5,
        ge=0,
        le=1,
        description="a: weight of the client's own model; its initial value if it adapts",
        paper={"APFL": [0.25, 0.5, 0.75]},
    )
    adaptive: bool = Field(False, description="each client learns its a (D-62)")
    mix: Literal["parameters", "logits"] = Field(
        "parameters", description="mixed quantity: the parameters of v and y, or their logits (D-61)"
    )

    @property
    def bound_to_sgd(self) -> str:  # type: ignore[override]
        """The reason if a adapts."""
        return "moves a along its derivative, by η" if self.adaptive else ""

    def count_revisions(self) -> int:  # mixtures began with the running statistics of x⁰ alone
        return super().count_revisions() + (self.mix == "parameters" and self.alpha < 1)

    def client_state(self, theta: Tensor) -> Vectors:
        state = super().client_state(theta)
        return Vectors(state, alpha=theta.new_tensor(self.alpha)) if self.adaptive else state

    def begin(self, c: Client) -> None:
        super().begin(c)
        if self.adaptive:
            c.local.alpha = c.state.alpha
        if c.first and self.mix == "parameters":
            c.second.adopt_statistics(1 - self.alpha)

    def mixed(self, own: Tensor, shared: Tensor, state: Vectors) -> Tensor:
        """Return a times the client's own plus 1 - a times the shared: parameters or logits."""
        a = state.alpha if self.adaptive else self.alpha
        return a * own + (1 - a) * shared

    def advance(self, c: Client) -> None:
        v, y = c.local.v, c.theta
        if self.mix == "parameters":
            g = c.second.grad(self.mixed(v, y, c.local))
            by_v = (c.local.alpha if self.adaptive else self.alpha) * g
            by_a = (v - y) @ g if self.adaptive else v.new_zeros(())
        else:
            shared = c.predict(y).logits

            def loss(forward: Forward, a: Tensor) -> Tensor:
                return cross_entropy(a * forward(c.x).logits + (1 - a) * shared, c.y)

            by_v, by_a = c.second.grad_with(v, c.local.alpha if self.adaptive else v.new_tensor(self.alpha), loss)
        c.local.v = c.second.step(v, by_v)
        if self.adaptive:
            c.local.alpha = (c.local.alpha - c.rate * by_a).clamp(0, 1)

    def upload(self, c: Client) -> Uploads:
        if self.adaptive:
            c.state.alpha = c.local.alpha
        return super().upload(c)

    def prepare(self, c: Client) -> None:
        if self.mix == "parameters":
            if not c.local:  # it has not trained now
                self.begin(c)
            c.second.use(self.mixed(c.state.v, c.theta_0, c.state))

    @property
    def answers_alone(self) -> bool:
        return self.mix == "parameters" and type(self).personal_logits is APFL.personal_logits

    def personal_logits(self, c: Client) -> Tensor:
        if self.mix == "parameters":
            return super().personal_logits(c)
        return self.mixed(c.second.predict(c.state.v).logits, c.predict(c.theta_0).logits, c.state)
