"""FedSWA: a learning rate that falls within the round, and a server step beyond the mean; FedMoSWA adds variates."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, holds
from fedray.components.base import option


class FedSWA(Algorithm):
    """q = g(y) at the rate η_k = η (1 - (1 - ρ) k/K), k = 0, ..., K - 1; x <- x + α η_g U.

    The rate scales weight decay, too. ρ = α = 1 is FedAvg bit for bit. The authors' run has 2 η (1 - k/K), which is η
    doubled and `rho: 0` (D-94), and never sets α, so `alpha: 1` (D-95); its SCAFFOLD, FedACG and FedSAM differ from the
    methods here (D-98). The paper's formulas are taken from a summary [S].
    """

    name = "fedswa"
    paper = (
        "Liu et al., Improving generalization in federated learning with highly heterogeneous data via "
        "momentum-based stochastic controlled weight averaging, ICML 2025"
    )
    idea = "a learning rate that falls within each round, and a server step beyond the mean"
    rho: float = option(
        0.1,
        ge=0,
        le=1,
        description="ρ: ratio of the rate after the round to that of its first step",
        paper={"FedSWA": 0.1, "the code's run": 0},
    )
    alpha: float = option(
        1.5, gt=0, description="α: server step along the mean update (D-95)", paper={"FedSWA": 1.5, "the code's run": 1}
    )

    def rate(self, c: Client) -> float:
        return c.lr * (1 - (1 - self.rho) * c.step / c.steps)

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta + self.alpha * server.server_lr * got.update


@holds(server=["m"], client=["c"], sent=["m"])
class FedMoSWA(FedSWA):
    """q = g(y) - c_i + m at FedSWA's rate; c_i <- c_i - m - u_i/Σ η_k; m <- m + γ mean(c_i - m); x <- x + α η_g U.

    The mean of the new c_i is over the cohort; Σ_k η_k = η (K (1 + ρ) + 1 - ρ)/2 is the length of the round. All start
    at 0. ρ = α = γ = 1 with all clients in every round is SCAFFOLD. The authors' workers use the variate of the client
    that they simulated before (D-97). The paper's formulas are taken from a summary [S].

    As the code has it: its table runs another function under this name, with a constant rate (`rho: 1`) and γ = 0.4
    but 1 in the first round (`gamma: 0.4`, `first_round: plain`, D-96); its FedMoSWA, which never runs, divides u_i by
    K η (1 + ρ)/2 (`variate_divisor: nominal`, D-126).
    """

    name = "fedmoswa"
    bound_to_sgd = "makes variates of updates divided by the sum of the rates"
    paper = FedSWA.paper
    idea = "FedSWA with control variates and a server variate that moves slowly"
    gamma: float = option(
        0.2,
        ge=0,
        le=1,
        description="γ: step of m towards the cohort's variates",
        paper={"FedMoSWA": 0.2, "the code's run": 0.4},
    )
    first_round: Literal["usual", "plain"] = Field("usual", description="plain: γ = 1 in the first round (D-96)")
    variate_divisor: Literal["rates", "nominal"] = Field(
        "rates", description="divisor of u_i: Σ η_k, or K times the mean of the first and the last rate (D-126)"
    )

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta) + (c.message.m - c.state.c)

    def upload(self, c: Client) -> Uploads:
        rest = 1 - self.rho if self.variate_divisor == "rates" else 0.0
        length = c.lr * (c.steps * (1 + self.rho) + rest) / 2
        c.state.c = c.state.c - c.message.m - c.update / length
        return {"apart": Sum(c.state.c - c.message.m)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        gamma = 1.0 if self.first_round == "plain" and server.round == 0 else self.gamma
        server.state.m = server.state.m + gamma / server.cohort * got.apart
