"""FedGMT: clients learn from a moving average of the global models, and carry duals."""

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.auxiliary import kl
from fedray.algorithms.base import Algorithm, Client, Forward, Received, Server, Sum, Uploads, Vectors, holds
from fedray.components.base import option


@holds(client=["h"], sent=["e"])
class FedGMT(Algorithm):
    """q = ∇ [CE + γ τ² KL(softmax(z_e/τ) || softmax(z/τ))] + H_i/β; H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    z_e: logits of e, the moving average of the global models: e <- a e + (1 - a) x, from x⁰. e answers in evaluation
    mode with the running statistics that the client received; in the code it runs in training mode (D-146).

    Readings: the server adds the mean of H_i over all N clients, FedDyn's form, as in the code (D-145; `dual_mean:
    cohort` is the summary's mean over the cohort); the KL term has the code's temperature and factor τ² (D-146). There
    is no quadratic term. γ = 0 with one step a round is FedDyn with α = 1/β. Summaries and code were read instead of
    the paper [S].
    """

    name = "fedgmt"
    paper = (
        "Li et al., One arrow, two hawks: sharpness-aware minimization for federated learning via global model "
        "trajectory, ICML 2025"
    )
    idea = "distils a moving average of the global models, and carries duals"
    gamma: float = option(1.0, ge=0, description="γ: weight of the distillation", paper={"searched": [0.5, 1, 2]})
    tau: float = option(3.0, gt=0, description="τ: temperature", paper={"FedGMT's code": 3})
    beta: float = option(10.0, gt=0, description="β: 1/β is the weight of the duals", paper={"FedGMT": 10})
    alpha: float = option(
        0.95, ge=0, le=1, description="a: decay of the moving average", paper={"searched": [0.95, 0.995, 0.998]}
    )
    dual_mean: Literal["all", "cohort"] = Field("all", description="clients whose mean H the server adds (D-145)")

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(e=theta, h=theta.new_zeros(theta.shape)) if self.dual_mean == "all" else Vectors(e=theta)

    def gradient(self, c: Client) -> Tensor:
        if not self.gamma:
            return c.grad(c.theta)
        return c.grad(c.theta, self.loss, c.predict(c.message.e).logits / self.tau)

    def loss(self, forward: Forward, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """Return cross-entropy and the distance to the averaged model's answer, its logits over τ."""
        logits = forward(x).logits
        return cross_entropy(logits, y) + self.gamma * self.tau**2 * kl(target, logits / self.tau)

    def direction(self, c: Client) -> Tensor:
        return self.gradient(c) + c.state.h / self.beta

    def upload(self, c: Client) -> Uploads:
        c.state.h = c.state.h + c.update
        return {"dual": Sum(c.update)} if self.dual_mean == "all" else {"dual": Sum(c.state.h, c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        dual = got.dual
        if self.dual_mean == "all":
            dual = server.state.h = server.state.h + got.dual / server.clients
        server.theta = server.theta + dual
        server.state.e = self.alpha * server.state.e + (1 - self.alpha) * server.theta
