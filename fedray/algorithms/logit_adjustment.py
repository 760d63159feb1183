"""Methods that adjust the local softmax by the client's class counts: FedRS and FedLC."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from fedray.algorithms.base import Algorithm, Client, Forward
from fedray.algorithms.linear_head import Unbiased, counts
from fedray.components.base import option


class FedRS(Unbiased):
    """q = ∇ CE(a z), z = W h without bias: a_c = 1 for classes that the client has, α for the others.

    The released code scales every class by α + (1 - α) n_c/max n instead (D-45): option `soft`. α = 1 is FedAvg without
    the head's bias; with α = 0 an absent class's row of W gets no gradient. Tests and fine-tuning use z.
    """

    name = "fedrs"
    paper = "Li and Zhan, FedRS: federated learning with restricted softmax, KDD 2021"
    idea = "limits how the classifier changes for classes that a client lacks"
    alpha: float = option(
        0.5, ge=0, le=1, description="α: scale of absent classes", paper={"FedRS, searched": "0.1 to 0.9"}
    )
    soft: bool = Field(False, description="scales that depend on the class's count")

    def begin(self, c: Client) -> None:
        n = counts(c, self.classes(c.layout))
        present = n / n.max() if self.soft else (n > 0).float()
        c.local.scales = self.alpha + (1 - self.alpha) * present

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.scaled_loss, c.local.scales)


class FedLC(Algorithm):
    """q = ∇ CE(z - τ n_c^(-1/4)): in training the logits of rare classes are lowered, so that they must grow.

    A class that the client lacks has the logit -∞ and its row gets no gradient; τ = 0 is FedAvg. The paper leaves the
    true class out of the softmax's sum, the ports do not (D-46); here it is included. Tests and fine-tuning use z.
    """

    name = "fedlc"
    paper = "Zhang et al., Federated learning with label distribution skew via logits calibration, ICML 2022"
    idea = "calibrates logits by how often a client sees each class"
    tau: float = option(
        1.0,
        ge=0,
        description="τ: strength of the calibration",
        paper={"FedLC, searched": "0.1 to 1", "FedACG's code": 1},
    )

    def loss(self, forward: Forward, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        """Return the cross-entropy of calibrated logits; a model may have more of them than there are classes."""
        z = forward(x).logits
        if self.tau == 0:
            return cross_entropy(z, y)
        n = pad(counts, (0, z.shape[1] - len(counts)))
        return cross_entropy((z - self.tau * n.clamp(min=1) ** -0.25).masked_fill(n == 0, -torch.inf), y)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.loss, c.counts)
