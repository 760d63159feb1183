"""pFedMe: the shared model descends the Moreau envelopes of the clients' losses."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Uploads, Vectors
from fedray.components.base import option


class PFedMe(Algorithm):
    """q = λ (y - θ); before it, R times on the step's batch: θ <- θ - a (g(θ) + λ (θ - y)). θ = x at a round's start.

    The steps of a round are the paper's R outer steps (its `local_epochs` counts batches), `inner_steps` its K; β is
    `training.server_lr`. θ continues from the previous step, the inner steps have no weight decay unless `inner_decay`
    says so, and only the cohort trains (D-67). The personal model is the last θ; the authors' code tests the local y
    instead (`tested: local`, D-66); either is x⁰ until a client first trains. Ports that upload θ, or never store it,
    are not targets (D-68). Running statistics follow θ's first forward pass in each step, averaged as in FedAvg.
    """

    name = "pfedme"
    bound_to_sgd = "moves y by the share η λ of its way to θ"
    paper = "T. Dinh, Tran and Nguyen, Personalized federated learning with Moreau envelopes, NeurIPS 2020, algorithm 1"
    idea = "each step pulls the shared model towards a personal one, optimised on the same batch"
    stacks = True
    personal = "kept"
    lam: float = option(
        15.0, gt=0, description="λ: strength of the pull of θ to y", paper={"pFedMe's code": [15, 20, 30]}
    )
    inner_steps: int = option(5, gt=0, description="steps of θ per local step", paper={"pFedMe's code": 5})
    inner_lr: float = option(
        0.01, gt=0, description="a: learning rate of θ", paper={"pFedMe's code": [0.1, 0.09, 0.05, 0.01]}
    )
    inner_decay: float = option(
        0.0, ge=0, description="weight decay of θ's steps (D-67)", paper={"pFedMe's code": 0.001}
    )
    tested: Literal["personal", "local"] = Field(
        "personal", description="personal model: θ, or the local y as in the authors' code (D-66)"
    )

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(personal=theta)

    def begin(self, c: Client) -> None:
        c.local.personal = c.theta_0

    def direction(self, c: Client) -> Tensor:
        inner = c.local.personal
        for _ in range(self.inner_steps):
            inner = inner - self.inner_lr * (c.grad(inner) + self.lam * (inner - c.theta) + self.inner_decay * inner)
        c.local.personal = inner
        return self.lam * (c.theta - inner)

    def upload(self, c: Client) -> Uploads:
        c.state.personal = c.local.personal if self.tested == "personal" else c.theta
        return {}

    def prepare(self, c: Client) -> None:
        c.theta = c.state.personal
