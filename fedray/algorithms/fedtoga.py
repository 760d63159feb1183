"""FedTOGA: SAM and dynamic regularisation, both corrected by the global update."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Received, Server, Sum, Uploads, holds
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.common.vectors import add_to, move_along
from fedray.components.base import option


@holds(server=["h", "delta"], sent=["delta"])
class FedTOGA(DynamicRegularisation):
    """q = g~ + α (y - x + H_i) + β Δ; H_i <- H_i + u_i; h <- h + Σ u_i/N; x <- x + η_g U + h; Δ <- -Σ π_i u_i/K_i.

    g~ = g(y + ρ unit(r)). r = g(y) + g~_{k-1} + κΔ (fusion, as in the ported optimiser), g(y) + κΔ (global) or
    g~_{k-1} + κΔ (neighbour: one backward pass per step); g~_{-1} = 0 at the start of each round. A client updates H_i
    after its last step; then the server sums over the cohort. H_i, h and Δ start at 0, so that h is always the mean of
    H_i over all N clients (D-2), and a round uses the Δ of the round before. Readings: Δ is not divided by η (D-1),
    g~_{k-1} is only g~ (D-5), ρ counts once (D-7).
    """

    name = "fedtoga"
    paper = (
        "Li et al., Neighborhood and global perturbations supported SAM in federated learning: from local tweaks to "
        "global awareness, 2024, arXiv 2408.14144, algorithm 1"
    )
    idea = "SAM and dynamic regularisation, both corrected by the global update"
    stacks = True
    bound_to_sgd = "adds Δ, a mean step of SGD, to gradients"
    rho: float = option(0.1, ge=0, description="ρ: SAM radius", paper={"LeNet, ResNet-18": 0.1})
    beta: float = option(
        0.9, ge=0, le=1, description="β: dual correction, weight of Δ in the step", paper={"searched": [0.8, 0.85, 0.9]}
    )
    kappa: float = option(
        1.0,
        ge=0,
        description="κ: SAM correction, weight of Δ in the perturbation (at most K)",
        paper={"searched": [1, 2, 4]},
    )
    perturbation: Literal["fusion", "global", "neighbour"] = Field(
        "fusion", description="direction of the perturbation, in addition to κΔ"
    )

    def begin(self, c: Client) -> None:
        c.local.g_tilde = c.theta.new_zeros(c.theta.shape)

    def ascent(self, c: Client) -> Tensor:
        """Return r, the direction of the perturbation."""
        if self.perturbation == "neighbour":
            return self.kappa * c.message.delta + c.local.g_tilde
        r = add_to(c.grad(c.theta), self.kappa * c.message.delta)
        return r if self.perturbation == "global" else add_to(r, c.local.g_tilde)

    def gradient(self, c: Client) -> Tensor:
        c.local.g_tilde = c.grad(move_along(c.theta, self.rho, self.ascent(c)))
        return c.local.g_tilde

    def direction(self, c: Client) -> Tensor:
        return add_to(self.proximal(c, c.theta), self.gradient(c), self.beta * c.message.delta)

    def upload(self, c: Client) -> Uploads:
        return {**super().upload(c), "delta": Sum(c.update, -c.weight / c.counted_steps)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.delta = got.delta
