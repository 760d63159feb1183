"""FedLESAM and its variance-reduced and dual variants: SAM's perturbation is estimated from the global model's path."""

import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Uploads, Vectors, unit
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.algorithms.scaffold import ControlVariates
from fedray.components.base import option


class FedLESAM(Algorithm):
    """q = g(y + e) with e = ρ unit(x_old - x), the same in all steps; x_old is the x of the client's last
    participation.

    One gradient per step. Readings: e is that vector (D-10) under one global norm (D-11); there is no perturbation at a
    client's first participation, and the client keeps x_old, as in the paper (D-11b).
    """

    name = "fedlesam"
    paper = (
        "Fan et al., Locally estimated global perturbations are better than local perturbations for federated "
        "sharpness-aware minimization, ICML 2024"
    )
    idea = "SAM along the global model's own path, one gradient per step"
    stacks = True
    rho: float = option(0.01, ge=0, description="ρ: SAM radius", paper={"FedTOGA": 0.01, "FedLESAM's code": 0.5})

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(super().client_state(theta), x_old=theta)

    def begin(self, c: Client) -> None:
        super().begin(c)
        back = torch.zeros_like(c.theta_0) if c.first else c.state.x_old - c.theta_0
        c.local.e = self.rho * unit(back)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta + c.local.e)

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        c.state.x_old = c.theta_0
        return uploads


class FedLESAMS(FedLESAM, ControlVariates):
    """q = g(y + e) + c - c_i with FedLESAM's e and SCAFFOLD's variates.

    Reading D-11c: the correction has full weight.
    """

    name = "fedlesam-s"
    paper = FedLESAM.paper + ", with SCAFFOLD"
    idea = "FedLESAM with SCAFFOLD's control variates"
    stacks = True
    rho: float = option(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        paper={"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FedLESAM's code": 0.5},
    )


class FedLESAMD(FedLESAM, DynamicRegularisation):
    """q = g(y + e) + α (y - x + H_i) with FedLESAM's e and FedDyn's H_i."""

    name = "fedlesam-d"
    paper = FedLESAM.paper + ", with FedDyn (FedTOGA, algorithm 3)"
    idea = "FedLESAM with dynamic regularisation"
    stacks = True
    rho: float = option(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        paper={"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FedLESAM's code": 0.5},
    )
