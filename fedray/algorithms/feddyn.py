"""Dynamic regularisation: each client keeps H_i, the sum of its updates, and the server adds the mean of all H_i."""

from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads, holds
from fedray.algorithms.scaffold import ControlVariates
from fedray.common.vectors import add_to
from fedray.components.base import option


@holds(server=["h"], client=["h"])
class DynamicRegularisation(Proximal):
    """q = gradient + α (y - x + H_i); H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    `gradient` is the method's descent gradient. This is FedDyn in model units (H_i = -λ_i/α, form b); α multiplies:
    `alpha: 0.1` is the papers' setting (D-3). Σ runs over all N clients (D-2). α = 0 is not FedAvg (D-14).
    """

    alpha: float = option(
        0.1,
        ge=0,
        description="α: coefficient of the dynamic regulariser (λ; 1/α in FedTOGA's text)",
        paper={"FedTOGA, FL-Simulator": 0.1},
    )

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return add_to(theta - c.theta_0, c.state.h, scale=self.alpha)

    def decoupled_weight(self, c: Client) -> float:
        return self.alpha

    def upload(self, c: Client) -> Uploads:
        c.state.h = c.state.h + c.update
        return {"h_change": Sum(c.update)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.h = server.state.h + got.h_change / server.clients
        server.theta = server.theta + server.state.h


class FedDyn(DynamicRegularisation):
    """q = g(y) + α (y - x + H_i); H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    Model units: H_i = -λ_i/α; α multiplies, so `alpha: 0.1` is the papers' setting (D-3); Σ runs over all N clients
    (D-2). Reading: one α for all (D-17). α = 0 is not FedAvg (D-14).
    """

    name = "feddyn"
    paper = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021, algorithm 1"
    idea = "aligns local and global stationary points"
    stacks = True
    alpha: float = option(
        0.1,
        ge=0,
        description="α: coefficient of the dynamic regulariser",
        paper={"LeNet (FedDyn's code, FedTOGA)": 0.01, "ResNet-18 (FedTOGA, FL-Simulator)": 0.1, "FedSOL": 0.1},
    )


@holds(server=["h", "c"], client=["h", "c"])
class FedDC(DynamicRegularisation, ControlVariates):
    """q = g(y) + α (y - x + h_i) + c - c_i; h_i <- h_i + u_i; c_i <- c_i - c - u_i/(K_i η_t); x and h as FedDyn.

    c stays the mean of all N c_i. Readings: the η of the round, not the first one (D-23); clients count equally (D-17).
    """

    name = "feddc"
    paper = (
        "Gao et al., FedDC: federated learning with non-IID data via local drift decoupling and correction, CVPR 2022"
    )
    idea = "tracks each client's drift and corrects it, with control variates"
    stacks = True
    alpha: float = option(
        0.1,
        ge=0,
        description="α: weight of the drift penalty",
        paper={"LeNet (FedDC, FedTOGA)": 0.01, "ResNet-18 (FedTOGA)": 0.1},
    )

    def decoupled_weight(self, c: Client) -> float:
        return 0.0  # the authors' code clips all of it

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return super().proximal(c, theta) + c.message.c - c.state.c

    def upload(self, c: Client) -> Uploads:
        return {**DynamicRegularisation.upload(self, c), **ControlVariates.upload(self, c)}
