"""Server optimisers: clients run FedAvg (FedACG: FedProx), the server refines the averaged update."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Proximal, Received, Server, Vectors, holds
from fedray.components.base import option


@holds(server=["b"])
class FedAvgM(Algorithm):
    """q = g(y); b <- β b + η_g U, x <- x + b. β = 0 is FedAvg, and so is the first round.

    Plain heavy ball; Nesterov's form, used by some ports, is not offered.
    """

    name = "fedavgm"
    paper = (
        "Hsu et al., Measuring the effects of non-identical data distribution for federated visual "
        "classification, 2019, arXiv 1909.06335"
    )
    idea = "heavy-ball momentum on the server"
    stacks = True
    beta: float = option(0.9, ge=0, lt=1, description="β: momentum", paper={"FedACG's code": 0.4, "FedNTD's code": 0.7})

    def aggregate(self, server: Server, got: Received) -> None:
        server.state.b = self.beta * server.state.b + server.server_lr * got.update
        server.theta = server.theta + server.state.b


class AdaptiveServer(Algorithm):
    """m <- β1 m + (1 - β1) U, v by the method, x <- x + lr m/(√v + τ); no bias correction anywhere (D-52).

    `lr` is the papers' η_g; `training.server_lr` scales U before all this.
    """

    lr: float = option(
        0.01,
        gt=0,
        description="η_g: step size of the server",
        paper={"LeNet, ResNet-18 (FedTOGA)": 0.01, "FL-Simulator": [0.1, 0.05]},
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="β1: decay of the mean of updates")
    tau: float = option(1e-3, gt=0, description="τ: added to √v", paper={"FedTOGA, FedACG": 1e-3, "FL-Simulator": 0.01})
    start: Literal["tau_squared", "zero"] = Field(
        "tau_squared", description="v before the first round: the paper's τ², or 0 as in FL-Simulator's code (D-52)"
    )
    square: Literal["update", "momentum"] = Field("update", description="what enters v as a square: U, or m (D-140)")

    def server_state(self, theta: Tensor) -> Vectors:
        v = self.tau**2 if self.start == "tau_squared" else 0.0
        return Vectors(m=theta.new_zeros(theta.shape), v=torch.full_like(theta, v))

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v `(P,)` from the old one and U², or m²."""
        raise NotImplementedError

    def aggregate(self, server: Server, got: Received) -> None:
        update = server.server_lr * got.update
        m = self.beta1 * server.state.m + (1 - self.beta1) * update
        v = self.second_moment(server.state.v, (update if self.square == "update" else m) ** 2)
        server.state = Vectors(m=m, v=v)
        server.theta = server.theta + self.lr * m / (v.sqrt() + self.tau)


class FedAdam(AdaptiveServer):
    """q = g(y); v <- β2 v + (1 - β2) U², m <- β1 m + (1 - β1) U, x <- x + lr m/(√v + τ).

    No bias correction; v starts at τ² (D-52). As printed in algorithm 2, m is what is squared (`square: momentum`,
    D-140). `training.server_lr` scales U before all this.
    """

    name = "fedadam"
    paper = "Reddi et al., Adaptive federated optimization, ICLR 2021, algorithm 2"
    idea = "Adam on the server"
    stacks = True
    beta2: float = Field(0.99, ge=0, lt=1, description="β2: decay of the mean of squared updates")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(FedAdam):
    """q = g(y); v <- v - (1 - β2) U² sign(v - U²), m <- β1 m + (1 - β1) U, x <- x + lr m/(√v + τ).

    No bias correction; v starts at τ² (D-52). As printed in algorithm 2, m is what is squared (`square: momentum`,
    D-140). `training.server_lr` scales U before all this.
    """

    name = "fedyogi"
    paper = "Reddi et al., Adaptive federated optimization, ICLR 2021, algorithm 2"
    idea = "Yogi on the server: v moves by at most (1 - β2) U²"
    stacks = True

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


class FedAdagrad(AdaptiveServer):
    """q = g(y); v <- v + U², m <- β1 m + (1 - β1) U, x <- x + lr m/(√v + τ).

    v starts at τ² (D-52; `start: zero` as in FedDecorr's code). As printed in algorithm 2, m is what is squared
    (`square: momentum`), which for β1 = 0 is the same (D-140). `training.server_lr` scales U before all this. The
    paper's values were not read again [M].
    """

    name = "fedadagrad"
    paper = "Reddi et al., Adaptive federated optimization, ICLR 2021, algorithm 2"
    idea = "Adagrad on the server"
    stacks = True
    lr: float = Field(0.1, gt=0, description="η_g: step size of the server")
    beta1: float = Field(0.0, ge=0, lt=1, description="β1: decay of the mean of updates")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@holds(server=["b"])
class FedACG(Proximal):
    """Start at x~ = x + λ b; q = g(y) + β (y - x~); b <- λ b + η_g mean(y_K - x~), x <- x + b.

    With η_g = 1 this is x <- mean y_K, and b is always the last change of x. β is the coefficient in the gradient, the
    paper's (β/2)||y - x~||²; the authors' code has no ½, so its 1e-3 is 2e-3 here (D-13); that
    code also decays the learning rate within a round (D-104).
    """

    name = "fedacg"
    paper = "Kim et al., Communication-efficient federated learning with accelerated client gradient, CVPR 2024"
    idea = "clients start from the server's look-ahead, and stay close to it"
    stacks = True
    lam: float = option(0.85, ge=0, lt=1, description="λ: server momentum", paper={"FedACG, FedTOGA": 0.85})
    beta: float = option(
        0.01,
        ge=0,
        description="β: weight of the proximal term",
        paper={"LeNet, ResNet-18 (FedTOGA)": 0.01, "FedACG's code": 0.002},
    )

    def broadcast(self, server: Server) -> Tensor:
        return server.theta + self.lam * server.state.b

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.beta * (theta - c.theta_0)

    def aggregate(self, server: Server, got: Received) -> None:
        server.state.b = self.lam * server.state.b + server.server_lr * got.update
        server.theta = server.theta + server.state.b
