"""What a sweep or a paper claims, stated so that results can decide it. `analysis.claims` decides."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedray.common.errors import UserError
from fedray.sections import Section


class Claim(Section):
    """A method against others, in columns of a table."""

    name: str = Field(pattern=r"^\w[\w.-]*$", max_length=60)
    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field("", description="where it is made: abstract, table 1")
    sweep: str = Field("", description="whose runs decide; default the sweep of this file")
    published: str = Field("", description="the published table to put beside; default `sweep`, where it is one")
    metric: str = Field("last10_test_accuracy", description="as `fedray tables` takes it")
    method: str = Field(description="a row of the table, or words of its name: `fedsam`, `fedsam ρ=0.1`")
    against: Literal["all"] | list[str] = Field("all", description="rows, or words of their names; all: every other")
    relation: Literal["better", "within", "insensitive"] = Field(
        "better",
        description="better: than each of `against`, by more than `by`; within: at most `by` from each; "
        "insensitive: the rows that `method` matches are within `by` of one another",
    )
    by: float = Field(0, ge=0)
    unit: Literal["points", "percent"] = Field("points", description="of `by`: the metric's, or percent of the other")
    columns: Literal["every"] | list[str] = Field(
        "every", description="of the table; else columns that have these words in their names"
    )
    over: str = Field("", description="keys to average the columns over, as `fedray tables --over` takes them")
    printed: float | None = Field(None, description="the difference that the paper states, where no table prints it")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.relation != "better" and not self.by:
            raise UserError(f"claims.{self.name}.by is required for {self.relation}: how far apart is still alike")
        if self.relation == "insensitive" and self.against != "all":
            raise UserError(f"claims.{self.name}.against: expected none for insensitive; `method` names the rows")
        return self
