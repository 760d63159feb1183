"""FedGloSS: the server perturbs the model that it broadcasts, and clients add SAM and dynamic regularisation."""

from torch import Tensor

from fedray.algorithms.base import Client, Received, Server, Vectors, holds
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.common.vectors import move_along
from fedray.components.base import option


@holds(server=["h", "ascent"])
class FedGloSS(DynamicRegularisation):
    """Start at x~ = x - ρ_t unit(U_old); q = g(y + ρ_l unit(g(y))) + α (y - x~ + H_i); H_i <- H_i + u_i; x as FedDyn.

    u_i = y_K - x~; the server adds the mean update and the mean of all H_i to the unperturbed x. U_old is the previous
    round's mean update, so -U_old points uphill; in round 1 it is 0. α is the paper's 1/β, and H_i = -β s_i for its
    duals s_i. Positive radii grow linearly from `start_rho` over the first `warmup` rounds.

    Readings: the server's warm-up ends at its own ρ, in the code at the client's (D-86); the mean of H_i is over N
    (D-87); the anchor is the model received, to which the code's anchor of each epoch is equivalent (D-88). ρ = 0 is
    FedSpeed, both radii 0 FedDyn. Summaries and code were read instead of the paper.
    """

    name = "fedgloss"
    paper = (
        "Caldarola et al., Beyond local sharpness: communication-efficient global sharpness-aware "
        "minimization for federated learning, CVPR 2025"
    )
    idea = "the server broadcasts a perturbed model, along its last step; clients add SAM and duals"
    stacks = True
    alpha: float = option(
        0.1,
        ge=0,
        description="α: coefficient of the dynamic regulariser, 1/β",
        paper={"CIFAR-10": 0.1, "CIFAR-100": 0.01},
    )
    rho: float = option(
        0.15, ge=0, description="ρ: radius of the server's perturbation", paper={"CIFAR-10": 0.15, "CIFAR-100": 0.01}
    )
    rho_l: float = option(
        0.15,
        ge=0,
        description="ρ_l: radius of the clients' perturbation; 0 saves a gradient per step",
        paper={"CIFAR-10": 0.15, "CIFAR-100": 0.2},
    )
    start_rho: float = option(1e-3, ge=0, description="both radii in round 1 of the warm-up", paper={"FedGloSS": 1e-3})
    warmup: int = option(
        0,
        ge=0,
        description="rounds in which the radii grow",
        paper={"CIFAR-10, of 10,000": 2000, "CIFAR-100, of 20,000": 15000},
    )

    def count_revisions(self) -> int:  # personal tests in the warm-up had the radius of the round before
        return super().count_revisions() + (self.rho > 0 and self.warmup > 0)

    def radius(self, full: float, round: int) -> float:
        """Return ρ_t of a round (from 0) on the way to `full`; 0 in every round if `full` is 0."""
        if full == 0:
            return 0.0
        grown = 1.0 if round >= self.warmup else round / self.warmup
        return full if grown == 1 else self.start_rho + (full - self.start_rho) * grown

    def broadcast(self, server: Server) -> Tensor:
        return move_along(server.theta, self.radius(self.rho, server.round), server.state.ascent)

    def message(self, server: Server) -> Vectors:
        return Vectors(super().message(server), rho=server.theta.new_tensor(self.radius(self.rho_l, server.round)))

    def gradient(self, c: Client) -> Tensor:
        g = c.grad(c.theta)
        return c.grad(move_along(c.theta, c.message.rho, g)) if self.rho_l else g

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.ascent = -got.update
