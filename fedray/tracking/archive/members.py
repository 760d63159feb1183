"""JSON members of an archive: strict pydantic models, with a limit on everything."""

import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    JsonValue,
    RootModel,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fedray.cells.spec import SweepName
from fedray.cells.status import Status
from fedray.common.errors import truncate_repr
from fedray.components.identity import hash_of

HASH = r"[0-9a-f]{16}"
DIGEST = r"[0-9a-f]{64}"
METRIC = r"^[\w.:/ -]+$"
"""A metric's name, as MLflow takes it."""
CONTROL = r"\p{Cc}\p{Cf}\p{Zl}\p{Zp}"
"""Characters that move a terminal's cursor or change the direction of text (as Rust's regular expressions say it)."""
MLFLOW_TAGS = tuple(
    f"mlflow.{name}" for name in ("runName", "user", "source.name", "source.type", "source.git.commit", "note.content")
)
"""MLflow's own tags that an archive carries; it drops and refuses the others."""


def _limit_entries(count: int) -> BeforeValidator:
    """Refuse a longer mapping before its values are looked at one by one."""

    def refuse(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > count:
            raise ValueError(f"at most {count} entries are allowed")
        return value

    return BeforeValidator(refuse)


def _refuse_path(key: str) -> str:
    """Refuse what MLflow refuses: a name that is not the shortest form of a path below a folder."""
    if posixpath.normpath(key) != key or key.startswith(("/", "..")) or key == ".":
        raise ValueError("a name of words joined by single slashes is allowed")
    return key


def is_exported_tag(key: str) -> bool:
    """Return whether an archive carries a tag: all but MLflow's internal ones, which name runs of its own store."""
    return not key.startswith("mlflow.") or key in MLFLOW_TAGS


def _refuse_internal(key: str) -> str:
    if not is_exported_tag(key):
        raise ValueError("an archive does not carry this tag of MLflow's")
    return key


def _refuse_running(status: Status) -> Status:
    if status in (Status.RUNNING, Status.MISSING):
        raise ValueError("an archive holds runs that have ended")
    return status


Key = Annotated[str, Field(pattern=METRIC, max_length=250), AfterValidator(_refuse_path)]
Line = Annotated[str, Field(pattern=rf"^[^{CONTROL}]*$", max_length=6000)]
Label = Annotated[str, Field(pattern=rf"^[^{CONTROL}]+$", max_length=1000)]
Text = Annotated[str, Field(pattern=rf"^([\n\t]|[^{CONTROL}])*$", max_length=8000)]
SWEEP_TEXT: TypeAdapter[str] = TypeAdapter(
    Annotated[str, Field(pattern=rf"^([\n\t]|[^{CONTROL}])*$", max_length=1_000_000)]
)
"""The text of a sweep's file."""
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Time = Annotated[int, Field(ge=0, lt=4_102_444_800_000)]
"""Milliseconds since 1970, before 2100."""
Step = Annotated[int, Field(ge=0, lt=2**31)]
Point = Annotated[tuple[float, Time, Step], Field(strict=False)]
"""Value, time and step; JSON has lists where Python has tuples."""
Points = Annotated[list[Point], FailFast(), Field(max_length=1_000_000)]
INTEGER: TypeAdapter[int] = TypeAdapter(Whole)
OTHER: TypeAdapter[Any] = TypeAdapter(Real | Line | bool | None, config=ConfigDict(strict=True))


def _check_values(value: JsonValue) -> JsonValue:
    """Refuse the first value in a nested one that no configuration holds; pydantic would list millions of them."""
    found = [value]
    while found:
        one = found.pop()
        if isinstance(one, dict | list):
            found += [*one, *one.values()] if isinstance(one, dict) else one
            continue
        try:
            (INTEGER if isinstance(one, int) else OTHER).validate_python(one)
        except ValidationError:
            raise ValueError(f"{truncate_repr(one)} is not allowed") from None
    return value


Entries = Annotated[dict[Label, JsonValue], _limit_entries(1000), AfterValidator(_check_values)]
"""A part of a configuration. Its depth is limited, too: pydantic's reader of JSON ends at 200."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ArchivedSearch(_Strict):
    """Which keys a search draws, and the metric by which it selects."""

    keys: Annotated[list[Line], FailFast(), Field(max_length=1000)]
    select: Line


Symbols = Annotated[dict[Label, dict[Label, Label]], _limit_entries(100)]
Lines = Annotated[list[Label], FailFast(), Field(max_length=1000)]


class ArchivedPlugins(_Strict):
    """Words of a cell's plug-ins for tables and figures, as `describe_plugins` returns them."""

    symbols: Symbols
    required: Annotated[dict[Label, Lines], _limit_entries(100)]
    names: Annotated[dict[Label, Label], _limit_entries(100)]
    titles: Annotated[dict[Label, Label], _limit_entries(1000)]
    lower: Lines
    unranked: Lines = []


class ArchivedHeldOut(_Strict):
    """The samples that a tune stage held out."""

    fraction: Real
    source: Label = Field(alias="from")


class ArchivedChoice(_Strict):
    """How the configuration of a final cell was chosen, as `describe_choices` returns it."""

    stage: Label
    select: Label
    held_out: ArchivedHeldOut | None
    train_on: Label
    seeds: Annotated[list[Whole], FailFast(), Field(max_length=1000)]
    searcher: Label
    scheduler: Line
    equal_budget: Label = ""  # in archives of 0.2, which had this key
    values: Entries
    score: Real
    draws: Whole
    finished: Whole
    rounds: Whole
    gradients: Annotated[Real, Field(strict=False)] | None
    ranges: Annotated[dict[Label, Line], _limit_entries(1000)]
    edges: Lines

    @model_validator(mode="after")
    def _has_ranges(self) -> Self:
        if strange := (self.values.keys() - self.ranges.keys()) | (set(self.edges) - self.values.keys()):
            raise ValueError(f"{truncate_repr(min(strange))} has no value with a range")
        return self


class ArchivedCell(_Strict):
    """A cell as the sweep's run lists it.

    Attributes:
        identity: what the hash is the hash of.
        names: display names of the sweep.
        plugins: how tables and figures show the cell's plug-ins.
        tuned: how the configuration of a cell of a final stage was chosen.
    """

    hash: Annotated[str, Field(pattern=rf"^{HASH}$")]
    label: Label
    config: Entries
    identity: Entries
    plugins: ArchivedPlugins | None = None
    names: Annotated[dict[Label, Label], _limit_entries(1000)] | None = None
    search: ArchivedSearch | None = None
    tuned: ArchivedChoice | None = None

    @model_validator(mode="after")
    def _is_hash(self) -> Self:
        if (found := hash_of(self.identity)) != self.hash:
            raise ValueError(f"the hash {self.hash} is not that of its identity, which is {found}")
        return self


Draws = Annotated[list[Entries], FailFast(), Field(max_length=100_000)]


class ArchivedDraws(_Strict):
    """The draws of a search that learns, as `store.read_draws` returns them."""

    optuna: Line
    studies: Annotated[dict[Annotated[str, Field(pattern=rf"^{HASH}$")], Draws], _limit_entries(100_000)]


class ArchivedStage(_Strict):
    """A sweep's name, description, cells and, if its search learns, draws."""

    name: SweepName
    description: Text
    cells: Annotated[list[ArchivedCell], FailFast()]
    drawn: ArchivedDraws | None = None

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if len({cell.hash for cell in self.cells}) < len(self.cells):
            raise ValueError("a cell is listed twice")
        return self


class ArchivedFormat(BaseModel):
    """The member `sweep.json` of any version."""

    format: int


class ArchivedSweep(ArchivedStage):
    """The member `sweep.json`; `tune` is the sweep's tune stage, if it has one."""

    format: int
    tune: ArchivedStage | None = None

    @model_validator(mode="after")
    def _names_its_stage(self) -> Self:
        if self.tune is not None and self.tune.name != f"{self.name}/tune":
            raise ValueError(f"tune.name: found {truncate_repr(self.tune.name)}; {self.name}/tune is required")
        return self

    @property
    def stages(self) -> list[ArchivedStage]:
        """The tune stage, if there is one, and the sweep itself."""
        return [*([] if self.tune is None else [self.tune]), self]

    @property
    def hashes(self) -> set[str]:
        """Hashes of all cells."""
        return {cell.hash for stage in self.stages for cell in stage.cells}


class ArchivedRun(_Strict):
    """The member `run.json` of a cell.

    Attributes:
        splits: file of the run's split -> digest of the member of `splits/` with its content.
        metrics: name -> points of value, time and step.
    """

    name: Label
    status: Annotated[Status, Field(strict=False), AfterValidator(_refuse_running)]
    start: Time
    end: Time | None
    tags: Annotated[dict[Annotated[Key, AfterValidator(_refuse_internal)], Text], _limit_entries(1000)]
    params: Annotated[dict[Key, Line], _limit_entries(1000)]
    metrics: Annotated[dict[Key, Points], _limit_entries(9999)]
    splits: dict[Literal["partition.npz", "partition.png"], Annotated[str, Field(pattern=rf"^{DIGEST}$")]] = {}


class ArchivedEnvironment(RootModel[dict[Label, Entries]]):
    """The member `environments/HASH.json`: section -> key -> value."""

    model_config = ConfigDict(strict=True, frozen=True)
