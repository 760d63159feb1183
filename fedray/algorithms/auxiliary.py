"""Methods that add a loss on the network's outputs: distillation (FedNTD, KL) and contrast (MOON, FedRCL)."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus

from fedray.algorithms.base import Client, Forward, Part, Proximal, Uploads, Vectors
from fedray.components.base import option
from fedray.models.network import Output

FEDSOL = (
    "Lee et al., FedSOL: stabilized orthogonal learning with proximal restrictions in federated learning, CVPR 2024"
)


class AuxiliaryLoss(Proximal):
    """q = ∇ [CE + term], one pass for both; the term sees the batch's outputs at y."""

    def references(self, c: Client) -> tuple[Tensor, ...]:
        """Return what the term needs besides the outputs and the labels of the current batch."""
        return ()

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        """Return the added loss of a batch; of the method it reads the options alone."""
        raise NotImplementedError

    def term_alone(self, forward: Forward, x: Tensor, y: Tensor, *references: Tensor) -> Tensor:
        """Return the added loss of a batch at some theta."""
        return self.term(forward(x), y, *references)

    def loss(self, forward: Forward, x: Tensor, y: Tensor, *references: Tensor) -> Tensor:
        """Return cross-entropy and the added loss of a batch at some theta."""
        output = forward(x)
        return cross_entropy(output.logits, y) + self.term(output, y, *references)

    def proximal(self, c: Client, theta: Tensor, part: Part = "all") -> Tensor:
        return c.grad(theta, self.term_alone, *self.references(c), part=part)

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.loss, *self.references(c))


def kl(target: Tensor, logits: Tensor) -> Tensor:
    """Return the batch's mean KL(softmax(target) || softmax(logits)), for logits `(n, C)`; no gradient to the target.

    It is computed as Σ p (log p - log q) with the normalisers separate: at equal logits its gradient, softmax(logits) -
    p, is then exactly zero instead of rounding noise, which a unit vector would amplify (D-34).
    """
    p = (target - target.logsumexp(1, keepdim=True)).exp()
    return (logits.logsumexp(1) - target.logsumexp(1) + (p * (target - logits)).sum(1)).mean()


