"""Shared by methods on the classifier: a head that is one linear layer, and functions of a client's class counts."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from fedray.algorithms.base import Algorithm, Client, Finetuning, Forward, ParameterGroup
from fedray.common.errors import UserError
from fedray.models.network import Layout, Output

Q = Literal["x", "exp", "sqrt"]
Gamma = Literal["client", "shared"]


class LinearHead(Algorithm):
    """Base of the methods that need a head z = W h + b, W `(C, d)`."""

    keeps_frozen: ClassVar[bool] = False
    """True if a part of the head may be frozen, as a bias that is neither trained nor 0."""

    def weight(self, layout: Layout) -> str:
        """Return the name of W. Raises UserError if the head is anything else, or not on `Output.features`."""
        self.refuse_untrained(layout, "head")
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        matrices = [name for name in sorted(layout.heads) if len(shapes[name]) == 2]
        others = [shapes[name] for name in layout.heads if len(shapes[name]) != 2]
        if len(matrices) != 1 or others not in ([], [shapes[matrices[0]][:1]]):
            raise UserError(
                f"model.name: its head has the parameters {', '.join(sorted(layout.heads))}; {self.name} "
                "needs one linear layer"
            )
        if layout.own_features and self.reads_features:
            raise UserError(f"model.name: it has features() of its own; {self.name} needs the input of the head")
        return matrices[0]

    def classes(self, layout: Layout) -> int:
        """Return C, the number of rows of W."""
        return layout.shapes[layout.names.index(self.weight(layout))][0]

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        self.weight(layout)
        if layout.frozen_heads and not self.keeps_frozen:
            raise UserError(f"model: {min(layout.frozen_heads)} is not trained; {self.name} needs the whole head")


class Unbiased(LinearHead):
    """Base of the methods whose head has no bias: an existing one starts at 0 and stays there."""

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(part="unbiased")

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        return theta * layout.part("unbiased")

    def trained_part(self, c: Client) -> ParameterGroup:
        return "unbiased"

    def scaled_loss(self, forward: Forward, x: Tensor, y: Tensor, scales: Tensor) -> Tensor:
        """Return the cross-entropy of logits that are scaled class by class."""
        return cross_entropy(scales * forward(x).logits, y)


def counts(c: Client, classes: int) -> Tensor:
    """Return n_kc of the client, float32 `(classes,)`; a model may have more outputs than there are classes."""
    return pad(c.counts, (0, classes - len(c.counts)))


def phi(c: Client, classes: int, q: Q = "x", gamma: Gamma = "client") -> Tensor:
    """Return Φ_k, float32 `(classes,)`: γ Q(n_kc/n_k) with Q: x, e^x or √x.

    With γ `client` Φ_k averages to 1 over the classes; with `shared` Σ_k p_k Φ_kc is 1 for each class, over all
    clients.
    """
    scaled = _q(counts(c, classes) / c.samples, q)
    if gamma == "client":
        return scaled / scaled.mean()
    everyone = pad(c.all_counts, (0, classes - c.all_counts.shape[1]))
    sizes = everyone.sum(1, keepdim=True)
    average = (sizes / sizes.sum() * _q(everyone / sizes.clamp(min=1), q)).sum(0)
    return scaled / average.where(average > 0, 1.0)


def _q(p: Tensor, q: Q) -> Tensor:
    return p if q == "x" else p.exp() if q == "exp" else p.sqrt()


def normalised(output: Output) -> Tensor:
    """Return W h/||h||, `(n, C)`: the logits of features of length 1, under a head without bias."""
    result: Tensor = output.logits / torch.linalg.vector_norm(output.features, dim=1, keepdim=True).clamp(min=1e-12)
    return result
