"""Methods that treat body and head separately: FedRod has two heads, FedBABU trains none, FedRep's is local."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Finetuning, Forward, ParameterGroup, Uploads
from fedray.algorithms.linear_head import LinearHead, counts
from fedray.algorithms.partial import KeepsPart
from fedray.components.base import option
from fedray.models.network import Output


class FedRod(LinearHead):
    """q = ∇ CE(z + log n_k), a balanced softmax for the shared model; also P_k <- P_k - η v of ∇ CE(z + P_k h).

    P_k is the client's own second head, with a bias; neither z nor h gets a gradient from its loss (D-47). It starts at
    0, so that a client first predicts like the shared model, and uses the local momentum, without weight decay and
    clipping; it is kept as `(C, d + 1)`, the bias last. A class that the client lacks has log 0 = -∞. The personal
    model is the one after local training, with z + P_k h; the generic one is z. The training loss is the sum of both.
    """

    name = "fedrod"
    bound_to_sgd = "trains its second heads by SGD"
    paper = "Chen and Chao, On bridging generic and personalized federated learning for image classification, ICLR 2022"
    idea = "a balanced shared head, and a second head on each client"
    reads_features = True
    personal = "trained"
    keeps_frozen = True

    def begin(self, c: Client) -> None:
        classes, width = c.layout.shapes[c.layout.names.index(self.weight(c.layout))]
        start = c.state.get("head", c.theta.new_zeros(classes, width + 1))
        c.local.head, c.local.velocity, c.local.log_counts = start, torch.zeros_like(start), counts(c, classes).log()

    def gradient(self, c: Client) -> Tensor:
        def losses(forward: Forward, head: Tensor) -> Tensor:
            output = forward(c.x)
            logits = self.own(Output(output.logits.detach(), output.features.detach()), head)
            return cross_entropy(output.logits + c.local.log_counts, c.y) + cross_entropy(logits, c.y)

        g, by_head = c.grad_with(c.theta, c.local.head, losses)
        c.local.velocity = c.momentum * c.local.velocity + by_head
        c.local.head = c.local.head - c.rate * c.local.velocity
        return g

    def own(self, output: Output, head: Tensor) -> Tensor:
        """Return z + P h."""
        return output.logits + output.features @ head[:, :-1].T + head[:, -1]

    def upload(self, c: Client) -> Uploads:
        c.state.head = c.local.head
        return {}

    def personal_logits(self, c: Client) -> Tensor:
        return self.own(c.predict(c.theta), c.local.head)


class FedBABU(Algorithm):
    """q = g(y) on the body only: the head stays untrained until fine-tuning, which changes all parameters.

    Only the body is sent. The accuracy of the global model is that of the trained body under its initial, random head;
    the generic accuracy is the mean of the fine-tuned models' (D-117).
    """

    name = "fedbabu"
    paper = "Oh, Kim and Yun, FedBABU: toward enhanced representation for federated image classification, ICLR 2022"
    idea = "learns the body jointly, and the head only in fine-tuning"
    reads_features = True
    shares = "body"
    generic = False

    def trained_part(self, c: Client) -> ParameterGroup:
        return "body"


class FedRep(KeepsPart):
    """q = g(y) on the head in the first epochs of a round, then on the body.

    Each client keeps its own head, and only the body is sent; a newcomer has the initial head. A round of at most
    `body_epochs` epochs trains only the body. The personal model is a client's head on the current body, after
    fine-tuning epochs for the head, in which the body's running statistics follow. In the code a newcomer starts with
    the average of the last cohort's heads, which the server then has to know (`newcomer: average`, D-106).
    """

    name = "fedrep"
    paper = "Collins et al., Exploiting shared representations for personalized federated learning, ICML 2021"
    idea = "a shared body under each client's own head, trained in turn"
    reads_features = True
    shares = "body"
    generic = False
    body_epochs: int = option(
        1, ge=1, description="last epochs of a round, which train the body", paper={"FedRep's code": 1}
    )

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(part="head")

    def trained_part(self, c: Client) -> ParameterGroup:
        return "body" if c.epoch >= c.epochs - self.body_epochs else "head"
