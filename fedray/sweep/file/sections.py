"""Sections of a sweep file that say how it selects: the scheduler, and the two stages of tuning."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedray.common.errors import UserError
from fedray.datasets.base import Validation
from fedray.sections import Section

Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _refuse_repeats(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("each seed once")
    return seeds


class Scheduler(Section):
    """Who ends cells that lag behind the others, so that the budget goes to the others."""

    name: Literal["asha", "median"] = Field(
        description="asha: at each rung only the best 1/factor goes on, compared with those that were there before "
        "(asynchronous successive halving), so what is ended depends on timing; median: what is below the median of "
        "the others' running means ends"
    )
    metric: Literal["validation_accuracy", "test_accuracy"] = Field(
        "validation_accuracy", description="what is compared; the test set only if you name it"
    )
    grace: int | None = Field(None, gt=0, description="rounds that every cell gets; default a ninth of all")
    factor: int | None = Field(None, gt=1, description="of asha; default 3")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "median" and self.factor is not None:
            raise UserError("scheduler.factor: belongs to asha; median has none")
        return self

    @property
    def rule(self) -> str:
        """`asha`, and what differs from the first version, which compared test accuracies."""
        more = {"metric": (self.metric, "test_accuracy"), "grace": (self.grace, None), "factor": (self.factor, None)}
        return " ".join([self.name, *(f"{key}={value}" for key, (value, first) in more.items() if value != first)])


class Tune(Section):
    """The first stage: every draw of every method and setting, with seeds of its own."""

    seeds: tuple[Seed, ...] = Field(min_length=1, description="of this stage; none of them is used by `final`")
    validation: Validation | None = Field(
        None, description="what is held out to select on; default `{}`, and nothing where `select` names the test set"
    )

    _different = field_validator("seeds")(_refuse_repeats)


class Final(Section):
    """The second stage: the best draw of each method and setting, with fresh seeds."""

    seeds: tuple[Seed, ...] = Field(min_length=1, description="none of them was used to tune")
    train_on: Literal["all", "training"] = Field(
        "all", description="all: also what was held out to tune; training: without it"
    )
    _different = field_validator("seeds")(_refuse_repeats)


PARTS = {
    "accuracy": ("last10", "final", "best"),
    "loss": ("last10", "final"),
}
SELECT = tuple(
    f"{which}_{of}_{what}"
    for of in ("validation", "validation_client", "validation_personal", "test", "personal", "generic")
    for what, parts in PARTS.items()
    if what == "accuracy" or of in ("validation", "test")
    for which in parts
)
"""The metrics of a whole run that can select a draw; those without `validation` look at the test set."""


def is_on_test_set(metric: str) -> bool:
    """Whether a metric that selects is of the test set."""
    return "validation" not in metric


def is_lower_better(metric: str) -> bool:
    """Whether the smallest value of a metric that selects is the best."""
    return metric.endswith("_loss")
