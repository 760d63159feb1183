"""The canonical local step: clip, weight decay, momentum, learning rate."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Optimiser:
    """The canonical step's constants: C (None: no clipping), weight decay, m, and what is decayed (None: all)."""

    clip_norm: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    decayed: Tensor | None = None


class Descent:
    """The canonical step: clip, q <- q + wd y, v <- m v + q, y <- y - η v. It keeps v, which starts at 0."""

    def __init__(self, optimiser: Optimiser) -> None:
        self.optimiser = optimiser
        self._velocity: Tensor | None = None

    def step(
        self, theta: Tensor, q: Tensor, lr: float, mask: Tensor | None = None, decoupled_weight: float = 0.0
    ) -> Tensor:
        """Make one step.

        Args:
            theta: y `(P,)`.
            q: The direction `(P,)`.
            lr: η of this step.
            mask: float32 `(P,)`, 1 where the step may move; None for everywhere.
            decoupled_weight: λ of a term λ y that is not clipped.

        Returns:
            The new y `(P,)`.
        """
        clip_norm, momentum = self.optimiser.clip_norm, self.optimiser.momentum
        moving = theta if mask is None else theta * mask
        q = q if mask is None else q * mask
        if clip_norm is not None:
            q = (
                clip(q - decoupled_weight * moving, clip_norm) + decoupled_weight * moving
                if decoupled_weight
                else clip(q, clip_norm)
            )
        if self.optimiser.weight_decay:
            decayed = self.optimiser.decayed
            q = q + self.optimiser.weight_decay * (moving if decayed is None else moving * decayed)
        if momentum:
            self._velocity = q if self._velocity is None else momentum * self._velocity + q
            q = self._velocity if mask is None else self._velocity * mask
        return torch.sub(theta, q, alpha=lr)  # one pass over memory where θ - η q takes two


def clip(q: Tensor, norm: float) -> Tensor:
    """Return q, scaled down to `norm` if it is longer."""
    result: Tensor = q * (norm / torch.linalg.vector_norm(q)).clamp(max=1.0)
    return result
