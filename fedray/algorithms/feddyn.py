"""Dynamic regularisation: each client keeps H_i, the sum of its updates, and the server adds the mean of all H_i."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads, Vectors


class DynamicRegularisation(Proximal):
    """q = gradient + α (y - x + H_i); H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    `gradient` is the method's descent gradient. This is FedDyn in model units (H_i = -λ_i/α, form b); α multiplies:
    `alpha: 0.1` is the papers' setting (D-3). Σ runs over all N clients (D-2). α = 0 is not FedAvg (D-14).
    """

    alpha: float = Field(
        0.1,
        ge=0,
        description="α: coefficient of the dynamic regulariser (λ; 1/α in FedTOGA's text)",
        json_schema_extra={"paper": {"FedTOGA, FL-Simulator": 0.1}},
    )

    def coefficient(self, c: Client) -> float:
        """Return α of this client."""
        return self.alpha

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(h=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(h=theta.new_zeros(theta.shape))

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        pull = theta - c.theta_0  # a new vector, which takes the sum
        pull += c.state.h
        pull *= self.coefficient(c)
        return pull

    def decoupled_weight(self, c: Client) -> float:
        return self.coefficient(c)

    def upload(self, c: Client) -> Uploads:
        c.state.h = c.state.h + c.update
        return {"h_change": Sum(c.update)}

    def divisor(self, server: Server) -> int:
        """Return N: h is the mean of all clients' H_i."""
        return server.clients

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.h = server.state.h + got.h_change / self.divisor(server)
        server.theta = server.theta + server.state.h


def relative_size(c: Client) -> float:
    """Return w_i = n_i N / Σ n_j: a client's samples relative to the mean client's."""
    return c.samples * c.total_clients / c.total_samples


class FedDyn(DynamicRegularisation):
    """q = g(y) + α (y - x + H_i); H_i <- H_i + u_i; x <- x + η_g U + (1/N) Σ_all H_i.

    Model units: H_i = -λ_i/α; α multiplies, so `alpha: 0.1` is the papers' setting (D-3); Σ runs over all N clients
    (D-2). Reading: one α for all (D-17); the authors' code divides it by n_i N/Σ n. α = 0 is not FedAvg (D-14).
    """

    name = "feddyn"
    paper = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021, algorithm 1"
    idea = "aligns local and global stationary points"
    alpha: float = Field(
        0.1,
        ge=0,
        description="α: coefficient of the dynamic regulariser",
        json_schema_extra={
            "paper": {"LeNet (FedDyn's code, FedTOGA)": 0.01, "ResNet-18 (FedTOGA, FL-Simulator)": 0.1, "FedSOL": 0.1}
        },
    )
    scaling: Literal["constant", "samples"] = Field(
        "constant", description="samples: α_i = α Σ n/(n_i N), as in the authors' code (D-17)"
    )

    def coefficient(self, c: Client) -> float:
        return self.alpha if self.scaling == "constant" else self.alpha / relative_size(c)


class FedDC(DynamicRegularisation):
    """q = g(y) + α (y - x + h_i) + c - c_i; h_i <- h_i + u_i; c_i <- c_i - c - u_i/(K_i η_t); x and h as FedDyn.

    c stays the mean of all N c_i. Readings: the η of the round, not the first one as in the code (D-23; `variate_lr:
    first`); clients count equally, although the authors' code weights α, c and the change of c_i by w_i = n_i N/Σ n
    (`scaling: samples`; no difference for clients of equal size).
    """

    name = "feddc"
    bound_to_sgd = "makes variates of updates divided by K η"
    paper = (
        "Gao et al., FedDC: federated learning with non-IID data via local drift decoupling and correction, CVPR 2022"
    )
    idea = "tracks each client's drift and corrects it, with control variates"
    alpha: float = Field(
        0.1,
        ge=0,
        description="α: weight of the drift penalty",
        json_schema_extra={"paper": {"LeNet (FedDC, FedTOGA)": 0.01, "ResNet-18 (FedTOGA)": 0.1}},
    )
    scaling: Literal["constant", "samples"] = Field(
        "constant", description="samples: α/w_i, c/w_i and w_i Δc_i, as in the authors' code (D-17)"
    )
    variate_lr: Literal["round", "first"] = Field(
        "round", description="η in the variates: the round's, or the first round's, as in the authors' code (D-23)"
    )

    def size(self, c: Client) -> float:
        """Return w_i, or 1 if clients count equally."""
        return 1.0 if self.scaling == "constant" else relative_size(c)

    def coefficient(self, c: Client) -> float:
        return self.alpha / self.size(c)

    def decoupled_weight(self, c: Client) -> float:
        return 0.0  # the authors' code clips all of it

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(super().server_state(theta), c=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(super().client_state(theta), c=theta.new_zeros(theta.shape))

    def message(self, server: Server) -> Vectors:
        return Vectors(c=server.state.c)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return super().proximal(c, theta) + c.message.c / self.size(c) - c.state.c

    def upload(self, c: Client) -> Uploads:
        lr = c.lr if self.variate_lr == "round" else c.first_lr
        change = -c.message.c / self.size(c) - c.update / (c.counted_steps * lr)
        c.state.c = c.state.c + change
        return {**super().upload(c), "c_change": Sum(change, self.size(c))}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.c = server.state.c + got.c_change / server.clients
