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
    """

    name = "scaffold"
    paper = "Karimireddy et al., SCAFFOLD, ICML 2020, algorithm 1, option II"
    idea = "control variates cancel client drift"
    divisor: Literal["steps", "effective"] = Field(
        "steps", description="effective: a(K_i) of FedNova in place of K_i, for local momentum (FedSOL's code)"
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
        steps = c.steps if self.divisor == "steps" else effective_steps(c.steps, c.momentum)
        change = -c.message.c - c.update / (steps * c.lr)
        c.state.c = c.state.c + change
        return {"c_change": Sum(change)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.c = server.state.c + got.c_change / server.clients
