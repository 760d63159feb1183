"""A sweep file and its cells. Independent of Ray."""

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedray.cells.cell import SweepName, get_dotted, shorten_number
from fedray.cells.metric import BEST, FINAL, LAST, OF_CLASSES, Metric
from fedray.common.errors import UserError, name_place, unknown
from fedray.components.base import Checked, describe, format_value
from fedray.datasets.base import Validation
from fedray.sweep.document import EXTENDS, list_axes, load_document
from fedray.sweep.points import (
    COMPONENTS,
    Axes,
    Change,
    Points,
    expand_case,
    expand_entries,
    list_leaves,
    refuse_name,
    with_key,
)
from fedray.sweep.space import Searcher, Space, check_space, refuse_repeats

MEANT = {
    **dict.fromkeys(("seed", "seeds"), "`grid: {seed: [0, 1]}`"),
    **dict.fromkeys(("algorithms", "methods"), "`grid: {algorithm: [...]}`"),
    **dict.fromkeys(("config", "configuration", "run", "defaults"), "'base'"),
    **dict.fromkeys(("axes", "matrix", "parameters", "params"), "'grid'"),
}
"""Key that is looked for in a sweep's file -> what says it there."""
STOPS = ("round", "validation_accuracy", "test_accuracy")
"""Keys of `stop`: a cell ends when the value reaches the limit."""
_WORD = r"'?\w[\w.-]*'?"
PLAIN = re.compile(rf"{_WORD}|\[({_WORD}(, |(?=\])))*\]|\{{('\w+': {_WORD}(, |(?=\}})))*\}}")
"""A key of `--set`, or a value as text, that its words tell apart, as they are joined by hyphens in a name."""
CELLS = 100_000
"""A sweep of more cells is presumed a mistake."""


Cases = Annotated[
    dict[str, Annotated[list[dict[str, Any]], Field(min_length=1)]],
    BeforeValidator(lambda cases: {"cases": cases} if isinstance(cases, list) else cases),
]
"""Axes of settings that belong together: name of the axis -> settings, each a mapping of dotted keys; a plain list is
one axis, named `cases`."""


def _refuse_repeats(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("each seed once")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], AfterValidator(_refuse_repeats)]


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

    seeds: Seeds = Field(min_length=1, description="seeds of this stage; `final` must use others")
    validation: Validation | None = Field(
        None, description="samples to hold out and select on; default `{}`, or none if `select` names the test set"
    )

    blocks: bool = Field(
        False,
        description="true: each seed, with draws of its own, chooses for one seed of `final` alone, in the order of "
        "both lists; a block is a sweep of its own, NAME/0, NAME/1, ...",
    )

    @property
    def held_out(self) -> dict[str, Any]:
        """What this stage holds out, as `data.validation` says it."""
        return (self.validation or Validation()).model_dump(mode="json")


class Final(Checked):
    """The second stage: the best draw of each method and setting, with fresh seeds."""

    seeds: Seeds = Field(min_length=1, description="seeds that were not used to tune")
    train_on: Literal["all", "training"] = Field(
        "all", description="all: also the samples held out for tuning; training: without them"
    )


SELECT = tuple(
    f"{prefix}{of}_{what}"
    for of in ("validation", "validation_client", "validation_personal", "test", "personal", "generic")
    for what, prefixes in (("accuracy", (LAST, FINAL, BEST)), ("loss", (LAST, FINAL)))
    if what == "accuracy" or of in ("validation", "test")
    for prefix in prefixes
) + tuple(f"{prefix}test_{what}" for what in OF_CLASSES for prefix in (LAST, FINAL, BEST))
"""Metrics of a whole run that can select a draw; those without `validation` are of the test set."""


def _refuse_unprintable(name: str) -> str:
    if name.isspace() or not name.isprintable():
        raise ValueError("a name is one line of characters that can be printed")
    return name


