"""Terms on a batch's features and probabilities: FedUV against collapse, FedDecorr against correlation."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedray.algorithms.auxiliary import AuxiliaryLoss
from fedray.components.base import option
from fedray.models.network import Output


class FedUV(AuxiliaryLoss):
    """q = ∇ [CE + λ_V mean_c max(0, 1/√C - std_c) + λ_U mean_{i<j} exp(-|h_i - h_j|²/s)].

    std_c: unbiased standard deviation of the probability of class c over the batch; the target 1/√C is that of a batch
    with each class once. h: features (the input of the head); s: the lower median of the squared distances that are not
    0, through which the gradient passes. Both terms are 0 for a batch of one sample, and a class or a batch without any
    spread has no gradient (D-143).

    Reading: features have their own lengths, as in the code, although the abstract names the hypersphere (`normalise`,
    D-142). The paper's weights were not read; the defaults are the code's [S].
    """

    name = "feduv"
    paper = "Son et al., FedUV: uniformity and variance for heterogeneous federated learning, CVPR 2024"
    idea = "spreads probabilities over the batch and features over space"
    reads_features = True
    lam_v: float = option(2.5, ge=0, description="λ_V: weight of the variance", paper={"FedUV's code": 2.5})
    lam_u: float = option(0.5, ge=0, description="λ_U: weight of the uniformity", paper={"FedUV's code": 0.5})
    normalise: bool = Field(False, description="features of length 1 in the uniformity (D-142)")

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        if len(output.logits) == 1:
            return output.logits.new_zeros(())
        features = output.features.flatten(1)
        features = normalize(features) if self.normalise else features
        return self.lam_v * missing_variance(output.logits.softmax(1)) + self.lam_u * crowding(features)


def missing_variance(p: Tensor) -> Tensor:
    """Return mean_c max(0, 1/√C - std_c) for probabilities `(n, C)`; a constant class has no gradient."""
    variance = p.var(0)
    varies = variance > 0
    deviation = torch.where(varies, variance, 1.0).sqrt() * varies
    result: Tensor = (p.shape[1] ** -0.5 - deviation).clamp(min=0).mean()
    return result


def crowding(features: Tensor) -> Tensor:
    """Return mean_{i<j} exp(-|h_i - h_j|²/s) for features `(n, d)`; 1 without gradient if all are equal."""
    i, j = torch.triu_indices(len(features), len(features), 1, device=features.device)
    squares = (features[i] - features[j]).square().sum(1)
    apart = squares > 0
    median = torch.where(apart, squares, torch.nan).nanmedian()
    return (-squares / torch.where(apart.any(), median, 1.0)).exp().mean()


class FedDecorr(AuxiliaryLoss):
    """q = ∇ [CE + β mean_{j≠l} (Z^T Z)²_jl/n], Z = (h - mean h)/√(var h + 1e-8) over the batch, var unbiased.

    h: features (the input of the head), n the batch's size. The term is 0 for a batch of one sample.

    Reading: the scale is the code's, which grows with the batch: (n - 1)²/n times the mean squared correlation; the
    paper's is Σ_jl of the squared correlations over d² (D-144). The paper was not read again [M].
    """

    name = "feddecorr"
    paper = (
        "Shi et al., Towards understanding and mitigating dimensional collapse in heterogeneous federated "
        "learning, ICLR 2023"
    )
    idea = "decorrelates the dimensions of the features"
    reads_features = True
    beta: float = option(0.1, ge=0, description="β: weight of the correlation", paper={"FedDecorr, batches of 64": 0.1})

    def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
        return self.beta * correlation(output.features.flatten(1))


def correlation(features: Tensor) -> Tensor:
    """Return the mean over j ≠ l of (Z^T Z)²_jl, divided by n, for features `(n, d)`; 0 if n or d is 1."""
    n, d = features.shape
    if n == 1 or d == 1:
        return features.new_zeros(())
    z = (features - features.mean(0)) / (features.var(0) + 1e-8).sqrt()
    squares = (z.T @ z).square()
    return (squares.sum() - squares.diagonal().sum()) / (d * (d - 1) * n)
