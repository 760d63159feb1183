"""The rounds of a run and the local learning rate of each: a schedule, after a warm-up."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedray.common.errors import UserError
from fedray.components.base import Allowed, Checked


class LrStep(Checked):
    """`lr_schedule: step`: the rate is multiplied by `factor` after every `every` rounds."""

    every: int = Field(gt=0, le=10**7, description="rounds between two drops, counted from the end of the warm-up")
    factor: float = Field(0.1, gt=0, le=1, description="factor of each drop")


class Schedule(Checked):
    """Number of rounds, and η_t of each."""

    rounds: int = Field(100, gt=0, le=10**7)
    lr: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="η: local learning rate of the first round, after a `warmup`"
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor per round")
    lr_schedule: Literal["exponential", "cosine", "step"] = Field(
        "exponential",
        description="η_t of the T rounds after the warm-up, t from 0: η lr_decay^t; cosine: η (1 + cos(π t/T))/2, "
        "which begins with η and ends above 0; step: `lr_step`",
    )
    lr_step: Annotated[LrStep | None, Allowed("options")] = Field(
        None, description="every and factor of `lr_schedule: step`"
    )
    warmup: int = Field(
        0, ge=0, description="W: rounds before the schedule, in which the rate grows: η (t + 1)/(W + 1), t from 0"
    )

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.lr_schedule != "exponential" and self.lr_decay != 1:
            raise UserError(
                f"training.lr_decay: found {self.lr_decay}; it is the exponential schedule's, and "
                f"training.lr_schedule is {self.lr_schedule}"
            )
        if self.lr_schedule == "step" and self.lr_step is None:
            raise UserError("training.lr_step: lr_schedule step needs it: {every: ROUNDS, factor: 0.1}")
        if self.lr_schedule != "step" and self.lr_step is not None:
            raise UserError(f"training.lr_step: has options, but training.lr_schedule is {self.lr_schedule}")
        if self.warmup >= self.rounds:
            raise UserError(f"training.warmup: found {self.warmup}; training.rounds is only {self.rounds}")
        return self

    def compute_lr(self, t: int) -> float:
        """Return η_t of round t, from 0."""
        if t < self.warmup:
            return self.lr * (t + 1) / (self.warmup + 1)
        t -= self.warmup
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * t / (self.rounds - self.warmup))) / 2
        if self.lr_step is not None:
            factor: float = self.lr_step.factor ** (t // self.lr_step.every)
            return self.lr * factor
        decay: float = self.lr_decay**t
        return self.lr * decay

    def compute_lr_change(self, t: int) -> float:
        """Return η_{t+1}/η_t; `lr_decay` itself with the exponential schedule."""
        plain = self.lr_schedule == "exponential" and t >= self.warmup
        return self.lr_decay if plain else self.compute_lr(t + 1) / self.compute_lr(t)