def others(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits without each sample's true class: `(n, C)` to `(n, C - 1)`."""
    column = torch.arange(logits.shape[1] - 1, device=logits.device).expand(len(y), -1)
    return logits.gather(1, column + (column >= y[:, None]))


class FedNTD(AuxiliaryLoss):
    """q = ∇ [CE + β τ² KL(softmax(z_g/τ) || softmax(z/τ))], both without the true class's logit; z_g: logits at x."""

    name = "fedntd"
    paper = (
        "Lee et al., Preservation of the global knowledge by not-true distillation in federated learning, "
        "NeurIPS 2022, eq. 5"
    )
    idea = "distils the global model's view of the not-true classes"
    beta: float = Field(1.0, ge=0, description="β: weight of the distillation")
    tau: float = option(
        1.0,
        gt=0,
        description="τ: temperature",
        paper={"FedSOL, FedNTD's configuration": 1, "FedNTD's class default": 3},
    )

    def references(self, c: Client) -> tuple[Tensor, ...]:
        return (others(c.predict(c.theta_0).logits, c.y) / self.tau,)

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        return self.beta * self.tau**2 * kl(references[0], others(output.logits, y) / self.tau)


class FedAvgKL(AuxiliaryLoss):
    """q = ∇ [CE + w KL(softmax(z_g/τ) || softmax(z/τ))], z_g: logits at x: FedSOL's proximal loss, added to the loss.

    The KL base of FedSOL's table 1 and strategy A5 of its table 10. No factor τ² (D-33).
    """

    name = "fedavg-kl"
    paper = f"{FEDSOL}, table 1 (KL, base)"
    idea = "distils the global model"
    weight: float = Field(1.0, ge=0, description="w: weight of the KL term")
    tau: float = Field(3.0, gt=0, description="τ: temperature")

    def make_label(self) -> str:
        """Name in FedSOL's table 1."""
        return "fedavg+kl-base"

    def references(self, c: Client) -> tuple[Tensor, ...]:
        return (c.predict(c.theta_0).logits / self.tau,)

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        return self.weight * kl(references[0], output.logits / self.tau)


class MOON(AuxiliaryLoss):
    """q = ∇ [CE + μ ℓ], ℓ = -log(e^{cos(h, h_g)/τ} / (e^{cos(h, h_g)/τ} + e^{cos(h, h_p)/τ})).

    h: features (the input of the head, or of a model's own `features(x)` if it has them); h_g, h_p: those of the
    received x and of the client's previous local model, which before its first participation is the run's initial
    model. Reading D-50: no projection head is added; a model has to have its own. Reference features are computed in
    evaluation mode, with the running statistics that their model had.
    """

    name = "moon"
    paper = "Li, He and Song, Model-contrastive federated learning, CVPR 2021, algorithm 1"
    idea = "pulls features to the global model's, away from the previous local one's"
    reads_features = True
    mu: float = option(
        1.0, ge=0, description="μ: weight of the contrast", paper={"CIFAR-10": 5, "CIFAR-100": 1, "FedSOL": 0.1}
    )
    tau: float = Field(0.5, gt=0, description="τ: temperature")

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(previous=theta)

    def references(self, c: Client) -> tuple[Tensor, ...]:
        received, previous = c.predict(c.theta_0), c.second.predict(c.state.previous)
        towards, away = (normalize(output.features.flatten(1)) for output in (received, previous))
        # cos(h, h_p) - cos(h, h_g) in one product: exactly 0, including its gradient, if the references are equal.
        return (away - towards,)

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        difference = (normalize(output.features.flatten(1)) * references[0]).sum(1)
        return self.mu * softplus(difference / self.tau).mean()

    def upload(self, c: Client) -> Uploads:
        c.state.previous = c.theta
        c.second.adopt_statistics()
        return {}


class FedRCL(AuxiliaryLoss):
    """q = ∇ [CE + mean_l (w_s L_scl + w_p L_pen)] over the taps l, with cosines s between the samples of the batch.

    Anchor j: s⁺ = its least similar sample of its own class (itself, s = 1, if alone), s⁻: the two most similar others.
    L_scl = -log softmax(s⁺, s⁻_1, s⁻_2)/τ at s⁺; L_pen = log(1 + e^{(s⁺ - 1)/τ}) if j has a class mate and s⁺ is at
    least the threshold, otherwise with s = -1: mates that are already similar are pushed apart. The model names its
    taps: for a ResNet the paper's (stem and four stages, before ReLU, averaged over positions), for a plain
    network the input of every activation.
    """

    name = "fedrcl"
    paper = "Seo et al., Relaxed contrastive learning for federated learning, CVPR 2024"
    idea = "supervised contrast on every layer, with a penalty against collapse"
    reads_taps = True
    contrast: float = Field(1.0, ge=0, description="w_s: weight of the contrastive loss")
    relaxation: float = Field(1.0, ge=0, description="w_p: weight of the penalty on similar class mates")
    tau: float = Field(0.05, gt=0, description="τ: temperature")
    threshold: float = Field(0.7, ge=-1, le=1, description="similarity of class mates from which the penalty pushes")

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        same = y[:, None] == y
        mates = same & ~torch.eye(len(y), dtype=torch.bool, device=y.device)

        def layer(tap: Tensor) -> Tensor:
            h = normalize(tap)
            s = h @ h.T
            positive = s.masked_fill(~mates, 1.0).min(1).values
            negatives = s.masked_fill(same, -torch.inf).topk(min(2, len(s)), 1).values
            scl = torch.cat([positive[:, None], negatives], 1).div(self.tau).logsumexp(1) - positive / self.tau
            alike = torch.where(mates.any(1) & (positive >= self.threshold), positive, -1.0)
            return self.contrast * scl.mean() + self.relaxation * softplus((alike - 1) / self.tau).mean()

        return torch.stack([layer(tap) for tap in output.taps]).mean()
