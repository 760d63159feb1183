"""FedNSAM: SAM from the server's Nesterov look-ahead."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Received, Server, Vectors, holds
from fedray.algorithms.fedsam import LocalSAM
from fedray.components.base import option


@holds(server=["m"])
class FedNSAM(LocalSAM):
    """Start at s = x + γ m; q = g(y + e), e = ρ unit(g(y)); m <- γ m + η_g U, x <- x + m. U = Σ π_i (y_K - s).

    So x becomes the mean of the local models. The abstract perturbs along the global Nesterov momentum, uphill: e = -ρ
    unit(m), `perturbation: momentum`, with one gradient per step; the authors ran SAM on the local gradient, which is
    the default here (D-99). Their code loses the momentum: U in the first round, then m <- γ U + U (`memory: last`,
    D-100). It has two γ (D-101). γ = 0 is FedSAM, ρ = 0 FedACG without its proximal term. Only the paper's abstract and
    code were read, not its formulas [S].
    """

    name = "fednsam"
    paper = "Liu et al., FedNSAM: consistency of local and global flatness for federated learning, 2026"
    idea = "SAM from the server's look-ahead"
    gamma: float = option(0.85, ge=0, lt=1, description="γ: server momentum", paper={"FedNSAM": 0.85})
    rho: float = option(0.05, ge=0, description="ρ: SAM radius", paper={"FedNSAM": 0.05})
    perturbation: Literal["gradient", "momentum"] = Field("gradient", description="direction of e (D-99)")
    memory: Literal["all", "last"] = Field(
        "all", description="last: m <- γ U + U, which remembers one round, as in the code (D-100)"
    )

    def broadcast(self, server: Server) -> Tensor:
        return server.theta + self.gamma * server.state.m

    def message(self, server: Server) -> Vectors:
        return Vectors(m=server.state.m) if self.perturbation == "momentum" else Vectors()

    def ascent(self, c: Client) -> Tensor:
        return c.grad(c.theta) if self.perturbation == "gradient" else -c.message.m

    def aggregate(self, server: Server, got: Received) -> None:
        update = server.server_lr * got.update
        kept = server.state.m if self.memory == "all" or server.round == 0 else update
        server.state.m = self.gamma * kept + update
        server.theta = server.theta + server.state.m
