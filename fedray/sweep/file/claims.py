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
    mean_with: str = Field("", description="metric that is averaged with `metric`, run by run; default none")
    method: str = Field(
        description="a row of the table, or words of its name: `fedsam`, `fedsam ρ=0.1`; falls, to: `all` is every row"
    )
    against: Literal["all", "best"] | list[str] = Field(
        "all",
        description="rows, or words of their names; all: the others; best: of the others the one that is best on "
        "average over seeds, in each setting and metric anew",
    )
    to: float | None = Field(
        None,
        description="a number in place of `against`, for each row that `method` matches: 10 is chance of 10 classes",
    )
    relation: Literal["better", "worse", "within", "insensitive", "steadier", "smaller_drop", "falls"] = Field(
        "better",
        description="better, worse: than each of `against`, by more than `by`; within: at most `by` from each; "
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
    holds_in: Literal["every", "most", "most_comparisons"] = Field(
        "every",
        description="every or most: of the columns; most_comparisons: of the comparisons with a rival in a column",
    )
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
        for key, name in (("metric", self.metric), ("minus", self.minus), ("mean_with", self.mean_with)):
            option = f"claims.{self.name}.{key}"
            Metric.parse(name, option).refuse_ratio(option)
            if (self.minus or self.mean_with) and Metric.parse(name).target is not None:
                raise UserError(
                    f"{option}: found {name!r}; a difference or mean of metrics is not one of rounds to a target"
                )
        if self.minus and self.mean_with:
            raise UserError(f"claims.{self.name}.mean_with: minus is given too; one of them is allowed")
        if self.against == "best" and self.relation not in ("better", "worse", "within"):
            raise UserError(f"claims.{self.name}.against: best is for better, worse and within; found {self.relation}")
        if self.to is not None and (self.against != "all" or self.relation not in ("better", "worse", "within")):
            raise UserError(
                f"claims.{self.name}.to: expected no against, and better, worse or within; found {self.relation}"
            )
        if self.relation in ("within", "insensitive") and not self.by:
            raise UserError(f"claims.{self.name}.by is required for {self.relation}: how far apart is still alike")
        if self.relation in ("insensitive", "falls") and self.against != "all":
            raise UserError(f"claims.{self.name}.against: expected none for {self.relation}; `method` names the rows")
        if self.relation == "steadier" and isinstance(self.against, str):
            raise UserError(f"claims.{self.name}.against is required for steadier: the rows of the other range")
        given = 0 if self.columns == "every" else len(self.columns)
        if (self.relation == "smaller_drop" and given != 2) or (self.relation == "falls" and given < 2):
            least = "two" if self.relation == "smaller_drop" else "two or more"
            raise UserError(f"claims.{self.name}.columns: found {given}; {self.relation} names {least}, first to last")
        return self
