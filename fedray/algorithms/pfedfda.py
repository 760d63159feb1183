"""pFedFDA: the head is a Gaussian classifier of means and a covariance that each client adapts to its features."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Client, Forward, ParameterGroup, Received, Server, Sum, Uploads, Vectors
from fedray.algorithms.fedpac import class_means
from fedray.algorithms.linear_head import LinearHead, counts
from fedray.common.errors import UserError
from fedray.models.network import Layout

EPS = 1e-4
"""ε of the priors, of the covariance's diagonal and of the ridge."""
ENTRIES = 11
"""Values of each β that are tried: 0, 0.1, ..., 1."""
EQUAL = 1e-6
"""Losses that differ by less count as equal: of separated classes they are 0 up to rounding for many β."""
FEW = 2
"""Number of features of a class up to which `rare` decides about its mean."""


class PFedFDA(LinearHead):
    """q = ∇ CE(W h + b) on the body, with W, b = LDA(μ, Σ, π_i) of the means μ and the covariance Σ received.

    LDA: S = (1 - ε) Σ + ε tr(Σ)/d I, w_c = S⁻¹ μ_c, b_c = -½ μ_c^T w_c + log π_ic, π_ic ∝ n_ic/n_i + ε. A client keeps
    the features h of all its steps. From these it computes its class means μ_ic (μ_c for a class without) and Σ_i, the
    scatter around them over n - 1, plus a ridge. β_μ and β_Σ minimise the cross-entropy of LDA(β_μ μ_fold + (1 - β_μ)
    μ, β_Σ Σ_fold + (1 - β_Σ) Σ, π_i) of one half of the features on the other, and the reverse. The client sends its
    body, β_μ μ_i + (1 - β_μ) μ and β_Σ Σ_i + (1 - β_Σ) Σ; the server averages all three. The personal model is x's body
    with the LDA of means and covariance adapted in the same way to the features of the client's shard, in evaluation
    mode. The generic one is x's body with LDA(μ, Σ, 1/C), which x's head holds.

    Readings: features of all epochs count (D-176). The β are the best of the values 0, 0.1, ..., 1, of equal ones the
    smallest; the code makes ten steps of L-BFGS from ½. The j-th feature of a class belongs to half j mod 2, in the
    code at random. If a half has fewer than two features of classes that have two, β is 0 (D-178). Statistics are
    computed in float64. In the code all clients train in the last round, and personal features leave out an incomplete
    batch (D-179). The paper was read in summary; the formulas are the authors' code's [S].
    """

    name = "pfedfda"
    paper = "McLaughlin and Su, Personalized federated learning via feature distribution adaptation, NeurIPS 2024"
    idea = "a Gaussian classifier as the head, of means and a covariance that each client adapts"
    reads_features = True
    shares = "body"
    personal = "kept"
    beta: Literal["two", "one", "local"] = Field(
        "two",
        description="two: β_μ and β_Σ; one: the same for both; local: both 1",
        json_schema_extra={"paper": {"pFedFDA": "two"}},
    )
    ridge: Literal["identity", "epsilon"] = Field(
        "identity", description="added to Σ_i: I and ε to every entry (the code), or ε I (the paper; D-174)"
    )
    rare: Literal["received", "own"] = Field(
        "received",
        description="mean of a class with one or two features: the one received, or its own (the code in training, "
        "D-175)",
    )
    start: Literal["uniform", "normal"] = Field(
        "uniform", description="first means: uniform on [0, 1) (the code), or standard normal (the paper; D-177)"
    )

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        if len(layout.heads) < 2:
            raise UserError(f"model.name: its head has no bias; {self.name} needs one for the priors")

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        shape = layout.shapes[layout.names.index(self.weight(layout))]
        means = torch.rand(shape) if self.start == "uniform" else torch.randn(shape)
        return self._with_head(theta, layout, make_lda(means, torch.eye(shape[1]), torch.ones(shape[0])))

    def message(self, server: Server) -> Vectors:
        if server.state:
            return Vectors(server.state)
        means = server.layout.views(server.theta)[self.weight(server.layout)]  # with Σ = I they are W
        return Vectors(means=means, covariance=torch.eye(means.shape[1], device=means.device))

    def begin(self, c: Client) -> None:
        c.local.priors = self._get_priors(c)
        c.theta = self._with_head(c.theta, c.layout, make_lda(c.message.means, c.message.covariance, c.local.priors))

    def trained_part(self, c: Client) -> ParameterGroup:
        return "body"

    def gradient(self, c: Client) -> Tensor:
        def loss(forward: Forward) -> Tensor:
            output = forward(c.x)
            c.local[f"h{c.step}"], c.local[f"y{c.step}"] = output.features.detach().flatten(1), c.y
            return cross_entropy(output.logits, c.y)

        return c.grad(c.theta, loss, part="body")

    def upload(self, c: Client) -> Uploads:
        h = torch.cat([c.message.means[:0], *(c.local[f"h{k}"] for k in range(c.steps))])
        y = torch.cat([c.counts[:0].long(), *(c.local[f"y{k}"] for k in range(c.steps))])
        means, covariance = self.adapt_to(c, h, y)
        return {"means": Sum(means.float(), c.weight), "covariance": Sum(covariance.float(), c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state = Vectors(means=got.means, covariance=got.covariance)
        head = make_lda(got.means, got.covariance, torch.ones_like(got.means[:, 0]))
        server.theta = self._with_head(server.theta, server.layout, head)

    def prepare(self, c: Client) -> None:
        output, y = c.shard(c.theta)
        c.local.priors = self._get_priors(c)
        means, covariance = self.adapt_to(c, output.features.flatten(1), y)
        c.theta = self._with_head(c.theta, c.layout, make_lda(means, covariance, c.local.priors))

    def adapt_to(self, c: Client, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means `(C, d)` and the covariance `(d, d)` adapted to features h `(n, d)`; all in float64."""
        h, means, covariance = h.double(), c.message.means.double(), c.message.covariance.double()
        own = self.estimate(h, y, means)
        by_mean, by_covariance = self.find_betas(h, y, means, covariance, c.local.priors.double())
        return torch.lerp(means, own[0], by_mean), torch.lerp(covariance, own[1], by_covariance)

    def estimate(self, h: Tensor, y: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return class means `(C, d)` and the covariance `(d, d)` of features. means: for classes without enough."""
        count = torch.bincount(y, minlength=len(means))
        is_own = count > (FEW if self.rare == "received" else 0)
        own = torch.where(is_own[:, None], class_means(h, y, count), means)
        apart, identity = h - own[y], torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
        ridge = identity + EPS if self.ridge == "identity" else EPS * identity
        return own, apart.T @ apart / max(len(h) - 1, 1) + ridge

    def find_betas(
        self, h: Tensor, y: Tensor, means: Tensor, covariance: Tensor, priors: Tensor
    ) -> tuple[float, float]:
        """Return β_μ and β_Σ. The arguments are float64: features and their labels, what was received, π_i."""
        if self.beta == "local":
            return 1.0, 1.0
        half = number_in_class(y) % 2
        kept = torch.bincount(y, minlength=len(means))[y] >= FEW
        folds = [kept & (half == i) for i in (0, 1)]
        if min(int(fold.sum()) for fold in folds) < FEW:
            return 0.0, 0.0
        losses = torch.zeros(ENTRIES, ENTRIES, dtype=h.dtype, device=h.device)
        for fold, other in (folds, folds[::-1]):
            own = self.estimate(h[fold], y[fold], means)
            losses += score_betas(h[other], y[other], (means, covariance), own, priors)
        if self.beta == "one":
            best = find_least(losses.diagonal())
            return best / (ENTRIES - 1), best / (ENTRIES - 1)
        by_covariance, by_mean = divmod(find_least(losses.flatten()), ENTRIES)
        return by_mean / (ENTRIES - 1), by_covariance / (ENTRIES - 1)

    def _get_priors(self, c: Client) -> Tensor:
        """Return π_i `(C,)`."""
        priors = counts(c, self.classes(c.layout)) / c.samples + EPS
        return priors / priors.sum()

    def _with_head(self, theta: Tensor, layout: Layout, head: tuple[Tensor, Tensor]) -> Tensor:
        """Return theta with the weight and the bias of a head."""
        name = self.weight(layout)
        bias = next(other for other in layout.heads if other != name)
        tensors = {name: head[0], bias: head[1]}
        return layout.join({**layout.views(theta), **{key: each.to(theta) for key, each in tensors.items()}})


def make_lda(means: Tensor, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight `(C, d)` and bias `(C,)` of the Gaussian classifier, float64.

    Args:
        means: μ `(C, d)`.
        covariance: Σ `(d, d)`.
        priors: π `(C,)`, with any sum.
    """
    means, priors = means.double(), priors.double()
    weight = torch.linalg.solve(shrink(covariance.double()), means.T).T
    return weight, (priors / priors.sum()).log() - 0.5 * (means * weight).sum(1)


def shrink(covariance: Tensor) -> Tensor:
    """Return (1 - ε) Σ + ε tr(Σ)/d I."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - EPS) * covariance + EPS * covariance.trace() / len(covariance) * identity


def number_in_class(y: Tensor) -> Tensor:
    """Return for each label of y `(n,)` how many equal ones come before it."""
    order = torch.argsort(y, stable=True)
    counted = torch.bincount(y)
    starts = (counted.cumsum(0) - counted)[y[order]]
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y), device=y.device) - starts)


def find_least(losses: Tensor) -> int:
    """Return the first position of `losses` `(n,)` within `EQUAL` of the least; 0 if that is NaN."""
    return int((~(losses > losses.min() + EQUAL)).nonzero()[0])


def score_betas(
    h: Tensor, y: Tensor, received: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], priors: Tensor
) -> Tensor:
    """Return the cross-entropy of features for each β_Σ (rows) and β_μ (columns), `(ENTRIES, ENTRIES)`.

    Args:
        h: features `(n, d)`. All tensors are float64.
        y: their labels.
        received: means `(C, d)` and covariance `(d, d)` for β = 0.
        own: the same for β = 1.
        priors: π_i `(C,)`.
    """
    betas, classes = torch.linspace(0, 1, ENTRIES, dtype=h.dtype, device=h.device), len(priors)
    means = torch.lerp(received[0], own[0], betas[:, None, None])
    rows = []
    for beta in betas:
        s = shrink(torch.lerp(received[1], own[1], beta))
        solved = torch.linalg.solve(s, torch.cat([received[0], own[0]]).T).T  # linear in the means
        weights = torch.lerp(solved[:classes], solved[classes:], betas[:, None, None])
        logits = h @ weights.transpose(1, 2) + (priors.log() - 0.5 * (means * weights).sum(2))[:, None]
        rows.append(torch.stack([cross_entropy(each, y) for each in logits]))
    return torch.stack(rows)
