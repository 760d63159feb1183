"""FedLESAM and its variance-reduced and dual variants: SAM's perturbation is estimated from the global model's path."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Uploads, Vectors, unit
from fedray.algorithms.feddyn import DynamicRegularisation
from fedray.algorithms.scaffold import ControlVariates
from fedray.models.network import Layout


class Towards(Algorithm):
    """Base of the methods that perturb along a known vector, from which the authors' code takes scalars."""

    shift: Literal["vector", "scalars"] = Field(
        "vector", description="e along that vector, or one of its scalars for each tensor (the code, D-10, D-89)"
    )
    norm: Literal["global", "summed"] = Field(
        "global", description="divisor of e: one norm, or the sum of the tensors' norms (the code, D-11, D-89)"
    )

    def towards(self, ahead: Tensor, layout: Layout) -> Tensor:
        """Return the direction `(P,)` of e, of length 1 unless `shift` or `norm` is the code's."""
        if (self.shift, self.norm) == ("vector", "global"):
            return unit(ahead)
        sizes = list(layout.sizes)
        parts = ahead.split(sizes) if self.shift == "vector" else ahead[: len(sizes)].split(1)
        lengths = torch.stack([torch.linalg.vector_norm(part) for part in parts])
        length = lengths.sum() if self.norm == "summed" else torch.linalg.vector_norm(lengths)
        return torch.cat([part.expand(size) for part, size in zip(parts, sizes, strict=True)]) / (length + 1e-7)


class FedLESAM(Towards):
    """q = g(y + e) with e = ρ unit(x_old - x), the same in all steps; x_old is the x of the client's last
    participation.

    One gradient per step. Readings: e is that vector (the released code adds one scalar per tensor, D-10) under one
    global norm (D-11); there is no perturbation at a client's first participation, and the client keeps x_old, as in
    the paper. `estimate: server` is the code's choice (D-11b): the server broadcasts its last change, e = -ρ unit(x^t -
    x^{t-1}). Both agree if all clients take part in every round.

    As the code has it: with `shift: scalars` tensor j is shifted, as a whole, by coordinate j of x_old - x (D-10);
    with `norm: summed` ρ is divided by the sum of the lengths of the tensors' parts, or scalars, not by the length of
    all (D-11).
    """

    name = "fedlesam"
    paper = (
        "Fan et al., Locally estimated global perturbations are better than local perturbations for federated "
        "sharpness-aware minimization, ICML 2024"
    )
    idea = "SAM along the global model's own path, one gradient per step"
    rho: float = Field(
        0.01, ge=0, description="ρ: SAM radius", json_schema_extra={"paper": {"FedTOGA": 0.01, "FedLESAM's code": 0.5}}
    )
    estimate: Literal["client", "server"] = Field(
        "client", description="source of the global change: each client's since its last participation, or the server's"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        state = super().server_state(theta)
        return state if self.estimate == "client" else Vectors(state, change=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        state = super().client_state(theta)
        return state if self.estimate == "server" else Vectors(state, x_old=theta)

    def message(self, server: Server) -> Vectors:
        message = super().message(server)
        return message if self.estimate == "client" else Vectors(message, change=server.state.change)

    def begin(self, c: Client) -> None:
        super().begin(c)
        if self.estimate == "server":
            back = -c.message.change
        else:
            back = torch.zeros_like(c.theta_0) if c.first else c.state.x_old - c.theta_0
        c.local.e = self.rho * self.towards(back, c.layout)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta + c.local.e)

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        if self.estimate == "client":
            c.state.x_old = c.theta_0
        return uploads

    def aggregate(self, server: Server, got: Received) -> None:
        before = server.theta
        super().aggregate(server, got)
        if self.estimate == "server":
            server.state.change = server.theta - before


class FedLESAMS(FedLESAM, ControlVariates):
    """q = g(y + e) + c - c_i with FedLESAM's e and SCAFFOLD's variates.

    Reading D-11c: the correction has full weight; the released code multiplies it by 0.1 (`correction: 0.1`).
    """

    name = "fedlesam-s"
    paper = FedLESAM.paper + ", with SCAFFOLD"
    idea = "FedLESAM with SCAFFOLD's control variates"
    rho: float = Field(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        json_schema_extra={"paper": {"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FedLESAM's code": 0.5}},
    )
    correction: float = Field(1.0, ge=0, description="weight of c - c_i in the step")

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.correction * super().proximal(c, theta)


class FedLESAMD(FedLESAM, DynamicRegularisation):
    """q = g(y + e) + α (y - x + H_i) with FedLESAM's e and FedDyn's H_i."""

    name = "fedlesam-d"
    paper = FedLESAM.paper + ", with FedDyn (FedTOGA, algorithm 3)"
    idea = "FedLESAM with dynamic regularisation"
    rho: float = Field(
        0.1,
        ge=0,
        description="ρ: SAM radius",
        json_schema_extra={"paper": {"ResNet-18 (FedTOGA)": 0.1, "LeNet (FedTOGA)": 0.01, "FedLESAM's code": 0.5}},
    )
