"""FedAS: clients align the shared body with their own before training, and are weighted by the Fisher information."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedray.algorithms.base import Algorithm, Client, Forward, Received, Server, Sum, Uploads, Vectors, holds
from fedray.algorithms.fedproto import by_class
from fedray.components.base import option


@holds(sent="all")
class FedAS(Algorithm):
    """q = g(y) on body and head at once; the body moves by η_g Σ F_i u_i/Σ F_i; each client keeps its head.

    Before that, one pass in batches moves the received body b: b <- b - a ∇ Σ_c mean |f_b(x) - μ_c|², the mean over
    the samples of class c in the batch and over dimensions. μ_c are the mean features of class c by the client's last
    body, or by the received one in its first participation. F_i is Σ |g(y_K)|² over the batches of a pass after
    training; with `fisher: samples` the mean over single samples, on which BatchNorm cannot train. Clients divide F_i
    by a power of two near the last cohort's mean of it (by 1 in the first round) before sending it, which cancels in
    the quotient. The personal model is the client's whole last model.

    Readings: each client aligns a copy; the authors' code passes on the model that earlier clients aligned (D-77). F_i
    is the code's, which grows with the number of batches, here in training mode (D-78). The alignment is per sample
    (D-79). A newcomer aligns with the model received, in the code with x⁰ (`aligns_with: initial`, D-124). μ_c are
    features under the received running statistics, f_b(x) under the batch's; the personal model has the received ones.
    a = 0 with F_i = n_i is FedPer. Only the paper's abstract was read; Fisher and alignment follow the code [S].
    """

    name = "fedas"
    revision = 1  # the weighted updates in wide sums
    paper = "Yang, Huang and Ye, FedAS: bridging inconsistency in personalized federated learning, CVPR 2024"
    idea = "aligns the shared body with the client's own, weighs clients by Fisher information"
    reads_features = True
    scales_update = True
    shares = "body"
    keeps = "head"
    personal = "kept"
    generic = False
    align_lr: float = option(0.01, ge=0, description="a: learning rate of the alignment", paper={"FedAS's code": 0.01})
    align_batch: int = option(16, gt=0, description="samples per batch of the alignment", paper={"FedAS's code": 16})
    fisher: Literal["batches", "samples"] = Field("batches", description="estimate of F_i (D-78)")
    aligns_with: Literal["received", "initial"] = Field(
        "received", description="class means for a client's first alignment: of x, or of x⁰ (the code, D-124)"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(scale=theta.new_ones(()))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(initial=theta) if self.aligns_with == "initial" else Vectors()

    def begin(self, c: Client) -> None:
        output, y = c.shard(c.state.get("initial", c.theta) if c.first else self.last(c))
        means = by_class(output.features.flatten(1), y, len(c.counts)) / c.counts.clamp(min=1)[:, None]
        theta = c.theta
        for _ in c.batches("alignment", self.align_batch):
            theta = theta - self.align_lr * c.grad(theta, self.distance, means, part="body")
        c.theta = theta

    def distance(self, forward: Forward, x: Tensor, y: Tensor, means: Tensor) -> Tensor:
        """Return Σ_c mean |f(x) - μ_c|² of a batch. means: μ `(C, d)`."""
        classes = one_hot(y, len(means)).to(means.dtype)
        share = (classes / classes.sum(0).clamp(min=1)).sum(1)
        return share @ (forward(x).features.flatten(1) - means[y]).square().mean(1)

    def last(self, c: Client) -> Tensor:
        """Return the client's last model: its last body under the head that it keeps."""
        return c.theta.masked_scatter(body(c), c.state.body)

    def information(self, c: Client) -> float:
        """Return F_i at y_K."""
        size = c.batch_size if self.fisher == "batches" else 1
        squares = torch.stack([c.grad(c.theta).square().sum() for _ in c.batches("fisher", size)])
        return float(squares.sum() if self.fisher == "batches" else squares.mean())

    def upload(self, c: Client) -> Uploads:
        weight = self.information(c) / float(c.message.scale)
        c.state = Vectors(body=c.theta[body(c)])
        one = c.theta.new_ones(())
        return {"weighted": Sum(c.shared_update, weight, wide=True), "information": Sum(one, weight, wide=True)}

    def aggregate(self, server: Server, got: Received) -> None:
        step = torch.zeros_like(server.theta).masked_scatter(server.layout.part("body") > 0, got.weighted)
        server.theta = server.theta + server.server_lr * step / got.information.clamp(min=torch.finfo(step.dtype).tiny)
        mean = server.state.scale * (got.information / server.cohort)
        power_of_two = mean / (2 * torch.frexp(mean).mantissa)  # the largest below the mean, exactly
        server.state.scale = torch.where(mean > 0, power_of_two, server.state.scale)

    def prepare(self, c: Client) -> None:
        if not c.first:
            c.theta = self.last(c)


def body(c: Client) -> Tensor:
    """Return bool `(P,)`, True for the parameters of the body."""
    return c.layout.part("body").to(c.theta.device) > 0
