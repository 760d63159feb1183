"""Claims of a sweep or a paper, stated so that results can decide them; `analysis.claims` decides."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedray.cells.metric import DEFAULT, Metric
from fedray.common.errors import UserError
from fedray.components.base import Checked


class Claim(Checked):
    """A comparison of a method with others, in columns of a table."""

    name: str = Field(pattern=r"^\w[\w.-]*$", max_length=60)
    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field("", description="where it is made: abstract, table 1")
    sweep: str = Field("", description="the sweep whose runs decide; default the sweep of this file")
    published: str = Field("", description="published table to compare with; default `sweep`, if it is one")
    metric: str = Field(DEFAULT, description="metric, as in `fedray tables --metric`")
    minus: str = Field("", description="metric that is subtracted from `metric`, run by run; default none")
    method: str = Field(
        description="a row of the table, or words of its name: `fedsam`, `fedsam ρ=0.1`; falls: `all` means every row"
    )
    against: Literal["all"] | list[str] = Field("all", description="rows, or words of their names; all: the others")
    relation: Literal["better", "within", "insensitive", "steadier", "smaller_drop", "falls"] = Field(
        "better",
        description="better: than each of `against`, by more than `by`; within: at most `by` from each; "
        "insensitive: the rows that `method` matches are within `by` of one another; steadier: they are within a "
        "smaller range than the rows of `against`; smaller_drop: from the first of `columns` to the second the method "
        "loses less than each of `against`; falls: the method is better in the first of `columns` than in the last",
    )
    by: float = Field(0, ge=0)
    unit: Literal["points", "percent"] = Field(
        "points", description="unit of `by`: the metric's, or percent of the other value"
    )
    columns: Literal["every"] | list[str] = Field(
        "every", description="every column of the table, or those with these words in their names"
    )
    holds_in: Literal["every", "most"] = Field("every", description="number of columns in which the claim has to hold")
    average_over: str = Field("", description="keys to average the columns over, as `fedray tables --average-over`")
    printed: float | None = Field(None, description="the difference that the paper states, if no table has it")

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_words(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "over" in value:
            raise UserError(f"claims.{value.get('name')}.over: the key is average_over")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for option, name in ((f"claims.{self.name}.metric", self.metric), (f"claims.{self.name}.minus", self.minus)):
            Metric.parse(name, option).refuse_ratio(option)
            if self.minus and Metric.parse(name).target is not None:
                raise UserError(f"{option}: found {name!r}; a difference of metrics is not one of rounds to a target")
        if self.relation in ("within", "insensitive") and not self.by:
            raise UserError(f"claims.{self.name}.by is required for {self.relation}: how far apart is still alike")
        if self.relation in ("insensitive", "falls") and self.against != "all":
            raise UserError(f"claims.{self.name}.against: expected none for {self.relation}; `method` names the rows")
        if self.relation == "steadier" and self.against == "all":
            raise UserError(f"claims.{self.name}.against is required for steadier: the rows of the other range")
        given = 0 if self.columns == "every" else len(self.columns)
        if (self.relation == "smaller_drop" and given != 2) or (self.relation == "falls" and given < 2):
            least = "two" if self.relation == "smaller_drop" else "two or more"
            raise UserError(f"claims.{self.name}.columns: found {given}; {self.relation} names {least}, first to last")
        return self
