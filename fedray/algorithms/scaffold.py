"""Control variates: each client corrects its gradient by the difference of the server's and its own variate."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads, Vectors
from fedray.algorithms.fednova import effective_steps


class Scaffold(Proximal):
    """q = g(y) + c - c_i; afterwards c_i <- c_i - c - u_i/(K_i η_t), c stays the mean of all N c_i.

    Under local momentum m, u_i/(K_i η_t) is up to 1/(1 - m) times a gradient; FedSOL's code divides by the number of
    steps that momentum makes of K_i instead (`divisor: effective`, D-32).

    As the code has it: FedSOL's adds to c the changes of c_i weighted by samples, (M/N) Σ n_i Δc_i / Σ n_j (`variates:
    samples`, D-32); FedDC's divides by the first round's η (`variate_lr: first`, D-23).
    """

    name = "scaffold"
    paper = "Karimireddy et al., SCAFFOLD, ICML 2020, algorithm 1, option II"
    idea = "control variates cancel client drift"
    divisor: Literal["steps", "effective"] = Field(
        "steps", description="effective: a(K_i) of FedNova in place of K_i, for local momentum (FedSOL's code)"
    )
    variates: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the changes of c_i in c: equal, or by samples (FedSOL's code, D-32)"
    )
    variate_lr: Literal["round", "first"] = Field(
        "round", description="η in the variates: the round's, or the first round's (FedDC's code, D-23)"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape))

    def message(self, server: Server) -> Vectors:
        return Vectors(c=server.state.c)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return c.message.c - c.state.c

    def upload(self, c: Client) -> Uploads:
        steps = c.counted_steps if self.divisor == "steps" else effective_steps(c.steps, c.momentum)
        change = -c.message.c - c.update / (steps * (c.lr if self.variate_lr == "round" else c.first_lr))
        c.state.c = c.state.c + change
        if self.variates == "uniform":
            return {"c_change": Sum(change)}
        share = c.samples / c.total_samples
        return {"c_change": Sum(change, share), "samples": Sum(change.new_ones(()), share)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        change = got.c_change if self.variates == "uniform" else server.cohort * got.c_change / got.samples
        server.state.c = server.state.c + change / server.clients