def _refuse_search(grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if "search" in grid:
        raise ValueError("`search` belongs next to `grid`, not in it; a case may have one of its own")
    return grid


Name = Annotated[str, Field(max_length=80), AfterValidator(_refuse_unprintable)]
Grid = Annotated[dict[str, list[Any]], AfterValidator(_refuse_search)]
"""Dotted key -> its values."""


class Smoke(Checked):
    """Changes by `--smoke`: keys of all runs, whole axes of the grid and of the cases."""

    base: dict[str, Any] = {}
    grid: Grid = {}
    cases: Cases = {}


class Sweep(Checked):
    """The contents of a sweep file."""

    place: ClassVar[str] = "sweep file"
    of_file: ClassVar[tuple[str, ...]] = (EXTENDS,)

    name: SweepName
    description: str = ""
    names: dict[str, Name] = Field(
        {}, description="what tables and figures call a component, a dotted key or a whole label"
    )
    base: dict[str, Any]
    grid: Grid = {}
    cases: Cases = Field({}, description="settings that belong together: a list is one axis, a mapping names several")
    search: Annotated[Space, BeforeValidator(partial(check_space, "search"))] = Field(
        {}, description="keys to draw; a case may also have a `search` of its own"
    )
    samples: int = Field(1, gt=0, description="draws of `search` per grid point")
    searcher: Searcher = Field(Searcher(), description="how the values are drawn")
    select: str = Field(
        "last10_validation_accuracy",
        description="the metric of a whole run that decides which draw is best: of the validation set, or of the test "
        "set if you name it",
    )
    scheduler: Scheduler | None = None
    stop: dict[str, float] = {}
    tune: Tune | None = Field(None, description="first find the best draw of each method and setting")
    final: Final | None = Field(None, description="then run it with fresh seeds")
    smoke: Smoke | None = None
    changes: list[Change] = Field([], description="written by `--set`, `--smoke` and `extends` into the store's file")

    @field_validator("searcher", "scheduler", mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("cases")
    @classmethod
    def _check_cases(cls, cases: Cases) -> Cases:
        for name, axis in cases.items():
            for number, case in enumerate(axis):
                check_space(f"cases.{name}.{number}.search", case.get("search", {}))
        return {
            name: [one for number, case in enumerate(axis) for one in expand_case(f"cases.{name}.{number}", case)]
            for name, axis in cases.items()
        }

    @field_validator("grid")
    @classmethod
    def _expand_grid(cls, grid: Grid) -> Grid:
        return {
            key: [one[key] for value in values for one in expand_entries({key: value})] for key, values in grid.items()
        }

    @field_validator("select")
    @classmethod
    def _check_select(cls, metric: str) -> str:
        if metric not in SELECT:
            raise unknown("select", metric, SELECT, "`fedray list metrics`")
        return metric

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: dict[str, float]) -> dict[str, float]:
        for key, value in stop.items():
            if key not in STOPS:
                raise unknown("stop", key, STOPS)
            if value <= 0:
                raise UserError(f"stop.{key}: found {format_value(value)}; every cell would stop at once")
            if key != "round" and value < 1:
                raise UserError(f"stop.{key}: found {format_value(value)}, in percent; write {100 * value:g}")
            if key != "round" and value > 100:
                raise UserError(f"stop.{key}: found {format_value(value)}; at most 100 (percent) is reached")
        return stop

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        axes = {f"grid.{key}": values for key, values in self.grid.items()}
        for name, values in (axes | {f"cases.{name}": cases for name, cases in self.cases.items()}).items():
            if not values:
                raise UserError(f"{name}: found []; at least one value is required")
            refuse_repeats(name, values)
        if not self.spaces:
            if self.samples > 1:
                raise UserError(f"samples: found {self.samples}; without `search` there is nothing to draw")
            if key := "searcher" if self.searcher != Searcher() else "tune" if self.tune is not None else "":
                among = "; `search: {KEY: {choice: [...]}}` draws among values" * (key == "tune")
                raise UserError(f"{key}: without `search` there is nothing to draw{among}")
        count = self.samples * math.prod(map(len, [*self.cases.values(), *self.grid.values()]))
        if count > CELLS:
            raise UserError(f"grid: the axes multiply to {count} cells; at most {CELLS} are allowed")
        return self

    @model_validator(mode="after")
    def _refuse_second_values(self) -> Self:
        """Refuse a component that is chosen after one of its options, which it would undo; a key to which a case gives
        two values; and one that the grid or a search varies where something else gives it a value. A later axis of
        cases may replace an earlier one's value.
        """
        before: dict[tuple[str, str], dict[str, None]] = {}  # leaf and axis -> its cases that give the leaf a value
        for place, case, axis, key, values in self._list_assignments():
            refuse_name(f"{place}.{key}", key)
            leaves = {leaf: None for value in values for leaf in list_leaves(key, value)}
            for (leaf, of), cases in before.items():
                other = next(iter(cases if of != axis else {case} & cases.keys()), "")
                is_inner, is_drawn = key in COMPONENTS and leaf.startswith(f"{key}."), place.endswith("search")
                if other and (
                    (is_inner and is_drawn) or (leaf in leaves and (is_drawn or of == axis or place == "grid"))
                ):
                    raise UserError(f"{place}.{key}: {leaf} also has a value in {other}; leave one out")
                if other and is_inner:
                    raise UserError(f"{place}.{key}: follows {leaf}, which it would undo; list it first")
            for leaf in leaves:
                before.setdefault((leaf, axis), {})[case] = None
        return self

    def _list_assignments(self) -> Iterator[tuple[str, str, str, str, list[Any]]]:
        """Yield what cases, grid and searches give values, in the order in which they are set: a place in the file, the
        case to which it belongs, the axis of this, key and values."""
        spaces = [("search", "", "", self.search)]
        for name, axis in self.cases.items():
            for number, one in enumerate(axis):
                case = f"cases.{name}.{number}"
                yield from ((case, case, name, key, [value]) for key, value in one.items() if key != "search")
                spaces.append((f"{case}.search", case, name, one.get("search", {})))
        for key, values in self.grid.items():
            yield "grid", f"grid.{key}", f"grid.{key}", key, values
        for place, case, name, space in spaces:
            yield from ((place, case, name, key, one.get("choice", [None])) for key, one in space.items())

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.changes:
            with name_place(self.changes[-1].origin):
                points = self.points
                for _ in points:
                    pass
            points.refuse_varied()
        return self

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if (self.tune is None) != (self.final is None):
            missing, there = ("tune", "final") if self.tune is None else ("final", "tune")
            raise UserError(f"{missing}: is required with `{there}`")
        if self.tune is None or self.final is None:
            return self
        if both := set(self.tune.seeds) & set(self.final.seeds):
            raise UserError(
                f"final.seeds: {min(both)} is also in tune.seeds; a seed that helped to choose says nothing about "
                "the choice"
            )
        if self.tune.blocks and len(self.tune.seeds) != len(self.final.seeds):
            raise UserError(
                f"final.seeds: found {len(self.final.seeds)}; tune.blocks requires as many as tune.seeds has, "
                f"{len(self.tune.seeds)}"
            )
        if self.stop:
            raise UserError("stop: found with `tune`, which cannot choose cells that `stop` ends; leave one out")
        said = [key for key in ("seed", "data.validation") if get_dotted(self.base, key) is not None]
        changed = {leaf: change.name_key(leaf) for change in self.changes for leaf in change.leaves}
        for key, place in ({key: key for key in self.keys} | {key: f"base.{key}" for key in said} | changed).items():
            if key == "seed" or key.startswith("data.validation"):
                raise UserError(f"{place}: belongs to `tune` and `final`, which say it for each stage")
        if self.metric.is_on_test_set and self.tune.validation is not None:
            raise UserError(f"tune.validation: select is {self.select}, which does not look at it; leave one out")
        if self.metric.is_on_test_set and self.final.train_on == "training":
            raise UserError("final.train_on: found training; nothing is held out where `select` names the test set")
        return self

    @classmethod
    def suggest(cls, above: str, key: str) -> str:
        if above or key in MEANT:
            return "" if above else MEANT[key]
        from fedray.config import RunConfig  # here: imports PyTorch, which mistakes in a file do not need

        place = repr(key) if key.partition(".")[0] in RunConfig.model_fields else RunConfig.suggest("", key)
        return f"{place} in `base`, or with a list of values in `grid`" if place else ""

    @property
    def metric(self) -> Metric:
        """The metric that selects."""
        return Metric.parse(self.select, "select")

    @property
    def spaces(self) -> list[Space]:
        """All nonempty spaces, of `search` and of the cases."""
        every = [self.search, *(case.get("search", {}) for axis in self.cases.values() for case in axis)]
        return [space for space in every if space]

    @property
    def keys(self) -> list[str]:
        """All keys that cases, grid and search set, in the order in which they are set."""
        cases = (key for axis in self.cases.values() for case in axis for key in case if key != "search")
        return list(dict.fromkeys([*cases, *self.grid, *(key for space in self.spaces for key in space)]))

    @property
    def stopper(self) -> str:
        """Rules that may end a cell of this sweep early; empty if there are none."""
        rules = [f"{key}>={shorten_number(value)}" for key, value in self.stop.items()]
        if self.scheduler is None:
            return " ".join(rules)
        # Which cells a scheduler stops depends on the others, so its outcomes are valid in this sweep only.
        return " ".join([self.scheduler.rule, *rules, f"in {self.name}"])

    @classmethod
    def load(cls, path: Path, smoke: bool = False) -> "Sweep":
        """Read a file and parse it. Raises UserError naming file and key."""
        return cls.parse(load_document(path), smoke, path)

    @classmethod
    def parse(cls, document: Mapping[str, Any], smoke: bool = False, file: Path | None = None) -> "Sweep":
        """Make a sweep from the contents of a file; with `smoke` apply its `smoke` section."""
        with contextlib.nullcontext() if file is None else name_place(file):
            try:
                sweep = cls.model_validate(dict(document))
                return sweep._apply_smoke() if smoke else sweep
            except ValidationError as error:
                raise describe(error, "", cls) from None

    def to_yaml(self) -> str:
        """Return the sweep as a file, with the changes of `--smoke` and `--set`."""
        document = self.model_dump(mode="json", exclude_unset=True)
        text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
        return text

    def _apply_smoke(self) -> "Sweep":
        if self.smoke is None:
            raise UserError("smoke: this sweep has no smoke section")
        if foreign := self.smoke.cases.keys() - self.cases.keys():
            raise unknown("smoke.cases", min(foreign), self.cases)
        given = {key: getattr(self, key) for key in self.model_fields_set - {"smoke"}}
        axes = {"grid": self.grid | self.smoke.grid, "cases": self.cases | self.smoke.cases}
        before = [f"{section}.{name}" for section in axes for name in getattr(self.smoke, section)]
        change = Change(origin="smoke.base", values=self.smoke.base, before=before)
        return type(self).model_validate(
            given | axes | {"name": f"{self.name}-smoke", "changes": [*self.changes, change]}
        )

    def list_blocks(self) -> "list[Sweep]":
        """Return the sweeps that run instead of one with `tune.blocks`, each with both stages; itself without it.

        Block k is named NAME/k, has the k-th seed of each stage, and the searcher's seed plus k.
        """
        if self.tune is None or self.final is None or not self.tune.blocks:
            return [self]
        return [
            self.model_copy(
                update={
                    "name": f"{self.name}/{k}",
                    "searcher": self.searcher.model_copy(update={"seed": self.searcher.seed + k}),
                    "tune": self.tune.model_copy(update={"seeds": (first,), "blocks": False}),
                    "final": self.final.model_copy(update={"seeds": (second,)}),
                }
            )
            for k, (first, second) in enumerate(zip(self.tune.seeds, self.final.seeds, strict=True))
        ]

    def with_overrides(self, changes: Mapping[str, Any]) -> "Sweep":
        """Return a copy with other values, as `fedray sweep --set` gives them: dotted key -> value.

        A key of a run (`training.rounds`, `base.training.rounds`) is set in all runs (`points.Change`), one of the
        file (`name`, `grid.training.lr`, `tune.validation.fraction`) in the file. Unless `name` is among the changes,
        the copy has a name of its own, `NAME-KEY-VALUE...`, so that its results are not confused with the unchanged
        file's; `runtime` changes none.
        Raises UserError if the grid or the search varies a key, or a case searches it.
        """
        document = self.model_dump(exclude_unset=True)
        words, of_runs = [self.name], dict[str, Any]()
        for key, value in changes.items():
            of_run, key = key.startswith("base."), key.removeprefix("base.")
            section, _, inner = key.partition(".")
            if of_run or section not in type(self).model_fields:
                of_runs[key] = value
            elif section == "smoke":
                raise UserError(f"--set {key}: set the key itself; with --smoke it is set in the small version")
            elif inner and section in ("grid", "cases", "search", "names"):  # their keys are dotted themselves
                if section == "search" and any(inner in space for space in self.spaces[bool(self.search) :]):
                    raise UserError(f"--set {key}: a case has a search of it, which only the file can change")
                document[section] = {**document.get(section, {}), inner: value}
            else:  # None first: a mapping replaces the one that was there
                document = with_key(with_key(document, key, None), key, value)
            words += [] if section == "runtime" else [key, re.sub("^-", "minus", str(value))]
        if "name" not in changes and words[1:]:
            changed_words = re.sub(r"[^\w.]+", "-", "-".join(words[1:])).strip("-")
            name, is_plain = f"{self.name}-{changed_words}", all(map(PLAIN.fullmatch, words[1:]))
            digest = hashlib.sha256((name if is_plain else f"{name} {words}").encode()).hexdigest()[:6]
            document["name"] = name if is_plain and len(name) <= 110 else f"{name[:103]}-{digest}"  # adds /99/tune
        varied = [key for key in changes if key.startswith(("grid.", "cases.", "search."))] + list_axes(changes)
        more = [Change(origin="--set", values={}, before=varied)] if self.changes and varied else []
        more += [Change(origin="--set", values=of_runs)] if of_runs else []
        if more:
            document["changes"] = [*self.changes, *more]
        try:
            return type(self).model_validate(document)
        except ValidationError as error:
            raise UserError(f"--set: {describe(error, '', type(self))}") from None

    @property
    def points(self) -> Points:
        """Cases x grid with the changes, in the file's order, without the draws."""
        axes: Axes = {f"cases.{name}": axis for name, axis in self.cases.items()} | {
            f"grid.{key}": [{key: value} for value in values] for key, values in self.grid.items()
        }
        return Points(self.base, axes, self.search, self.changes)
