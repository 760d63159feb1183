"""FedSMOO: dynamic regularisation of the parameters and, in the same way, of the perturbation."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Received, Server, Sum, Uploads, holds, unit
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.components.base import option


@holds(server=["h", "s"], client=["h", "mu"], sent=["s"])
class FedSMOO(DynamicRegularisation):
    """q = g(y + e) + α (y - x + H_i) with e = ρ unit(g(y) - μ_i - s); each step also μ_i <- μ_i + e - s.

    Server: s = ρ unit(Σ μ_i), so that all clients perturb alike. Reading D-16: clients upload μ_i, as the authors' code
    does; `perturbation_dual: corrected` uploads the paper's μ_i - e of the last step, which is 0 after a single first
    step (then s = 0).
    """

    name = "fedsmoo"
    paper = (
        "Sun et al., Dynamic regularized sharpness aware minimization in federated learning: approaching "
        "global consistency and smooth landscape, ICML 2023, algorithm 1"
    )
    idea = "one global perturbation: dynamic regularisation of SAM"
    stacks = True
    rho: float = option(0.1, ge=0, description="ρ: SAM radius, of e and of s", paper={"FedTOGA": 0.1})
    perturbation_dual: Literal["whole", "corrected"] = Field(
        "whole", description="source of s: μ_i (code) or μ_i - e (paper)"
    )

    def begin(self, c: Client) -> None:
        c.local.mu = c.state.mu

    def gradient(self, c: Client) -> Tensor:
        s, mu = c.message.s, c.local.mu
        c.local.e = self.rho * unit(c.grad(c.theta) - mu - s)
        c.local.mu = mu + c.local.e - s
        return c.grad(c.theta + c.local.e)

    def upload(self, c: Client) -> Uploads:
        c.state.mu = c.local.mu
        sent = c.local.mu if self.perturbation_dual == "whole" else c.local.mu - c.local.e
        return {**super().upload(c), "mu": Sum(sent)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.s = self.rho * unit(got.mu / server.cohort)
