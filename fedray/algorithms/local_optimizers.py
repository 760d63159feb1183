"""Local optimisers other than SGD: AdamW and Muon, as settings of a run and as rules that methods build on."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.descent import Rule, keep_still
from fedray.common.vectors import Vectors
from fedray.components.base import Allowed, Checked
from fedray.models.network import Layout

Beta = Annotated[float, Field(ge=0, lt=1)]
Matrices = Literal["all", "body"]
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic iteration (D-131)."""
VECTORS = ((0.9, 0.95), 1e-10)
"""β1, β2 and ε of AdamW on the parameters that Muon leaves out (D-134)."""


class AdamWOptions(Checked):
    """`optimizer: adamw`: m <- β1 m + (1 - β1) q, v <- β2 v + (1 - β2) q², both corrected for their start at 0;
    y <- (1 - η wd) y - η m/(√v + ε).
    """

    betas: Annotated[tuple[Beta, Beta], Allowed("two numbers in [0, 1)")] = Field(
        (0.9, 0.999), description="β1 and β2: decay of the mean of directions, and of the mean of their squares"
    )
    eps: float = Field(1e-8, ge=0, description="ε: added to √v; with 0 an entry without gradient stays")
    state: Literal["round", "client"] = Field(
        "round",
        description="m, v and the number of steps start anew every round, or each client keeps its own; for a second "
        "model (Ditto, APFL) and in fine-tuning they always start anew",
    )


class MuonOptions(Checked):
    """`optimizer: muon`: M <- β M + (1 - β) q for each matrix; y <- (1 - f η wd) y - f η s O, O the nearly orthogonal
    matrix of Newton-Schulz steps from M, s = √max(1, rows/columns) (D-132). All other parameters take AdamW's step with
    β1 = 0.9, β2 = 0.95, ε = 1e-10 and η.
    """

    momentum: float = Field(0.95, ge=0, lt=1, description="β: momentum")
    nesterov: bool = Field(True, description="O from (1 - β) q + β M, as in the code; false: from M (D-130)")
    steps: int = Field(5, ge=1, le=100, description="Newton-Schulz steps, in float32 (D-131)")
    lr_factor: float = Field(1.0, gt=0, description="f: factor on η for the matrices")
    matrices: Matrices = Field(
        "all",
        description="all: every parameter with two or more dimensions; body: without the head and embeddings (D-133)",
    )


class AdamW(Rule):
    """d = m/(1 - β1^k) / (√(v/(1 - β2^k)) + ε) + wd y; k counts the steps of each parameter.

    Its state is m, v `(P,)`, and k: one number, or `(P,)` if steps move parts of the model.
    """

    def __init__(
        self,
        beta1: float,
        beta2: float,
        eps: float,
        state: Vectors | None = None,
        before: tuple[Tensor | float, Tensor | float] = (0.0, 0.0),
    ) -> None:
        """Args: before: numbers of steps to add to k in the corrections of m and of v."""
        super().__init__(state)
        self.beta1, self.beta2, self.eps, self.before = beta1, beta2, eps, before

    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        return self.adapt(q, mask) + decay

    def adapt(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        """Update the moments by q `(P,)` and return the corrected m/(√v + ε)."""
        old = self.state or Vectors(m=torch.zeros_like(q), v=torch.zeros_like(q), steps=q.new_zeros(()))
        m = self.beta1 * old.m + (1 - self.beta1) * q
        v = self.beta2 * old.v + (1 - self.beta2) * q.square()
        steps = old.steps + (1.0 if mask is None else mask)
        self.state.update(m=keep_still(m, old.m, mask), v=keep_still(v, old.v, mask), steps=steps)
        first, second = (steps + count for count in self.before)
        m, below = m / correction(self.beta1, first), (v / correction(self.beta2, second)).sqrt() + self.eps
        return m / below if self.eps else torch.where(below == 0, torch.zeros_like(m), m / below)


def correction(beta: float, steps: Tensor) -> Tensor:
    """Return 1 - β^k for the number of steps k, without cancellation in float32; k of 0 counts as 1."""
    return torch.ones_like(steps) if beta == 0 else -torch.expm1(steps.clamp(min=1) * math.log(beta))


class Muon(Rule):
    """Muon's step on matrices, AdamW's on all other parameters.

    Its state is the momentum `(Q,)` of the Q entries of matrices, and AdamW's vectors of the others.
    """

    def __init__(self, options: MuonOptions, layout: Layout, state: Vectors | None = None) -> None:
        super().__init__(state)
        self.options, self.layout = options, layout
        left_out = frozenset[str]() if options.matrices == "all" else layout.heads | layout.embeddings
        self.names = [name for name in layout.matrices if name not in left_out]
        chosen = layout.mask(set(self.names).__contains__)
        self.index, self.others = chosen.nonzero().flatten(), (chosen == 0).nonzero().flatten()
        (beta1, beta2), eps = VECTORS
        self.adamw = AdamW(beta1, beta2, eps)

    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        self.index, self.others = self.index.to(q.device), self.others.to(q.device)
        d = torch.zeros_like(q)
        if len(self.others):
            part = None if mask is None else mask[self.others]
            d = d.index_copy(0, self.others, self.adamw.adapt(q[self.others], part))
        if len(self.index):
            d = d.index_copy(0, self.index, self._turn(q, mask))
        d = d + decay
        factor = self.options.lr_factor
        return d if factor == 1 else d.index_copy(0, self.index, factor * d[self.index])

    def _turn(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """Update the momentum and return s O of every matrix, `(Q,)`."""
        beta, q = self.options.momentum, q[self.index]
        old = self.state.get("momentum", torch.zeros_like(q))
        moment = beta * old + (1 - beta) * q
        self.state.momentum = keep_still(moment, old, None if mask is None else mask[self.index])
        ahead = (1 - beta) * q + beta * moment if self.options.nesterov else moment
        shapes = [self.layout.shapes[self.layout.names.index(name)] for name in self.names]
        parts = ahead.split([math.prod(shape) for shape in shapes])
        return torch.cat(
            [
                math.sqrt(max(1.0, shape[-2] / shape[-1])) * turn(part.view(shape), self.options.steps).flatten()
                for part, shape in zip(parts, shapes, strict=True)
            ]
        )


def turn(matrix: Tensor, steps: int) -> Tensor:
    """Return the nearly orthogonal matrix with the same singular vectors: five steps bring singular values to about 1.

    X = G/(||G||_F + 1e-7), transposed if it is tall; `steps` times A = X X^T, X <- a X + (b A + c A²) X. A
    convolution's `(out, in, height, width)` counts as `(out, in height width)`.
    """
    a, b, c = NEWTON_SCHULZ
    flat = matrix.flatten(1) if matrix.ndim > 3 else matrix
    tall = flat.shape[-2] > flat.shape[-1]
    x = flat.mT if tall else flat
    x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = (x.mT if tall else x).reshape(matrix.shape)
    return result
