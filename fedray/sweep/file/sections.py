"""Sections of a sweep file that say how it selects: the scheduler, and the two stages of tuning."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedray.cells.metric import BEST, FINAL, LAST
from fedray.common.errors import UserError
from fedray.components.base import Checked
from fedray.datasets.base import Validation

Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _refuse_repeats(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("each seed once")
    return seeds


class Scheduler(Checked):
    """Ends cells that lag behind the others, so that the budget goes to the others."""

    name: Literal["asha", "median"] = Field(
        description="asha: at each rung only the best 1/factor go on, compared with cells that got there before "
        "(asynchronous successive halving), so the outcome depends on timing; median: a cell ends if it is below the "
        "median of the others' running means"
    )
    metric: Literal["validation_accuracy", "test_accuracy"] = Field(
        "validation_accuracy", description="the metric to compare; the test set is used only if you name it"
    )
    grace: int | None = Field(None, gt=0, description="rounds that every cell may run; default a ninth of all")
    factor: int | None = Field(None, gt=1, description="for asha; default 3")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "median" and self.factor is not None:
            raise UserError("scheduler.factor: belongs to asha; median has none")
        return self

    @property
    def rule(self) -> str:
        """`asha`, and the settings that differ from the first version, which compared test accuracies."""
        more = {"metric": (self.metric, "test_accuracy"), "grace": (self.grace, None), "factor": (self.factor, None)}
        return " ".join([self.name, *(f"{key}={value}" for key, (value, first) in more.items() if value != first)])


class Tune(Checked):
    """The first stage: every draw of every method and setting, with seeds of its own."""

    seeds: tuple[Seed, ...] = Field(min_length=1, description="seeds of this stage; `final` must use others")
    validation: Validation | None = Field(
        None, description="samples to hold out and select on; default `{}`, or none if `select` names the test set"
    )

    _different = field_validator("seeds")(_refuse_repeats)


class Final(Checked):
    """The second stage: the best draw of each method and setting, with fresh seeds."""

    seeds: tuple[Seed, ...] = Field(min_length=1, description="seeds that were not used to tune")
    train_on: Literal["all", "training"] = Field(
        "all", description="all: also the samples held out for tuning; training: without them"
    )
    _different = field_validator("seeds")(_refuse_repeats)


OF_CLASSES = ("balanced_accuracy", "macro_f1", "auc")
"""Measures of the global model on the test set besides accuracy and loss."""
SELECT = tuple(
    f"{prefix}{of}_{what}"
    for of in ("validation", "validation_client", "validation_personal", "test", "personal", "generic")
    for what, prefixes in (("accuracy", (LAST, FINAL, BEST)), ("loss", (LAST, FINAL)))
    if what == "accuracy" or of in ("validation", "test")
    for prefix in prefixes
) + tuple(f"{prefix}test_{what}" for what in OF_CLASSES for prefix in (LAST, FINAL, BEST))
"""Metrics of a whole run that can select a draw; those without `validation` are of the test set."""
