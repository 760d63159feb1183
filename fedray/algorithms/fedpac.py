"""FedPAC: clients align features by class, and each receives the mixture of heads that suits its features best."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import (
    Algorithm,
    Client,
    Forward,
    ParameterGroup,
    PerClient,
    Received,
    Server,
    Sum,
    Uploads,
    Vectors,
)
from fedray.algorithms.fedproto import by_class

RIDGE = 1e-10
"""Added to a diagonal whose mean entry is 1, so that two clients without variance have one minimum."""


class FedPAC(Algorithm):
    """q = g(y) on the head in the first epoch, at its own rate; then ∇ [CE + λ mean |f - P_y|²] on the body.

    P_y is the global mean of class y's features, or the client's own from before training if there is none; the first
    round has no such term. Before training a client computes its class means μ_ic, h_ic = p_ic μ_ic with p_ic =
    n_ic/n_i, and V_i = (Σ p_ic mean_c |f|² - Σ p_ic² |μ_ic|²)/n_i. It sends body, head, h_i, V_i, and the class means
    after training. The server averages bodies, computes P_c = Σ n_ic μ_ic/Σ n_ic, and sends each client of the cohort
    the head Σ_j a_ij head_j: a_i minimises a^T (diag(V) + D_i) a over the simplex, (D_i)_jk = Σ_c <h_ic - h_jc, h_ic -
    h_kc>. The personal model is that head on the averaged body; absent clients keep their head.

    Readings: heads, variances and means have one order, which PFLlib mixes up (D-74), just as it mixes heads in place
    (D-125); the problem is solved exactly, without the code's cut-offs (D-75); the head's epoch comes before the code's
    E epochs of the body, so `local_epochs` is E + 1, and 1 trains only heads (D-76). λ = 0 with a_i = e_i is FedRep
    with the head first. The paper was read in summary, and the formulas are the authors' code's [S]. In PFLlib P_c is
    the plain mean of the μ_ic (`prototypes: uniform`, D-74).
    """

    name = "fedpac"
    paper = "Xu et al., Personalized federated learning with feature alignment and classifier collaboration, ICLR 2023"
    idea = "aligned features, and for each client its own mixture of the cohort's heads"
    reads_features = True
    shares = "body"
    keeps = "head"
    personal = "kept"
    generic = False
    lam: float = Field(
        1.0, ge=0, description="λ: weight of the alignment", json_schema_extra={"paper": {"FedPAC's code": 1}}
    )
    head_lr: float = Field(
        0.1,
        gt=0,
        description="learning rate of the head's epoch, the same in every round (D-76)",
        json_schema_extra={"paper": {"FedPAC's code": 0.1}},
    )
    prototypes: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the μ_ic in P_c: n_ic, or equal for the clients with class c (D-74)"
    )

    def message(self, server: Server) -> Vectors:
        return server.state

    def begin(self, c: Client) -> None:
        output, y = c.shard(c.theta)
        f, share = output.features.flatten(1), c.counts / c.samples
        c.local.means = class_means(f, y, c.counts)
        c.local.h = share[:, None] * c.local.means
        squares = class_means(f.square().sum(1, keepdim=True), y, c.counts)[:, 0]
        c.local.v = ((share * squares).sum() - c.local.h.square().sum()) / c.samples

    def trained_part(self, c: Client) -> ParameterGroup:
        return "head" if c.epoch == 0 else "body"

    def rate(self, c: Client) -> float:
        return self.head_lr if c.epoch == 0 else c.lr

    def direction(self, c: Client) -> Tensor:
        if c.epoch == 0:
            return c.grad(c.theta, part="head")
        if not c.message:
            return c.grad(c.theta, part="body")
        targets = torch.where(c.message.known[:, None] > 0, c.message.prototypes, c.local.means)[c.y]

        def loss(forward: Forward) -> Tensor:
            output = forward(c.x)
            return cross_entropy(output.logits, c.y) + self.lam * (output.features.flatten(1) - targets).square().mean()

        return c.grad(c.theta, loss, part="body")

    def upload(self, c: Client) -> Uploads:
        output, y = c.shard(c.theta)
        part = c.counts / c.total_samples if self.prototypes == "samples" else (c.counts > 0).float()
        return {
            "head": PerClient(c.theta[c.layout.head.to(c.theta.device) > 0]),
            "h": PerClient(c.local.h),
            "v": PerClient(c.local.v),
            "prototypes": Sum(part[:, None] * class_means(output.features.flatten(1), y, c.counts)),
            "parts": Sum(part),
        }

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        met = got.parts > 0
        new = got.prototypes / torch.where(met, got.parts, 1.0)[:, None]
        old = server.state or Vectors(prototypes=torch.zeros_like(new), known=torch.zeros_like(got.parts))
        server.state = Vectors(
            prototypes=torch.where(met[:, None], new, old.prototypes), known=torch.maximum(old.known, met.float())
        )

    def reply(self, server: Server, got: Received) -> Vectors:
        return Vectors(own=mixtures(got.h, got.v) @ got.head)


def class_means(features: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Return the mean features of each class `(C, d)`; 0 for a class without samples."""
    return by_class(features, y, len(counts)) / counts.clamp(min=1)[:, None]


def mixtures(h: Tensor, v: Tensor) -> Tensor:
    """Return a `(M, M)`: row i minimises a^T (diag(V) + D_i) a over the simplex.

    Args:
        h: h_ic `(M, C, d)`.
        v: V_i `(M,)`; values below 0, from rounding, count as 0.
    """
    h = h.double().flatten(1)
    apart = h[:, None] - h
    problems = apart @ apart.transpose(1, 2) + torch.diag(v.double().clamp(min=0))
    return torch.from_numpy(np.stack([on_simplex(q) for q in problems.numpy()])).float()


def on_simplex(q: np.ndarray) -> np.ndarray:
    """Return the a `(M,)` with entries of at least 0 and sum 1 that minimises a^T Q a, Q `(M, M)` positive
    semidefinite.

    It is the b >= 0 that minimises b^T Q b / 2 - Σ b, divided by its sum. With Q = R R^T that b is the non-negative
    least-squares solution of R^T b = R^-1 1.
    """
    from scipy.linalg import solve_triangular  # here: SciPy takes a while to import, and other methods do not need it
    from scipy.optimize import nnls

    size = len(q)
    root = np.linalg.cholesky(q / (np.trace(q) / size or 1.0) + RIDGE * np.eye(size))
    b, _ = nnls(root.T, solve_triangular(root, np.ones(size), lower=True), maxiter=30 * size)
    result: np.ndarray = b / b.sum()
    return result
