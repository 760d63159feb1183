"""Sharpness-aware methods: the descent gradient is taken at a perturbed point, on the same mini-batch.

A perturbation includes no weight decay, clipping or proximal term, and the step starts from the unperturbed y.
"""

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, unit
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.algorithms.scaffold import ControlVariates
from fedray.common.vectors import move_along
from fedray.components.base import option


class LocalSAM(Algorithm):
    """Base of the methods whose gradient is g(y + ρ unit(g(y)))."""

    rho: float = option(0.1, ge=0, description="ρ: SAM radius", paper={"FedTOGA": 0.1})

    def ascent(self, c: Client) -> Tensor:
        """Return the direction of the perturbation, not normalised."""
        return c.grad(c.theta)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(move_along(c.theta, self.rho, self.ascent(c)))


class FedSAM(LocalSAM):
    """q = g(y + ρ unit(g(y))) (eq. 4, D-22), x <- x + η_g U (D-21)."""

    name = "fedsam"
    paper = "Qu et al., Generalized federated learning via sharpness aware minimization, ICML 2022, algorithm 1"
    idea = "local SAM"
    stacks = True
    rho: float = option(
        0.5,
        ge=0,
        description="ρ: SAM radius",
        paper={
            "CIFAR-10, ResNet-18 (FedSAM)": 0.5,
            "EMNIST (FedSAM)": 0.2,
            "CIFAR-100 (FedSAM)": 0.6,
            "FedTOGA": 0.01,
            "FedSOL": 0.1,
        },
    )


class FedASAM(Algorithm):
    """q = g(y + ρ T² g(y) / ||T g(y)||) with T = |y| + η_a on weights and 1 on everything else.

    Reading D-53: the authors' code.
    """

    name = "fedasam"
    paper = "Caldarola et al., Improving generalization in federated learning by seeking flat minima, ECCV 2022"
    idea = "local SAM, each weight perturbed in proportion to its size"
    stacks = True
    rho: float = option(
        0.7, ge=0, description="ρ: radius, relative to the weights", paper={"CIFAR-10, LeNet": 0.7, "FedSOL": 1.0}
    )
    eta_a: float = Field(0.2, ge=0, description="η_a: added to every |weight| in T")

    def begin(self, c: Client) -> None:
        c.local.scaled = c.layout.mask(lambda name: "weight" in name.rpartition(".")[2]).to(c.theta.device)

    def gradient(self, c: Client) -> Tensor:
        t = torch.where(c.local.scaled > 0, c.theta.abs() + self.eta_a, 1.0)
        return c.grad(c.theta + self.rho * t * unit(t * c.grad(c.theta), eps=1e-16))


class FedGAMMA(LocalSAM, ControlVariates):
    """q = g(y + ρ unit(g(y))) + c - c_i: SCAFFOLD with SAM's gradient; the variates are made of it, too."""

    name = "fedgamma"
    paper = "Dai et al., FedGAMMA: federated learning with global sharpness-aware minimization, TNNLS 2023"
    idea = "SAM with SCAFFOLD's control variates"
    stacks = True
    rho: float = option(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        paper={"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FL-Simulator": 0.01},
    )


class FedSpeed(LocalSAM, DynamicRegularisation):
    """q = g(y + ρ unit(g(y))) + α (y - x + H_i): FedDyn with SAM's gradient.

    Reading D-15, the authors' code: the whole descent gradient is the perturbed one, and the server adds the mean of
    all N clients' H.
    """

    name = "fedspeed"
    paper = (
        "Sun et al., FedSpeed: larger local interval, less communication round, and higher generalization "
        "accuracy, ICLR 2023, algorithm 1"
    )
    idea = "SAM with dynamic regularisation"
    stacks = True
