"""Control variates: each client corrects its gradient by the difference between the server's and its own variate."""

from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads, holds


@holds(server=["c"], client=["c"], sent=["c"])
class ControlVariates(Proximal):
    """Base of the methods whose step is q = gradient + c - c_i."""

    bound_to_sgd = "makes variates of updates divided by K η"

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return c.message.c - c.state.c

    def upload(self, c: Client) -> Uploads:
        change = -c.message.c - c.update / (c.counted_steps * c.lr)
        c.state.c = c.state.c + change
        return {"c_change": Sum(change)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.c = server.state.c + got.c_change / server.clients


class Scaffold(ControlVariates):
    """q = g(y) + c - c_i; afterwards c_i <- c_i - c - u_i/(K_i η_t), c stays the mean of all N c_i.

    With local momentum m, u_i/(K_i η_t) is up to 1/(1 - m) times a gradient (D-32).
    """

    name = "scaffold"
    paper = (
        "Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020, "
        "algorithm 1, option II"
    )
    idea = "control variates cancel client drift"
    stacks = True
