"""Dynamic regularisation: each client keeps H_i, the sum of its updates, and the server adds the mean of all H_i."""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Vectors


class DynamicRegularisation(Proximal):
    """q = gradient + α (y - x + H_i); H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    `gradient` is the method's descent gradient. This is FedDyn in model units (H_i = -λ_i/α, form b); α multiplies:
    `alpha: 0.1` is the papers' setting (D-3). Σ runs over all N clients (D-2). α = 0 is not FedAvg (D-14).
    """

    alpha: float = Field(0.1, ge=0, description="α: coefficient of the dynamic regulariser (λ; 1/α in FedTOGA's text)")

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(h=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(h=theta.new_zeros(theta.shape))

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.alpha * (theta - c.theta_0 + c.state.h)

    def upload(self, c: Client) -> dict[str, Sum]:
        c.state.h = c.state.h + c.update
        return {"h_change": Sum(c.update)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.h = server.state.h + got.h_change / server.clients
        server.theta = server.theta + server.state.h


class FedDyn(DynamicRegularisation):
    """q = g(y) + α (y - x + H_i)."""

    name = "feddyn"
    paper = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021, algorithm 1"
    idea = "aligns local and global stationary points"
