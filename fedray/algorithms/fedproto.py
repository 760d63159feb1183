"""FedProto: clients share the mean features of their classes instead of parameters."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedray.algorithms.auxiliary import AuxiliaryLoss
from fedray.algorithms.base import Client, Forward, Received, Server, Sum, Uploads, Vectors, holds
from fedray.components.base import option
from fedray.models.network import Output


@holds(sent="all")
class FedProto(AuxiliaryLoss):
    """q = ∇ [CE + λ/(n d) Σ_j |h_j - P_y(j)|²] over the samples of the batch whose class has a global prototype P.

    n: samples of the batch; d: dimension of the features h (the input of the head). Every client keeps a whole model of
    its own and sends P_c^i, the mean features of its samples of class c; P_c is their mean over the clients of the
    cohort that hold c, and unchanged if none does. In the first round there is none: Local-only.

    Readings (D-49): the square is averaged over dimensions and clients count equally, as in the authors' code; P_c^i is
    computed from the trained model in evaluation mode, as in the paper. A personal model answers with the nearest
    global prototype among its client's classes (with its classifier if none of these has one yet).
    """

    name = "fedproto"
    paper = "Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022, algorithm 1"
    idea = "clients share the mean features of their classes, and nothing else"
    reads_features = True
    keeps = "all"
    shares = "none"
    personal = "kept"
    generic = False
    lam: float = option(1.0, ge=0, description="λ: weight of the distance to the prototypes", paper={"FedProto": 1})
    average: Literal["clients", "samples"] = Field(
        "clients", description="units of equal weight in a global prototype (D-49)"
    )
    prototypes: Literal["trained", "running"] = Field(
        "trained", description="features of the trained model, or those seen during the last local epoch (D-49)"
    )
    answer: Literal["prototype", "classifier"] = Field("prototype", description="how a personal model is tested")

    def begin(self, c: Client) -> None:
        c.local.sums, c.local.met = torch.zeros((), device=c.theta.device), torch.zeros_like(c.counts)

    def references(self, c: Client) -> tuple[Tensor, ...]:
        return (c.message.known, c.message.prototypes) if c.message else ()

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        h = output.features.flatten(1)
        if not references:
            return h.new_zeros(())
        known, prototypes = references
        return self.lam * (known[y][:, None] * (h - prototypes[y])).square().mean()

    def direction(self, c: Client) -> Tensor:
        if self.prototypes == "trained" or c.epoch < c.epochs - 1:
            return super().direction(c)

        def loss(forward: Forward) -> Tensor:
            output = forward(c.x)
            h = output.features.flatten(1).detach()
            c.local.sums = c.local.sums + by_class(h, c.y, len(c.counts))
            c.local.met = c.local.met + torch.bincount(c.y, minlength=len(c.counts))
            return cross_entropy(output.logits, c.y) + self.term(output, c.y, *self.references(c))

        return c.grad(c.theta, loss)

    def upload(self, c: Client) -> Uploads:
        if self.prototypes == "trained":
            output, y = c.shard(c.theta)
            c.local.sums, c.local.met = by_class(output.features.flatten(1), y, len(c.counts)), c.counts
        means = c.local.sums / c.local.met.clamp(min=1)[:, None]
        part = (c.local.met > 0).float() if self.average == "clients" else c.local.met / c.total_samples
        return {"prototypes": Sum(means * part[:, None]), "parts": Sum(part)}

    def aggregate(self, server: Server, got: Received) -> None:
        met = got.parts > 0
        new = got.prototypes / torch.where(met, got.parts, 1.0)[:, None]
        old = server.state or Vectors(prototypes=torch.zeros_like(new), known=torch.zeros_like(got.parts))
        server.state = Vectors(
            prototypes=torch.where(met[:, None], new, old.prototypes), known=torch.maximum(old.known, met.float())
        )

    @property
    def answers_alone(self) -> bool:
        return self.answer == "classifier" and type(self).personal_logits is FedProto.personal_logits

    def personal_logits(self, c: Client) -> Tensor:
        """Return negative squared distances `(n, C)` to the prototypes; impossible classes are far below."""
        output = c.predict(c.theta)
        candidates = (c.counts > 0) & (c.message.known > 0)
        if self.answer == "classifier" or not candidates.any():
            return output.logits
        h = output.features.flatten(1)
        squares = torch.cdist(h, c.message.prototypes, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        return -torch.where(candidates, squares, squares.max(1, keepdim=True).values + 100)


def by_class(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the sum of the features `(n, d)` of each class, `(classes, d)`; as a product, whose order is fixed."""
    return one_hot(y, classes).T.to(features.dtype) @ features
