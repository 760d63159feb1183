"""Personal models without kept parts of theta: Local-only, PerFedAvg (a start for fine-tuning), kNN-Per."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedray.algorithms.auxiliary import FEDSOL
from fedray.algorithms.base import Algorithm, Client, Finetuning, Forward
from fedray.common.rng import keep_draws
from fedray.components.base import option


class LocalOnly(Algorithm):
    """q = g(y) with the client's own model y; nothing is sent or averaged.

    All start at the same x⁰ and train in the rounds in which they are drawn. FedSOL's 200 epochs with a learning rate
    that decays per epoch are 200 rounds of one epoch with all clients in the cohort.
    """

    name = "local-only"
    paper = f"{FEDSOL}, table 9"
    idea = "every client trains alone"
    keeps = "all"
    shares = "none"
    personal = "kept"
    generic = False


class PerFedAvg(Algorithm):
    """q = g(y'), y' = y - a g'(y); hessian_free: q = v - a [g''(y + δ v) - g''(y - δ v)]/(2δ) with v = g(y').

    g: gradient on the step's batch; g', g'': on one and another batch, drawn from the shard only for this step; both
    g'' with the same dropout. a = 0 is FedAvg, but running statistics follow g'. The inner step has neither momentum
    nor weight decay (D-51). A personal model is x after plain steps of length a, y <- y - a g(y), without clipping,
    momentum and weight decay, for any `training`.

    As the code has it: the outer step has a length of its own, b (`outer_lr`), and the inner one decays the weights,
    y' = y - a (g' + w y) (`inner_weight_decay`; hessian_free: (1 - a w) v for the first v), both FedSOL's port.
    """

    name = "perfedavg"
    bound_to_sgd = "takes its inner step along a plain gradient, by η"
    paper = (
        "Fallah et al., Personalized federated learning with theoretical guarantees: a model-agnostic "
        "meta-learning approach, NeurIPS 2020, algorithm 1"
    )
    idea = "learns a start from which one step adapts well"
    inner_lr: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="a: length of the inner step; default the round's learning rate"
    )
    outer_lr: float | None = option(
        None,
        gt=0,
        allow_inf_nan=False,
        description="b: length of the outer step; default the round's learning rate",
        paper={"FedSOL's code": 0.01, "FL-bench": 0.001},
    )
    inner_weight_decay: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="w: weight decay of the inner step (FedSOL's code, D-51)"
    )
    hessian_free: bool = Field(False, description="add the second-order term, as a finite difference")
    delta: float = option(1e-3, gt=0, description="δ: half the width of that difference", paper={"FL-bench": 1e-3})

    def count_revisions(self) -> int:  # the second-order term lacked the weight decay, and was noise with dropout
        return super().count_revisions() + self.hessian_free * (1 + (self.inner_weight_decay > 0))

    def a(self, c: Client) -> float:
        """Return the length of the inner step."""
        return c.lr if self.inner_lr is None else self.inner_lr

    def rate(self, c: Client) -> float:
        return c.lr if self.outer_lr is None else self.outer_lr

    def gradient(self, c: Client) -> Tensor:
        a = self.a(c)
        inner = c.grad(c.theta, self.loss_on, *c.draw())
        if self.inner_weight_decay:
            inner = inner + self.inner_weight_decay * c.theta
        v = c.grad(c.theta - a * inner)
        if not self.hessian_free:
            return v
        other = c.draw()
        with keep_draws(device=v.device):  # both have the same dropout
            ahead = c.grad(c.theta + self.delta * v, self.loss_on, *other)
        behind = c.grad(c.theta - self.delta * v, self.loss_on, *other)
        return (1 - a * self.inner_weight_decay) * v - a / (2 * self.delta) * (ahead - behind)

    def loss_on(self, forward: Forward, x: Tensor, y: Tensor, drawn_x: Tensor, drawn_y: Tensor) -> Tensor:
        """Return the mean cross-entropy of another batch than the step's."""
        return cross_entropy(forward(drawn_x).logits, drawn_y)

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(plain=True, rate=self.a)


class KNNPer(Algorithm):
    """q = g(y), FedAvg; the tested model is p = λ p_kNN + (1 - λ) softmax(z), p_kNN ∝ Σ_j exp(-|h - h_j|²/(d s))
    onehot(y_j).

    The sum is over the k samples of the client's own shard whose features h_j are nearest to the test sample's h, of
    dimension d, all computed by the personal model (after its fine-tuning, if there is any) in evaluation mode and
    without augmentation. Probabilities are mixed, not logits (D-54). λ = 0 is FedAvg with its fine-tuning.
    """

    name = "knnper"
    paper = "Marfoq et al., Personalized federated learning through local memorization, ICML 2022"
    idea = "FedAvg, with each client's samples as its memory at test time"
    stacks = True
    reads_features = True
    k: int = option(10, gt=0, description="k: neighbours", paper={"kNN-Per": 10, "FedSOL, FL-bench": 5})
    lam: float = Field(0.5, ge=0, le=1, description="λ: weight of the neighbours")
    scale: float = Field(1.0, gt=0, description="s: width of the kernel")
    capacity: int | None = option(
        None,
        gt=0,
        description="maximum number of remembered samples, drawn from the shard; default all",
        paper={"FedSOL, FL-bench": 500},
    )

    def prepare(self, c: Client) -> None:
        output, labels = c.shard(c.theta)
        kept = torch.randperm(len(labels))[: self.capacity].to(labels.device)
        c.local.features, c.local.labels = output.features.flatten(1)[kept], labels[kept]

    def personal_logits(self, c: Client) -> Tensor:
        """Return log p `(n, C)`."""
        output = c.predict(c.theta)
        h, stored = output.features.flatten(1), c.local.features
        nearest = squared_distances(h, stored).topk(min(self.k, len(stored)), largest=False)
        weights = (-nearest.values / (h.shape[1] * self.scale)).softmax(1)
        labels = one_hot(c.local.labels[nearest.indices], output.logits.shape[1])
        p_knn = (weights[:, :, None] * labels).sum(1)
        return (self.lam * p_knn + (1 - self.lam) * output.logits.softmax(1)).log()


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return |a_i - b_j|² `(n, m)` of rows `(n, d)`, `(m, d)`, by one product; centred first to avoid cancellation."""
    a, b = a - b.mean(0), b - b.mean(0)
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)
