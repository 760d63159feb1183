"""Models small enough to derive rounds by hand, for methods that use outputs, features or inner layers."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

LN2 = log(2)


def times_ln2(values: Sequence[float], divisor: float = 1.0) -> tuple[float, ...]:
    """Logits that are logarithms of powers of two make rational probabilities."""
    return tuple(LN2 * value / divisor for value in values)


class Softmax(nn.Module):
    """Logits W x for one input: theta = W, three classes, all of it head."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(1, 3, bias=False)
        nn.init.zeros_(self.weights.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x)


class TwoLayers(nn.Module):
    """Features h = A x and logits H h; H = 0, so at first no class gradient reaches A.

    As a rule two classes and two features. theta = (A, H), row by row, and the head's bias if there is one. The
    features pass an activation, the identity, whose input is the tap.
    """

    taps = ("activation",)
    head = "classifier"

    def __init__(self, body: Sequence[Sequence[float]], classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(len(body[0]), len(body), bias=False)
        self.activation = nn.Identity()
        self.classifier = nn.Linear(len(body), classes, bias=bias)
        self.body.weight.data = torch.tensor(body, dtype=torch.float32)
        nn.init.zeros_(self.classifier.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.activation(self.body(x)))


class Normed(nn.Module):
    """Logits H (γ n(x) + β) for one input, n by BatchNorm with an eps of nothing: theta = (γ, β, H), two classes."""

    head = "classifier"

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, eps=1e-12)
        self.classifier = nn.Linear(1, 2, bias=False)
        self.classifier.weight.data = torch.tensor(weights)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(x))
