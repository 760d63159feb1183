"""`evaluation`: when models are tested, and other measurements."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from fedray import probes
from fedray.cells.metric import list_last_rounds
from fedray.common.errors import UserError
from fedray.components.base import Allowed, Checked
from fedray.probes.probe import Probe

LATE = 0.25
"""Part of the rounds after which a first test is late: a curve shows no rise."""


class Personal(Checked):
    """Personal models, each tested on its client's own test samples, and always in the last round."""

    epochs: Annotated[int | tuple[int, ...], Allowed("integer in [0, ∞), or a list of them")] = Field(
        10, description="epochs of fine-tuning, for methods whose personal model is fine-tuned; or a list"
    )
    every: int = Field(50, gt=0, description="rounds between personal evaluations")
    split: Literal["share", "disjoint"] = Field(
        "disjoint",
        description="own test samples: disjoint parts of the test set (FedGELA), or drawn with the shard's "
        "class shares (FedSOL)",
    )

    train: bool = Field(
        False, description="also test each personal model on its client's own training samples, not augmented"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        listed = self.tuned
        if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
            raise UserError(f"evaluation.personal.epochs: found {listed}; 0 or more, or a list of different ones")
        return self

    @property
    def tuned(self) -> tuple[int, ...]:
        """Return the epochs of fine-tuning, ascending."""
        return (self.epochs,) if isinstance(self.epochs, int) else tuple(sorted(self.epochs))


class Evaluation(Checked):
    """When the global model is tested, and other measurements. The last round is always evaluated."""

    every: int = Field(10, gt=0, description="rounds between evaluations")
    last: int = Field(
        10, gt=0, description="number of final rounds that are all evaluated (every round of a shorter run)"
    )
    train: bool = Field(False, description="also log the accuracy on all samples that clients train on")
    auc: bool = Field(
        False, description="also log `test_auc`, the area under the ROC curve of each class against the rest"
    )
    personal: Personal | None = Field(
        None, description="also evaluate personal models: `{}` for the defaults, or its keys"
    )
    probes: tuple[Probe, ...] = Field(
        (),
        description=f"further measurements in evaluated rounds: {', '.join(probes.PROBES)}, or "
        "your own as `package.module:Class`; with options `{name: package.module:Class, k: 3}`",
    )

    def is_due(self, round: int, rounds: int) -> bool:
        """Return True if a round, from 1, of this many is evaluated."""
        return round % self.every == 0 or round > rounds - self.last or self.is_personal_due(round, rounds)

    def find_first(self, rounds: int) -> int:
        """Return the first of so many rounds that is evaluated."""
        return next(t for t in range(1, rounds + 1) if self.is_due(t, rounds))

    def is_personal_due(self, round: int, rounds: int) -> bool:
        """Return True if personal models are tested after a round, from 1, of this many."""
        return self.personal is not None and (round % self.personal.every == 0 or round >= rounds)

    def list_averaged(self, rounds: int, personal: bool = False) -> tuple[int, ...]:
        """Return the rounds whose tests `last10_*` averages; with `personal`, the tests of personal models."""
        is_due = self.is_personal_due if personal else self.is_due
        return tuple(t for t in list_last_rounds(rounds) if is_due(t, rounds))

    @field_validator("probes", mode="before")
    @classmethod
    def _make_probes(cls, value: Any) -> Any:
        return probes.make_probes(value) if isinstance(value, list | tuple) else value

    @field_serializer("probes")
    def _dump_probes(self, probes: tuple[Probe, ...]) -> list[Any]:
        return [probe.list_options() if type(probe).model_fields else probe.name for probe in probes]


def describe_late_start(starts: Iterable[tuple[int, int]]) -> str:
    """Return a line on curves that begin late, given each run's first tested round and its rounds; empty for none."""
    late = [first for first, rounds in starts if 1 < first > LATE * rounds]
    if not late:
        return ""
    return f"curves begin in round {min(late)}, the first that is tested; evaluation.every: 1 tests every round"
