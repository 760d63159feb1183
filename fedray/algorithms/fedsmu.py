"""FedSMU: clients send the signs of a mixture of their update and their own momentum."""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, Vectors


class FedSMU(Algorithm):
    """q = g(y); s_i = sign(β1 m_i + (1 - β1) u_i), m_i <- β2 m_i + (1 - β2) u_i; x <- (1 - η_s λ) x + η_s mean s_i.

    m_i stays with the client and starts at 0; only s_i is sent, as float32 here: the bytes in tables are those of a
    whole model, 32 times what one bit per parameter takes. η_s = `lr` · `decay`^t; the local rate has its own schedule.

    Readings: clients count equally, `training.aggregation` has no effect, and sign(0) = 0, so an entry with exactly 0
    stays (D-141). `training.weight_decay` acts at the clients, λ on the server. `training.server_lr` is not used.
    Summaries and code were read instead of the paper [S].
    """

    name = "fedsmu"
    paper = (
        "Lu et al., FedSMU: communication-efficient and generalization-enhanced federated learning through symbolic "
        "model updates, ICML 2025"
    )
    idea = "clients send the signs of their updates"
    stacks = True
    sends_update = False
    lr: float = Field(
        0.015,
        gt=0,
        description="η_s: step of the server in the first round",
        json_schema_extra={"paper": {"CIFAR-10": 0.015, "CIFAR-100": 0.018, "Shakespeare": 0.03}},
    )
    decay: float = Field(
        0.9988, gt=0, le=1, description="factor on η_s per round", json_schema_extra={"paper": {"FedSMU": 0.9988}}
    )
    beta1: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="β1: weight of m_i in the sign",
        json_schema_extra={"paper": {"CIFAR": 0.9, "Shakespeare": 0.95}},
    )
    beta2: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="β2: decay of m_i",
        json_schema_extra={"paper": {"CIFAR": 0.9, "Shakespeare": 0.95}},
    )
    lam: float = Field(
        0.01, ge=0, description="λ: weight decay on the server", json_schema_extra={"paper": {"FedSMU": 0.01}}
    )

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(m=theta.new_zeros(theta.shape))

    def upload(self, c: Client) -> Uploads:
        sign = (self.beta1 * c.state.m + (1 - self.beta1) * c.update).sign()
        c.state.m = self.beta2 * c.state.m + (1 - self.beta2) * c.update
        return {"sign": Sum(sign)}

    def aggregate(self, server: Server, got: Received) -> None:
        rate = self.lr * self.decay**server.round
        server.theta = (1 - rate * self.lam) * server.theta + rate * got.sign / server.cohort
