"""Sharpness-aware methods: the descent gradient is taken at a perturbed point, on the same mini-batch.

A perturbation includes no weight decay, clipping or proximal term, and the step starts from the unperturbed y.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, Vectors, unit
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.algorithms.scaffold import ControlVariates
from fedray.common.errors import UserError
from fedray.common.vectors import move_along
from fedray.models.network import Layout


class LocalSAM(Algorithm):
    """Base of the methods whose gradient is g(y + ρ unit(g(y))), g restricted to the part that is perturbed."""

    rho: float = Field(0.1, ge=0, description="ρ: SAM radius", json_schema_extra={"paper": {"FedTOGA": 0.1}})
    perturb: Literal["all", "head", "body"] = Field("all", description="perturbed parameters (FedSOL's code, D-116)")

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        refuse_empty_part(self.perturb, layout)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(move_along(c.theta, self.rho, self.ascent(c)))

    def ascent(self, c: Client) -> Tensor:
        """Return the direction of the perturbation, not normalised."""
        return c.grad(c.theta, part=self.perturb)


class FedSAM(LocalSAM):
    """q = g(y + ρ unit(g(y))) (eq. 4, D-22), x <- x + η_g U.

    `perturb: head` or `body` perturbs only that part of the parameters, by its unit gradient (D-116).

    As it is printed: eq. 3 multiplies the perturbation element-wise by sign(g), which makes it ρ |g|/||g||, not an
    ascent direction (`sign: true`, D-22); algorithms 1 and 3 move x by the previous update (`delta: old`, D-21).
    """

    name = "fedsam"
    paper = "Qu et al., Generalized federated learning via sharpness aware minimization, ICML 2022, algorithm 1"
    idea = "local SAM"
    rho: float = Field(
        0.5,
        ge=0,
        description="ρ: SAM radius",
        json_schema_extra={
            "paper": {
                "CIFAR-10, ResNet-18 (FedSAM)": 0.5,
                "EMNIST (FedSAM)": 0.2,
                "CIFAR-100 (FedSAM)": 0.6,
                "FedTOGA": 0.01,
                "FedSOL": 0.1,
            }
        },
    )
    sign: bool = Field(False, description="eq. 3's perturbation, ρ sign(g) g/||g|| (D-22)")
    delta: Literal["new", "old"] = Field(
        "new", description="update of x: U of this round, or of the previous one (D-21)"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(delta=torch.zeros_like(theta)) if self.delta == "old" else Vectors()

    def ascent(self, c: Client) -> Tensor:
        g = super().ascent(c)
        return g.abs() if self.sign else g

    def aggregate(self, server: Server, got: Received) -> None:
        if self.delta == "old":
            got, server.state.delta = got.with_update(server.state.delta), got.update
        super().aggregate(server, got)


class FedASAM(Algorithm):
    """q = g(y + ρ T² g(y) / ||T g(y)||) with T = |y| + η_a on weights and 1 on everything else.

    Reading D-53: the authors' code; FedSOL's port is `scaled: all, eta_a: 0` (T = |y| everywhere) with ρ = 1.
    """

    name = "fedasam"
    paper = "Caldarola et al., Improving generalization in federated learning by seeking flat minima, ECCV 2022"
    idea = "local SAM, each weight perturbed in proportion to its size"
    rho: float = Field(
        0.7,
        ge=0,
        description="ρ: radius, relative to the weights",
        json_schema_extra={"paper": {"CIFAR-10, LeNet": 0.7, "FedSOL": 1.0}},
    )
    eta_a: float = Field(0.2, ge=0, description="η_a: added to every |weight| in T")
    scaled: Literal["weights", "all"] = Field(
        "weights", description="parameters that T scales: those named weight, or all"
    )

    def begin(self, c: Client) -> None:
        scaled = c.layout.mask(lambda name: self.scaled == "all" or "weight" in name.rpartition(".")[2])
        c.local.scaled = scaled.to(c.theta.device)

    def gradient(self, c: Client) -> Tensor:
        t = torch.where(c.local.scaled > 0, c.theta.abs() + self.eta_a, 1.0)
        return c.grad(c.theta + self.rho * t * unit(t * c.grad(c.theta), eps=1e-16))


class FedGAMMA(LocalSAM, ControlVariates):
    """q = g(y + ρ unit(g(y))) + c - c_i: SCAFFOLD with SAM's gradient; the variates are made of it, too."""

    name = "fedgamma"
    paper = "Dai et al., FedGAMMA: federated learning with global sharpness-aware minimization, TNNLS 2023"
    idea = "SAM with SCAFFOLD's control variates"
    rho: float = Field(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        json_schema_extra={"paper": {"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FL-Simulator": 0.01}},
    )


class FedSpeed(LocalSAM, DynamicRegularisation):
    """q = g(y + ρ unit(g(y))) + α (y - x + H_i): FedDyn with SAM's gradient.

    Reading D-15, the authors' code: the whole descent gradient is the perturbed one, and the server adds the mean of
    all N clients' H.

    As it is printed: the gradient is (1 - a) g(y) + a g(y + ρ unit(g(y))) (`mix: a`), and each client of the cohort
    corrects its own upload, so that the server adds the cohort's mean of H (`dual_mean: cohort`), which is the same
    if all clients take part.
    """

    name = "fedspeed"
    paper = (
        "Sun et al., FedSpeed: larger local interval, less communication round, and higher generalization "
        "accuracy, ICLR 2023, algorithm 1"
    )
    idea = "SAM with dynamic regularisation"
    mix: float = Field(
        1.0,
        ge=0,
        le=1,
        description="a: weight of the perturbed gradient (the paper's α, D-15)",
        json_schema_extra={"paper": {"FedSpeed's code": 1}},
    )
    dual_mean: Literal["all", "cohort"] = Field("all", description="clients whose mean H the server adds (D-15)")

    def gradient(self, c: Client) -> Tensor:
        if self.mix == 1:
            return super().gradient(c)
        g = c.grad(c.theta)
        along = g if self.perturb == "all" else g * c.layout.part(self.perturb).to(g.device)
        return (1 - self.mix) * g + self.mix * c.grad(move_along(c.theta, self.rho, along))

    def server_state(self, theta: Tensor) -> Vectors:
        return super().server_state(theta) if self.dual_mean == "all" else Vectors()

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        return uploads if self.dual_mean == "all" else {"dual": Sum(c.state.h, c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        if self.dual_mean == "all":
            super().aggregate(server, got)
        else:
            Algorithm.aggregate(self, server, got)
            server.theta = server.theta + got.dual


def refuse_empty_part(perturb: str, layout: Layout) -> None:
    """Raise UserError if the perturbed part of the model has no trained parameters."""
    if not layout.name_part(perturb):
        raise UserError(f"algorithm.perturb: found {perturb!r}; the model has no parameters there to train")
