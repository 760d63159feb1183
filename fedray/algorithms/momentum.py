"""Momentum that clients apply: FedCM, its sharpness-aware variant MoFedSAM, and MimeLite's frozen optimiser state."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, holds
from fedray.algorithms.fedsam import LocalSAM
from fedray.components.base import option


@holds(server=["delta"], sent="all")
class ClientMomentum(Algorithm):
    """Δ = -Σ π_i u_i/(K_i η_t): the mean local direction of the previous round, 0 in the first.

    The learning rate in Δ is that of u_i's round (D-23); Δ has a gradient's sign and the server descends (D-19).
    """

    bound_to_sgd = "makes Δ of updates divided by K η"

    def upload(self, c: Client) -> Uploads:
        return {"delta": Sum(c.update, -c.weight / (c.counted_steps * c.lr))}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.delta = got.delta


class FedCM(ClientMomentum):
    """q = α g(y) + (1 - α) Δ. α multiplies the fresh gradient: α = 1 is FedAvg (D-18)."""

    name = "fedcm"
    paper = "Xu et al., FedCM: federated learning with client-level momentum, 2021, algorithm 2"
    idea = "mixes the previous global direction into each local step"
    stacks = True
    alpha: float = option(0.1, gt=0, le=1, description="α: weight of the fresh gradient", paper={"FedCM, FedTOGA": 0.1})

    def direction(self, c: Client) -> Tensor:
        return self.alpha * c.grad(c.theta) + (1 - self.alpha) * c.message.delta


class MoFedSAM(LocalSAM, ClientMomentum):
    """q = β g(y + ρ unit(g(y))) + (1 - β) Δ; β = 1 is FedSAM, ρ = 0 is FedCM.

    Readings: the Δ of the round just finished is the one used (D-21); the server adds η_g times the mean update (D-20).
    The step is FL-Simulator's; FedLESAM's repository leaves β out of it (D-11d).

    As it is printed: x <- x - η_g Δ, which is η_g U/(η K) if all clients take K steps (`step: printed`, D-20).
    """

    name = "mofedsam"
    paper = "Qu et al., Generalized federated learning via sharpness aware minimization, ICML 2022, algorithm 2"
    idea = "FedSAM with client-level momentum"
    stacks = True
    rho: float = option(
        0.5,
        ge=0,
        description="ρ: SAM radius",
        paper={"FedSAM": 0.5, "FL-Simulator": 0.1, "LeNet, ResNet-18 (FedTOGA)": 0.01},
    )
    beta: float = option(
        0.1,
        gt=0,
        le=1,
        description="β: weight of the fresh gradient",
        paper={"FedSAM": 0.1, "FL-Simulator": [0.05, 0.1]},
    )
    step: Literal["mean", "printed"] = Field("mean", description="server step: η_g U, or -η_g Δ (D-20)")

    @property
    def scales_update(self) -> bool:  # type: ignore[override]
        return self.step == "printed"

    def direction(self, c: Client) -> Tensor:
        return self.beta * self.gradient(c) + (1 - self.beta) * c.message.delta

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got if self.step == "mean" else got.with_update(-got.delta))


@holds(server=["m"], sent=["m"])
class MimeLite(Algorithm):
    """q = g(y) + β m, m frozen during the round; m <- β m + Σ π_i ∇f_i(x) with full-batch gradients at the x received.

    β is SGD's momentum: β = 0 is FedAvg, bit for bit. One step on the full batch by all clients is centralised momentum
    SGD. Some tables (MoFedSAM's) instead give the weight of the fresh gradient, 1 - β, in (1 - β) g + β m.
    """

    name = "mimelite"
    bound_to_sgd = "puts the server's momentum in the place of the local optimiser's"
    paper = (
        "Karimireddy et al., Mime: mimicking centralized stochastic algorithms in federated learning, 2020, "
        "algorithm 1 (MimeLite)"
    )
    idea = "the server's momentum, fixed during local steps"
    beta: float = option(
        0.9, ge=0, lt=1, description="β: momentum", paper={"FedSAM, searched as 1 - β": [0.01, 0.1, 0.2, 0.5, 1]}
    )

    def direction(self, c: Client) -> Tensor:
        return self.gradient(c) + self.beta * c.message.m

    def upload(self, c: Client) -> Uploads:
        return {"full_gradient": Sum(c.full_grad(c.theta_0), c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.m = self.beta * server.state.m + got.full_gradient
