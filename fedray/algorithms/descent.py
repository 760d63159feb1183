"""The canonical local step: clip, weight decay, the local optimiser's rule, learning rate."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedray.common.vectors import Vectors


class Rule(ABC):
    """A local optimiser: turns the clipped direction of each step of a round into a displacement.

    Attributes:
        state: its vectors, such as moments; empty before the first step, unless something is carried over.

    Examples:
        >>> class SignSGD(Rule):
        ...     def displacement(self, q, decay, mask=None):
        ...         return torch.sign(q) + decay
        >>> SignSGD().displacement(torch.tensor([3.0, -0.1]), 0.0)
        tensor([ 1., -1.])
    """

    def __init__(self, state: Vectors | None = None) -> None:
        self.state = Vectors() if state is None else state

    @abstractmethod
    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        """Return d `(P,)` of the step y <- y - η d.

        Args:
            q: the clipped direction `(P,)`, 0 where the step may not move.
            decay: wd y `(P,)`, or 0.0 without weight decay.
            mask: float32 `(P,)`, 1 where the step may move; None for everywhere. Vectors stay as they are elsewhere.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.state)})"


def keep_still(new: Tensor, old: Tensor, mask: Tensor | None) -> Tensor:
    """Return `new` on entries with a mask of 1, and `old` on the others."""
    return new if mask is None else torch.where(mask > 0, new, old)


class SGD(Rule):
    """v <- m v + q + wd y; d = v. v starts at 0."""

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__()
        self.momentum = momentum

    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        q = q if isinstance(decay, float) else q + decay
        if not self.momentum:
            return q
        old = self.state.get("v")
        self.state.v = q if old is None else keep_still(self.momentum * old + q, old, mask)
        return self.state.v


@dataclass(frozen=True)
class Optimiser:
    """Settings that all local steps of a run share: C (None: no clipping), wd, and what makes the rule of a round.

    decayed: float32 `(P,)`, 1 for the parameters with weight decay; None if all have it.
    """

    clip_norm: float | None = None
    weight_decay: float = 0.0
    decayed: Tensor | None = None
    make_rule: Callable[[], Rule] = field(default=SGD)


class Descent:
    """The local steps of a round: q is clipped, `rule` makes d from q and wd y, y <- y - η d."""

    def __init__(self, optimiser: Optimiser, rule: Rule | None = None) -> None:
        self.optimiser = optimiser
        self.rule = rule or optimiser.make_rule()

    def step(
        self, theta: Tensor, q: Tensor, lr: float, mask: Tensor | None = None, decoupled_weight: float = 0.0
    ) -> Tensor:
        """Make one step of η = lr from y = theta along q, both `(P,)`; return the new y.

        It moves only where the mask is 1, if there is one. `decoupled_weight` is λ of a term λ y that is not clipped.
        """
        clip_norm, wd, decayed = self.optimiser.clip_norm, self.optimiser.weight_decay, self.optimiser.decayed
        moving = theta if mask is None else theta * mask
        q = q if mask is None else q * mask
        if clip_norm is not None:
            q = (
                clip(q - decoupled_weight * moving, clip_norm) + decoupled_weight * moving
                if decoupled_weight
                else clip(q, clip_norm)
            )
        decay: Tensor | float = 0.0
        if wd:
            decay = wd * (moving if decayed is None else moving * decayed)
        d = self.rule.displacement(q, decay, mask)
        # one pass over memory where θ - η d takes two
        return torch.sub(theta, d if mask is None else d * mask, alpha=lr)


def clip(q: Tensor, norm: float) -> Tensor:
    """Return q `(..., P)`, scaled down to `norm` if it is longer."""
    result: Tensor = q * (norm / torch.linalg.vector_norm(q, dim=-1, keepdim=True)).clamp(max=1.0)
    return result
