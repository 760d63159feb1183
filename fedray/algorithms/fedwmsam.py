"""FedWMSAM: client-level momentum with control variates, and SAM along the path that the momentum alone would take."""

from typing import Self

from pydantic import Field, model_validator
from torch import Tensor
from torch.linalg import vector_norm

from fedray.algorithms.base import Client, Received, Server, Sum, Uploads, Vectors, unit
from fedray.algorithms.momentum import ClientMomentum
from fedray.common.errors import UserError
from fedray.components.base import option


class FedWMSAM(ClientMomentum):
    """q = α (g(y + e) + c - c_i) + (1 - α) Δ with e = ρ unit(x + k Δ_i - y), Δ_i = Δ + α/(1 - α) (c - c_i); k: the
    step.

    Δ is FedCM's, c and c_i are SCAFFOLD's; e = 0 in the first step; one gradient per step. With `adaptive` the server
    moves α <- 0.99 α + 0.01 clip(mean_i (1 + cos(u_i, Δ)), 0.1, 0.9) with the Δ of the round (a cosine with 0 makes the
    term 0), so that updates along the momentum lower α.

    Readings: e is one vector of length ρ (D-89) that points uphill, as in the authors' summary (D-90); k Δ_i lacks η as
    written (D-91); α's rule is known only from code (D-93). With `adaptive: false`, α = 1 and ρ = 0 this is SCAFFOLD,
    without variates and with ρ = 0 FedCM. Only the paper's poster and code were read, not its formulas [S].
    """

    name = "fedwmsam"
    paper = (
        "Li et al., FedWMSAM: fast and flat federated learning via weighted momentum and sharpness-aware "
        "minimization, NeurIPS 2025"
    )
    idea = "SAM along the momentum's path, one gradient per step, with variates and a learnt α"
    rho: float = option(0.01, ge=0, description="ρ: SAM radius", paper={"best": 0.01, "FedWMSAM's code": 0.1})
    alpha: float = option(
        0.1,
        gt=0,
        le=1,
        description="α: weight of the fresh gradient, its initial value if it adapts; 1 needs ρ = 0",
        paper={"FedWMSAM": 0.1},
    )
    adaptive: bool = Field(True, description="the server moves α between 0.1 and 0.9 (D-93)")
    variates: bool = Field(True, description="with control variates c and c_i")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.alpha == 1 and self.rho:
            raise UserError("algorithm.alpha: found 1 with rho above 0; α/(1 - α) has to be finite")
        return self

    def server_state(self, theta: Tensor) -> Vectors:
        zero = theta.new_zeros(theta.shape)
        state = Vectors(super().server_state(theta))
        if self.variates:
            state.c = zero
        if self.adaptive:
            state.alpha = theta.new_tensor(self.alpha)
        return state

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape)) if self.variates else Vectors()

    def perturbation(self, c: Client, alpha: Tensor | float) -> Tensor:
        """Return e `(P,)`."""
        return self.rho * unit(c.theta_0 + c.step * self.ahead(c, alpha) - c.theta)

    def ahead(self, c: Client, alpha: Tensor | float) -> Tensor:
        """Return Δ_i `(P,)`."""
        if not self.variates:
            return c.message.delta
        return c.message.delta + alpha / (1 - alpha) * (c.message.c - c.state.c)

    def direction(self, c: Client) -> Tensor:
        alpha = c.message.alpha if self.adaptive else self.alpha
        g = c.grad(c.theta + self.perturbation(c, alpha) if self.rho and c.step else c.theta)
        if self.variates:
            g = g + (c.message.c - c.state.c)
        return alpha * g + (1 - alpha) * c.message.delta

    def upload(self, c: Client) -> Uploads:
        uploads = dict(super().upload(c))
        if self.variates:
            change = -c.message.c - c.update / (c.counted_steps * c.lr)
            c.state.c = c.state.c + change
            uploads["c_change"] = Sum(change)
        if self.adaptive:
            lengths = vector_norm(c.update) * vector_norm(c.message.delta)
            cosine = c.update @ c.message.delta / lengths.clamp(min=1e-30)
            uploads["value"] = Sum((lengths > 0) * (1 + cosine))
        return uploads

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        if self.variates:
            server.state.c = server.state.c + got.c_change / server.clients
        if self.adaptive:
            value = (got.value / server.cohort).clamp(0.1, 0.9)
            server.state.alpha = 0.99 * server.state.alpha + 0.01 * value
