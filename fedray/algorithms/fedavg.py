"""Plain averaging and its proximal variant."""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Proximal


class FedAvg(Algorithm):
    """q = g(y); x <- x + η_g Σ π_i u_i."""

    name = "fedavg"
    paper = "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017, algorithm 1"
    idea = "local SGD, averaged"


class FedProx(Proximal):
    """q = g(y) + μ (y - x): the proximal term (μ/2)||y - x||²."""

    name = "fedprox"
    paper = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020, eq. 2"
    idea = "keeps local models close to the global one"
    mu: float = Field(
        1.0,
        ge=0,
        description="μ: weight of the proximal term",
        json_schema_extra={
            "paper": {"FedSOL, FedNTD": 1.0, "FL-Simulator": [0.1, 0.01], "FedDyn's and FedDC's code": 1e-4}
        },
    )

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.mu * (theta - c.theta_0)

    def decoupled_weight(self, c: Client) -> float:
        return self.mu
