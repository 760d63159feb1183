"""Scaffnew (ProxSkip): gradient steps with variates, and a number of local steps that is drawn for all."""

from math import log1p
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Server, Uploads, Vectors


class Scaffnew(Proximal):
    """q = g(y) - h_i for K_t steps, K_t ~ Geometric(p); x <- mean y_K; then h_i <- h_i + (p/η)(x - y_K).

    K_t is drawn once per round, for all clients, instead of `local_epochs` and `local_steps`; its mean is 1/p, and the
    variate divides by 1/p, not by K_t (D-102). A client keeps y_K and updates h_i when it receives its next x. All
    h_i start at 0; with `server_lr: 1` their weighted mean stays 0. `steps: fixed` makes the K_i steps of `training`,
    and p is 1/K_i: with equal K_i, SCAFFOLD.

    The method is defined for full participation, which it requires (D-103), without momentum or clipping. No settings
    for networks are published. The paper was not read again: the formulas are general knowledge [M], and the tests
    check that they reach the optimum of quadratics.
    """

    name = "scaffnew"
    bound_to_sgd = "moves its variates by p/η times a difference of models"
    paper = (
        "Mishchenko et al., ProxSkip: yes! local gradient steps provably lead to communication acceleration! "
        "finally!, ICML 2022"
    )
    idea = "variates, and averaging with probability p after each step"
    needs_everyone: ClassVar[bool] = True
    p: float = Field(
        0.1,
        ge=1e-4,
        le=1,
        description="probability that a step is followed by averaging, which gives 1/p steps on average; ignored "
        "with `steps: fixed`",
        json_schema_extra={"paper": {"theory": "1/√κ"}},
    )
    steps: Literal["drawn", "fixed"] = Field("drawn", description="the number of local steps of a round (D-102)")

    def client_state(self, theta: Tensor) -> Vectors:
        zero = theta.new_zeros(theta.shape)
        return Vectors(h=zero, y=zero, per_step=theta.new_zeros(()))

    def drawn_steps(self, server: Server) -> int | None:
        if self.steps == "fixed":
            return None
        if self.p == 1:
            return 1
        return 1 + int(log1p(-float(torch.rand((), dtype=torch.float64))) / log1p(-self.p))

    def begin(self, c: Client) -> None:
        c.local.h = c.state.h + c.state.per_step * (c.theta_0 - c.state.y)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return -c.local.h

    def upload(self, c: Client) -> Uploads:
        p = self.p if self.steps == "drawn" else 1 / c.steps
        c.state.h, c.state.y, c.state.per_step = c.local.h, c.theta, c.theta.new_tensor(p / c.lr)
        return {}
