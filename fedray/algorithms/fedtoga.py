"""FedTOGA: SAM and dynamic regularisation, both corrected by the global update, with its ablation switches."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, Vectors
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.common.vectors import move_along


class FedTOGA(DynamicRegularisation):
    """q = g~ + α (y - x + H_i) + β Δ with g~ = g(y + ρ unit(r)) and Δ = -Σ π_i u_i/K_i of the previous round.

    r = g(y) + g~_{k-1} + κΔ (fusion, as in the ported optimiser), g(y) + κΔ (global) or g~_{k-1} + κΔ (neighbour: one
    backward pass per step); g~_{-1} = 0 at the start of each round. Readings: Δ is not divided by η (D-1; `delta_scale:
    gradient` divides), g~_{k-1} is only g~ (D-5), the server's h is the mean of H_i over all N clients (D-2;
    `dual_divisor: cohort` is the printed algorithm's M), ρ counts once (D-7; `radius: squared` is section 4.1's).

    The four parts can be switched off, as in table 10: without `sam` g~ = g(y); without `dynamic_regularisation` there
    is no H (α = 0 would keep the server's h, D-14); without `dual_correction` no βΔ; without `sam_correction` r = g(y).
    Then the method's label is table 10's: `fedtoga-sam+dr` without both corrections, `fedtoga-sam+dr+dual` without the
    second.
    """

    name = "fedtoga"
    paper = (
        "Li et al., Neighborhood and global perturbations supported SAM in federated learning: from local tweaks to "
        "global awareness, 2024, arXiv 2408.14144, algorithm 1"
    )
    idea = "SAM and dynamic regularisation, both corrected by the global update"
    rho: float = Field(0.1, ge=0, description="ρ: SAM radius", json_schema_extra={"paper": {"LeNet, ResNet-18": 0.1}})
    beta: float = Field(
        0.9,
        ge=0,
        le=1,
        description="β: dual correction, weight of Δ in the step",
        json_schema_extra={"paper": {"searched": [0.8, 0.85, 0.9]}},
    )
    kappa: float = Field(
        1.0,
        ge=0,
        description="κ: SAM correction, weight of Δ in the perturbation (at most K)",
        json_schema_extra={"paper": {"searched": [1, 2, 4]}},
    )
    perturbation: Literal["fusion", "global", "neighbour"] = Field(
        "fusion", description="direction of the perturbation, in addition to κΔ"
    )
    delta_scale: Literal["mean_step", "gradient"] = Field(
        "mean_step", description="Δ as a mean local step (u/K), or divided by η_t as well"
    )
    radius: Literal["rho", "squared"] = Field("rho", description="length of the perturbation: ρ, or ρ² (D-7)")
    dual_divisor: Literal["all", "cohort"] = Field("all", description="h divides by N, or by the cohort's M")
    sam: bool = Field(True, description="perturb at all")
    dynamic_regularisation: bool = Field(True, description="the α term and the server's h")
    dual_correction: bool = Field(True, description="the β term")
    sam_correction: bool = Field(True, description="the perturbation has more terms than g(y)")

    @property
    def needs_delta(self) -> bool:
        """True if anything reads Δ, which then costs a vector of downlink."""
        return self.dual_correction or (self.sam and self.sam_correction)

    @property
    def bound_to_sgd(self) -> str:  # type: ignore[override]
        """The reason if anything reads Δ."""
        return "adds Δ, a mean step of SGD, to gradients" if self.needs_delta else ""

    def make_label(self) -> str:
        """`fedtoga`, or the parts that are on: `fedtoga-sam+dr+dual`."""
        parts = {
            "sam": self.sam,
            "dr": self.dynamic_regularisation,
            "dual": self.dual_correction,
            "correction": self.sam_correction,
        }
        return self.name if all(parts.values()) else f"{self.name}-{'+'.join(p for p, on in parts.items() if on)}"

    def server_state(self, theta: Tensor) -> Vectors:
        state = super().server_state(theta) if self.dynamic_regularisation else Vectors()
        return Vectors(state, delta=theta.new_zeros(theta.shape)) if self.needs_delta else state

    def client_state(self, theta: Tensor) -> Vectors:
        return super().client_state(theta) if self.dynamic_regularisation else Vectors()

    def message(self, server: Server) -> Vectors:
        return Vectors(delta=server.state.delta) if self.needs_delta else Vectors()

    def begin(self, c: Client) -> None:
        c.local.g_tilde = c.theta.new_zeros(c.theta.shape)
        if self.needs_delta:  # the same in every step
            c.local.ascent_delta, c.local.descent_delta = self.kappa * c.message.delta, self.beta * c.message.delta

    def ascent(self, c: Client) -> Tensor:
        """Return r, the direction of the perturbation."""
        if not self.sam_correction:
            return c.grad(c.theta)
        if self.perturbation == "neighbour":
            return c.local.ascent_delta + c.local.g_tilde
        r = c.grad(c.theta)  # a new vector, which takes the sum
        r += c.local.ascent_delta
        if self.perturbation != "global":
            r += c.local.g_tilde
        return r

    def decoupled_weight(self, c: Client) -> float:
        return super().decoupled_weight(c) if self.dynamic_regularisation else 0.0

    def gradient(self, c: Client) -> Tensor:
        if not self.sam:
            return c.grad(c.theta)
        rho = self.rho if self.radius == "rho" else self.rho**2
        c.local.g_tilde = c.grad(move_along(c.theta, rho, self.ascent(c)))
        return c.local.g_tilde

    def direction(self, c: Client) -> Tensor:
        g = self.gradient(c)
        if not self.dynamic_regularisation:
            return g + c.local.descent_delta if self.dual_correction else g
        q = self.proximal(c, c.theta)  # a new vector, which takes the sum
        q += g
        if self.dual_correction:
            q += c.local.descent_delta
        return q

    def upload(self, c: Client) -> Uploads:
        uploads = dict(super().upload(c)) if self.dynamic_regularisation else {}
        if self.needs_delta:
            per_step = c.counted_steps * (1.0 if self.delta_scale == "mean_step" else c.lr)
            uploads["delta"] = Sum(c.update, -c.weight / per_step)
        return uploads

    def divisor(self, server: Server) -> int:
        return server.clients if self.dual_divisor == "all" else server.cohort

    def aggregate(self, server: Server, got: Received) -> None:
        if self.dynamic_regularisation:
            super().aggregate(server, got)
        else:
            Algorithm.aggregate(self, server, got)
        if self.needs_delta:
            server.state.delta = got.delta
