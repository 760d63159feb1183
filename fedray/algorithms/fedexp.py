"""FedExP: the server extrapolates along the average update. A method, and a server step for other methods."""

from typing import Literal

from pydantic import Field

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads
from fedray.components.base import option


class FedExP(Algorithm):
    """q = g(y); x <- x + η_g max(1, Σ π_i ||u_i||²/(2 (||U||² + ε_t))) U, ε_t = ε (η_t/η_0)².

    FedAvg with `training.server_step: fedexp`, which combines with every method that averages. Clients send one number
    besides u_i. The mean of the last two iterates is tested (in round 1 the first), and training continues from the
    last (D-82). The factor is made of the plain u_i and U, also if a method steps along something else (FedNova).
    Readings: ε as in the paper, without the code's factor M (D-80); π_i in U and in the mean of squares, although the
    paper is uniform (D-81). The authors' "fedavgm(exp)" never applies its momentum (D-83). The grid of ε
    and its decay were not read again in the paper [M].
    """

    name = "fedexp"
    paper = "Jhunjhunwala, Wang and Joshi, FedExP: speeding up federated averaging via extrapolation, ICLR 2023"
    idea = "a server step that grows when the clients' updates disagree"
    epsilon: float = option(
        1e-3,
        ge=0,
        description="ε: limits the step if the average update is small",
        paper={"CIFAR, CINIC (FedExP's code)": 1e-3, "EMNIST (FedExP's code)": 0.1},
    )
    epsilon_scale: Literal["one", "cohort"] = Field(
        "one", description="cohort: M ε instead of ε, as in the authors' code (D-80)"
    )
    test: Literal["average", "last"] = Field(
        "average", description="tested model: the mean of the last two iterates, or the last (D-82)"
    )

    @property
    def tests_average(self) -> bool:
        return self.test == "average"

    def upload(self, c: Client) -> Uploads:
        return {"squared_norm": Sum(c.shared_update.square().sum(), c.weight, wide=True)}

    def server_step(self, server: Server, got: Received) -> float:
        decay = server.lr / server.first_lr
        epsilon = self.epsilon * decay**2 * (1 if self.epsilon_scale == "one" else server.cohort)
        below = 2 * (float(got.shared_update.double().square().sum()) + epsilon)
        return max(1.0, float(got.squared_norm) / below) if below else 1.0
