"""Normalised averaging: clients with more steps do not pull the average towards their own optimum."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads
from fedray.common.errors import UserError


def effective_steps(steps: int, momentum: float, shrink: float = 0.0) -> float:
    """Return a_i: how far, in units of η, a constant gradient of 1 carries y in `steps` steps of the local optimiser.

    shrink: ημ, the pull of a proximal term per step. Without momentum a <- (1 - ημ) a + 1; without a proximal term
    (K - m(1 - m^K)/(1 - m))/(1 - m); with neither, K.
    """
    distance = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - shrink * distance
        distance += velocity
    return distance


def doubly_counted_steps(steps: int, momentum: float, shrink: float) -> float:
    """Return the code's a_i with both: a step adds the momentum's velocity, then a <- (1 - ημ) a + 1."""
    distance = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        distance = (1 - shrink) * (distance + velocity) + 1
    return distance


class FedNova(Proximal):
    """q = g(y) + μ (y - x); x <- x + η_g τ Σ π_i u_i/a_i with τ = Σ π_i a_i; equal a_i give FedAvg.

    a_i counts steps as the local optimiser weights them, including momentum and proximal term. Readings: the proximal
    term is part of the direction, so it passes through the momentum; τ is Σ π_i a_i also for μ > 0, although the
    authors' code takes Σ π_i K_i (`tau: steps`) and, with momentum, counts each step by either rule (`counting: twice`,
    D-105).
    """

    name = "fednova"
    bound_to_sgd = "counts how far K steps of SGD go"
    paper = (
        "Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, "
        "NeurIPS 2020"
    )
    idea = "each update is divided by the client's effective number of steps before averaging"
    stacks = True
    scales_update = True
    mu: float = Field(0.0, ge=0, description="μ: weight of a proximal term; 0 for plain FedNova")
    tau: Literal["effective", "steps"] = Field(
        "effective", description="τ: Σ π_i a_i, or Σ π_i K_i (the authors' code with μ > 0, D-105)"
    )
    counting: Literal["once", "twice"] = Field(
        "once", description="a_i with momentum and μ > 0: one recursion with both, or each step counted by either rule"
    )

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.mu * (theta - c.theta_0)

    def upload(self, c: Client) -> Uploads:
        twice = self.counting == "twice" and c.momentum and self.mu
        a = (doubly_counted_steps if twice else effective_steps)(c.steps, c.momentum, c.lr * self.mu)
        if not a:
            raise UserError(f"algorithm.mu: found {self.mu:g}; times the learning rate, {c.lr:g}, below 2 is required")
        return {
            "mean_step": Sum(c.update, c.weight / a),
            "tau": Sum(c.theta.new_tensor(a if self.tau == "effective" else c.steps), c.weight, wide=True),
        }

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta + server.server_lr * got.tau * got.mean_step
