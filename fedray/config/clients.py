"""`clients`: the clients, and how many take part in a round."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedray.common.errors import UserError
from fedray.components.base import Allowed, Checked


class Clients(Checked):
    """The clients, and how many take part in a round."""

    total: int = Field(100, gt=0, le=10**7, description="N: number of clients")
    per_round: Annotated[int | float, Allowed("integer in (0, total] or a fraction in (0.0, 1.0]")] = Field(
        10, gt=0, description="M: a number, or a fraction of total (0.1; 1.0 is everyone)"
    )
    sampling: Literal["fixed", "bernoulli"] = Field(
        "fixed",
        description="fixed: exactly M without replacement; bernoulli: each client with probability M/N, drawn again "
        "if none is",
    )
    cohorts: tuple[tuple[int, ...], ...] | None = Field(
        None, description="explicit client ids per round instead of sampling (availability traces, replays)"
    )

    unseen: int = Field(
        0,
        ge=0,
        le=10**7,
        description="further clients, the last ones of the partition, that never train; each is tested as a newcomer "
        "when personal models are (`evaluation.personal`)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.per_round, float) and self.per_round > 1:
            raise UserError(
                f"clients.per_round: found {self.per_round}; a fraction is at most 1.0, "
                "a number of clients is written without a point"
            )
        if self.cohorts is None and self.per_round > self.total:
            raise UserError(f"clients.per_round: found {self.per_round}; clients.total is only {self.total}")
        for t, ids in enumerate(self.cohorts or ()):
            if not ids or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= self.total:
                raise UserError(
                    f"clients.cohorts: round {t} lists {list(ids)[:5]}; "
                    f"different ids in 0..{self.total - 1} are required, at least one"
                )
        return self

    @property
    def dealt(self) -> int:
        """Number of clients that are dealt samples: `total` that train, and the unseen ones."""
        return self.total + self.unseen

    @property
    def cohort_size(self) -> int:
        """Return M as a number: max(floor(fraction x N), 1) for a fraction."""
        if isinstance(self.per_round, float):
            return max(int(self.per_round * self.total + 1e-9), 1)
        return self.per_round

    @property
    def largest_cohort(self) -> int:
        """Return the size of the largest cohort: more actors would be idle."""
        return max([self.cohort_size] if self.cohorts is None else map(len, self.cohorts))
