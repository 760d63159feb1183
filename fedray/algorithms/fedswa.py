"""FedSWA: a learning rate that falls within the round, and a server step beyond the mean; FedMoSWA adds variates."""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, Vectors


class FedSWA(Algorithm):
    """q = g(y) at the rate η_k = η (1 - (1 - ρ) k/K), k = 0, ..., K - 1; x <- x + α η_g U.

    The rate scales weight decay too. ρ = α = 1 is FedAvg bit for bit. The authors' run has 2 η (1 - k/K), which is η
    doubled and `rho: 0` (D-94), and never sets α, so `alpha: 1` (D-95); its SCAFFOLD, FedACG and FedSAM are not these
    methods (D-98). The paper's formulas are those of a summary [S].
    """

    name = "fedswa"
    paper = "Liu et al., Improving generalization in federated learning with highly heterogeneous data, ICML 2025"
    idea = "a learning rate that falls within each round, and a server step beyond the mean"
    rho: float = Field(
        0.1,
        ge=0,
        le=1,
        description="ρ: the rate after the round over that of its first step",
        json_schema_extra={"paper": {"FedSWA": 0.1, "the code's run": 0}},
    )
    alpha: float = Field(
        1.5,
        gt=0,
        description="α: server step along the mean update (D-95)",
        json_schema_extra={"paper": {"FedSWA": 1.5, "the code's run": 1}},
    )

    def rate(self, c: Client) -> float:
        return c.lr * (1 - (1 - self.rho) * c.step / c.steps)

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta + self.alpha * server.server_lr * got.update


class FedMoSWA(FedSWA):
    """q = g(y) - c_i + m at FedSWA's rate; c_i <- c_i - m - u_i/Σ η_k; m <- m + γ mean(c_i - m); x <- x + α η_g U.

    The mean is over the cohort, of the new c_i; Σ_k η_k = η (K (1 + ρ) + 1 - ρ)/2 is the length of the round. All start
    at 0. ρ = α = γ = 1 with everybody in every round is SCAFFOLD. The authors' table runs another function under this
    name: constant rate (`rho: 1`), γ = 0.4 but 1 in the first round (D-96); and its workers use the variate of
    whichever client they simulated before (D-97). The code divides by K η/2 (D-126). The paper's formulas are those of
    a summary [S].
    """

    name = "fedmoswa"
    paper = FedSWA.paper
    idea = "FedSWA with control variates and a server variate that moves slowly"
    gamma: float = Field(
        0.2,
        ge=0,
        le=1,
        description="γ: how far m moves to the cohort's variates",
        json_schema_extra={"paper": {"FedMoSWA": 0.2, "the code's run": 0.4}},
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(m=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape))

    def message(self, server: Server) -> Vectors:
        return Vectors(m=server.state.m)

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta) + (c.message.m - c.state.c)

    def upload(self, c: Client) -> Uploads:
        length = c.lr * (c.steps * (1 + self.rho) + 1 - self.rho) / 2
        c.state.c = c.state.c - c.message.m - c.update / length
        return {"apart": Sum(c.state.c - c.message.m)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.m = server.state.m + self.gamma / server.cohort * got.apart
