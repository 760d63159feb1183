"""FedRobust: every client trains against the worst affine shift of its own inputs."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Forward, Uploads


class FedRobust(Algorithm):
    """q = ∇_y ℓ(y; Λ_i z + δ_i), and at the same time (Λ_i, δ_i) += η_2 ∇ [ℓ - λ (||Λ_i - I||² + ||δ_i||²)].

    Λ_i and δ_i start at (I, 0), stay on the client over the rounds and are never sent. They are kept as one tensor:
    `(2, ...)`, scale and shift, one pair per channel or per input entry; for `full` the matrix [Λ | δ] `(d, d + 1)`.
    No published η_2 and λ for images are known; tune both.
    """

    name = "fedrobust"
    paper = "Reisizadeh et al., Robust federated learning: the case of affine distribution shifts, NeurIPS 2020"
    idea = "trains against each client's worst affine shift of the inputs"
    perturbs_inputs = True
    ascent_lr: float = Field(0.01, ge=0, description="η_2: step of the inner ascent")
    penalty: float = Field(1.0, ge=0, description="λ: weight of the shift's distance from the identity")
    affine: Literal["channel", "diagonal", "full"] = Field(
        "channel", description="Λ: one number per channel, per input entry, or a full matrix"
    )

    def identity(self, shape: tuple[int, ...]) -> Tensor:
        """Return (I, 0) for inputs of this shape."""
        if self.affine == "full":
            return torch.eye(math.prod(shape), math.prod(shape) + 1)
        extent = (shape[0], *[1] * (len(shape) - 1)) if self.affine == "channel" else shape
        return torch.stack([torch.ones(extent), torch.zeros(extent)])

    def shifted(self, affine: Tensor, z: Tensor) -> Tensor:
        """Return Λ z + δ for a batch of inputs `(b, ...)`."""
        if self.affine == "full":
            return (z.flatten(1) @ affine[:, :-1].T + affine[:, -1]).view_as(z)
        return affine[0] * z + affine[1]

    def begin(self, c: Client) -> None:
        c.local.identity = self.identity(c.input_shape).to(c.theta.device)
        c.local.affine = c.state.get("affine", c.local.identity)

    def gradient(self, c: Client) -> Tensor:
        def loss(forward: Forward, affine: Tensor) -> Tensor:
            return cross_entropy(forward(self.shifted(affine, c.x)).logits, c.y)

        affine = c.local.affine
        descent, ascent = c.grad_with(c.theta, affine, loss)
        c.local.affine = affine + self.ascent_lr * (ascent - 2 * self.penalty * (affine - c.local.identity))
        return descent

    def upload(self, c: Client) -> Uploads:
        c.state.affine = c.local.affine
        return {}
