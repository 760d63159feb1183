"""FedDBE: each client keeps a shift of its features, and their mean is pulled to one consensus of all clients."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Forward, Received, Server, Sum, Uploads, Vectors
from fedray.algorithms.linear_head import LinearHead


class FedDBE(LinearHead):
    """q = ∇ [CE(H (h + z_i) + b) + κ mean_j ½ (m_j - m̄_j)²], and z_i <- z_i - η_k ∇_z of the same.

    h: features, the input of the head; m <- (1 - μ) m + μ mean_batch h, from 0 in each round, with a gradient through
    the batch's part only. z_i stays with the client and starts at 0; it has neither momentum nor weight decay nor
    clipping. m̄ is the consensus of the opening: before the first round all clients train from x⁰ with plain
    cross-entropy, and m̄ = Σ n_i m_i/Σ n_i, fixed from then on; their models are thrown away (D-172). The personal model
    is x with z_i, the generic one x without.

    Readings, as in the authors' code: m starts at 0, so with μ < 1 the first batches pull towards 0, and with μ = 1 it
    is the last batch's mean (D-171); the regulariser has the factor ½ (D-173). A newcomer trains x and a z_i from 0.
    κ = 0 and z_i = 0 are FedAvg. The paper's text was not read [C].
    """

    name = "feddbe"
    paper = "Zhang et al., Eliminating domain bias for federated learning in representation space, NeurIPS 2023"
    idea = "each client's own shift of its features, whose mean is pulled to all clients' consensus"
    bound_to_sgd = "trains its shifts of features by SGD"
    reads_features = True
    personal = "kept"
    kappa: float = Field(
        50.0,
        ge=0,
        description="κ: weight of the distance to the consensus",
        json_schema_extra={"paper": {"CNN (FedDBE's script)": 50, "ResNet-18": 1}},
    )
    mu: float = Field(
        1.0,
        gt=0,
        le=1,
        description="μ: weight of a batch in the running mean",
        json_schema_extra={"paper": {"CNN (FedDBE's script)": 1, "ResNet-18": 0.1}},
    )

    @property
    def opening(self) -> Algorithm:
        return _Consensus(mu=self.mu)

    def open(self, server: Server, got: Received) -> None:
        server.state.consensus = got.means / got.samples

    def message(self, server: Server) -> Vectors:
        return Vectors(server.state)

    def begin(self, c: Client) -> None:
        c.local.z = self._get_shift(c)

    def gradient(self, c: Client) -> Tensor:
        def loss(forward: Forward, z: Tensor) -> Tensor:
            features = forward(c.x).features
            apart = follow_mean(c, features, self.mu) - c.message.consensus
            return cross_entropy(forward.head(features + z), c.y) + self.kappa * 0.5 * apart.square().mean()

        g, by_z = c.grad_with(c.theta, c.local.z, loss)
        c.local.z = c.local.z - c.rate * by_z
        return g

    def upload(self, c: Client) -> Uploads:
        c.state.z = c.local.z
        return {}

    def personal_logits(self, c: Client) -> Tensor:
        names, sizes = c.layout.names, list(c.layout.sizes)
        index = names.index(self.weight(c.layout))
        weight = c.theta.split(sizes)[index].view(c.layout.shapes[index])
        by_shift: Tensor = weight @ self._get_shift(c)
        return super().personal_logits(c) + by_shift

    def _get_shift(self, c: Client) -> Tensor:
        """Return z_i `(d,)`; 0 before the client's first round."""
        width = c.layout.shapes[c.layout.names.index(self.weight(c.layout))][1]
        return c.state.get("z", c.theta.new_zeros(width))


class _Consensus(Algorithm):
    """FedDBE's opening: FedAvg's steps, in which each client follows the mean of its features."""

    name = "feddbe's opening"
    mu: float

    def gradient(self, c: Client) -> Tensor:
        def loss(forward: Forward) -> Tensor:
            output = forward(c.x)
            follow_mean(c, output.features, self.mu)
            return cross_entropy(output.logits, c.y)

        return c.grad(c.theta, loss)

    def upload(self, c: Client) -> Uploads:
        share = c.samples / c.total_samples
        return {"means": Sum(c.local.mean, share), "samples": Sum(torch.ones_like(c.local.mean[0]), share)}


def follow_mean(c: Client, features: Tensor, mu: float) -> Tensor:
    """Update the running mean `c.local.mean` `(d,)` by a batch `(n, d)`; return it, with a gradient by the batch."""
    features = features.flatten(1)
    past = c.local.get("mean", features.new_zeros(features.shape[1]))
    mean: Tensor = (1 - mu) * past + mu * features.mean(0)
    c.local.mean = mean.detach()
    return mean
