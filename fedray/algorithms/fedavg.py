"""Plain averaging and its proximal variant."""

from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Proximal
from fedray.components.base import option
from fedray.models.base import MCMAHAN


class FedAvg(Algorithm):
    """q = g(y); x <- x + η_g Σ π_i u_i."""

    name = "fedavg"
    paper = f"{MCMAHAN}, algorithm 1"
    idea = "local SGD, averaged"
    stacks = True


class FedProx(Proximal):
    """q = g(y) + μ (y - x): the proximal term (μ/2)||y - x||²."""

    name = "fedprox"
    paper = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020, eq. 2"
    idea = "keeps local models close to the global one"
    stacks = True
    mu: float = option(
        1.0,
        ge=0,
        description="μ: weight of the proximal term",
        paper={"FedSOL, FedNTD": 1.0, "FL-Simulator": [0.1, 0.01], "FedDyn's and FedDC's code": 1e-4},
    )

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.mu * (theta - c.theta_0)

    def decoupled_weight(self, c: Client) -> float:
        return self.mu


class LocalAdamW(FedAvg):
    """q = g(y), clipped; y follows AdamW on q; x <- x + η_g U: `fedavg` with `training.optimizer: adamw`.

    The name chooses the optimiser, whose options are in `training.adamw`; the moments start anew in each round
    unless `training.adamw.state` says otherwise. `fedavg` with the same setting gives the same numbers.
    """

    name = "local-adamw"
    paper = (
        "Liu et al., FedAdamW: a communication-efficient optimizer with convergence and generalization "
        "guarantees for federated large models, AAAI 2026"
    )
    idea = "local AdamW, averaged"
    stacks = True
    optimizer = "adamw"


class LocalMuon(FedAvg):
    """q = g(y), clipped; y follows Muon on q; x <- x + η_g U: `fedavg` with `training.optimizer: muon`.

    The name chooses the optimiser, whose options are in `training.muon`; the momentum starts anew in each
    round. `fedavg` with the same setting gives the same numbers (D-130..D-134).
    """

    name = "local-muon"
    paper = "Liu et al., FedMuon: accelerating federated learning with matrix orthogonalization, 2025, arXiv 2510.27403"
    idea = "local Muon, averaged"
    optimizer = "muon"
