"""Sharpness-aware methods: the descent gradient is taken at a perturbed point, same mini-batch."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Vectors, unit
from fedray.algorithms.dual import DynamicRegularisation


class FedSAM(Algorithm):
    """q = g(y + ρ unit(g(y))) (eq. 4; eq. 3's element-wise sign is not an ascent direction, D-22)."""

    name = "fedsam"
    paper = "Qu et al., Generalized federated learning via sharpness aware minimization, ICML 2022, algorithm 1"
    idea = "local SAM"
    rho: float = Field(0.5, ge=0, description="ρ: SAM radius")

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta + self.rho * unit(c.grad(c.theta)))


class FedTOGA(DynamicRegularisation):
    """q = g~ + α (y - x + H_i) + β Δ with g~ = g(y + ρ unit(r)) and Δ = -Σ π_i u_i/K_i of the round before.

    r = g(y) + g~_{k-1} + κΔ (fusion, the ported optimiser's), g(y) + κΔ (global) or g~_{k-1} + κΔ (neighbour: one
    backward pass a step); g~_{-1} = 0 at the start of each round. Readings: Δ is not divided by η (D-1), g~_{k-1} is g~
    alone (D-5), the mean of H_i runs over all N clients (D-2).
    """

    name = "fedtoga"
    paper = "FedTOGA (tuning-free global-update perturbation and dual correction), algorithm 1"
    idea = "SAM and dynamic regularisation, both corrected by the global update"
    rho: float = Field(0.1, ge=0, description="ρ: SAM radius")
    beta: float = Field(0.9, ge=0, description="β: dual correction, weight of Δ in the step")
    kappa: float = Field(1.0, ge=0, description="κ: SAM correction, weight of Δ in the perturbation (at most K)")
    perturbation: Literal["fusion", "global", "neighbour"] = Field(
        "fusion", description="what the perturbation follows beside κΔ")

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(super().server_state(theta), delta=theta.new_zeros(theta.shape))

    def message(self, server: Server) -> Vectors:
        return Vectors(delta=server.state.delta)

    def begin(self, c: Client) -> None:
        c.local.g_tilde = c.theta.new_zeros(c.theta.shape)

    def gradient(self, c: Client) -> Tensor:
        r = self.kappa * c.message.delta
        if self.perturbation != "neighbour":
            r = r + c.grad(c.theta)
        if self.perturbation != "global":
            r = r + c.local.g_tilde
        c.local.g_tilde = c.grad(c.theta + self.rho * unit(r))
        return c.local.g_tilde

    def direction(self, c: Client) -> Tensor:
        return super().direction(c) + self.beta * c.message.delta

    def upload(self, c: Client) -> dict[str, Sum]:
        return {**super().upload(c), "delta": Sum(c.update, -c.weight / c.steps)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.delta = got.delta
