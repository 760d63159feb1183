"""A sweep file and the cells it means. No Ray in here."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedray.common.component import Checked, as_written, describe
from fedray.common.errors import UserError, truncated_repr, unknown
from fedray.common.yaml_files import load_yaml
from fedray.config import RunConfig
from fedray.sections import Section
from fedray.sweep.file.claims import Claim
from fedray.sweep.file.sections import SELECT, Final, Scheduler, Tune, on_test_set
from fedray.sweep.file.space import Searcher, Space, check_space, draw

COMPONENTS = ("data", "partition", "model", "algorithm")
"""Sections that a grid replaces whole, since their other keys belong to the name; other sections are merged."""

STOPS = ("round", "validation_accuracy", "test_accuracy")
"""What `stop` can name: a cell ends when it is at or above the value."""


CELLS = 100_000
"""A sweep of more cells is taken for a mistake."""


Cases = dict[str, Annotated[list[dict[str, Any]], Field(min_length=1)]]
"""Axes of settings that belong together: name of the axis -> settings, each of dotted keys."""


def _axes(cases: Any) -> Any:
    """A plain list of cases is one axis, named `cases`."""
    return {"cases": cases} if isinstance(cases, list) else cases


def _no_search(grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if "search" in grid:
        raise ValueError("`search` stands beside `grid`; a case may have one of its own")
    return grid


Grid = Annotated[dict[str, list[Any]], AfterValidator(_no_search)]
"""Dotted key -> its values."""


class Changes(Section):
    """What `--smoke` changes: dotted keys of the base, whole axes of the grid and of the cases."""

    base: dict[str, Any] = {}
    grid: Grid = {}
    cases: Annotated[Cases, BeforeValidator(_axes)] = {}


class Sweep(Section):
    """The contents of a sweep file."""

    name: str = Field(pattern=r"^\w[\w./-]*$", max_length=120)
    description: str = ""
    base: dict[str, Any]
    grid: Grid = {}
    cases: Annotated[Cases, BeforeValidator(_axes)] = Field(
        {}, description="settings that belong together: a list is one axis, a mapping names several"
    )
    search: Space = Field({}, description="what is drawn; a case may have a `search` of its own beside its keys")
    samples: int = Field(1, gt=0, description="draws of `search` per grid point")
    budget: Literal["draws", "gradients"] = Field(
        "draws",
        description="what every method and setting has as many of: draws, or gradients, those that `samples` draws of "
        "a method take that takes one per local step",
    )
    searcher: Searcher = Field(Searcher(), description="who draws")
    select: str = Field(
        "last10_validation_accuracy",
        description="the metric of a whole run that says which draw is best: of the validation set, or of the test "
        "set if you name it",
    )
    scheduler: Scheduler | None = None
    stop: dict[str, float] = {}
    tune: Tune | None = Field(None, description="first find the best draw of each method and setting")
    final: Final | None = Field(None, description="then run it with fresh seeds")
    smoke: Changes | None = None
    claims: list[Claim] = Field([], description="what the results are to decide: `fedray claims NAME`")

    @field_validator("searcher", "scheduler", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("search")
    @classmethod
    def _known(cls, search: Space) -> Space:
        return check_space("search", search)

    @field_validator("cases")
    @classmethod
    def _spaces_of_cases(cls, cases: Cases) -> Cases:
        for name, axis in cases.items():
            for number, case in enumerate(axis):
                check_space(f"cases.{name}.{number}.search", case.get("search", {}))
        return cases

    @field_validator("select")
    @classmethod
    def _selects(cls, metric: str) -> str:
        if metric not in SELECT:
            raise unknown("select", metric, SELECT)
        return metric

    @field_validator("stop")
    @classmethod
    def _reached(cls, stop: dict[str, float]) -> dict[str, float]:
        for key, value in stop.items():
            if key not in STOPS:
                raise unknown("stop", key, STOPS)
            if value <= 0:
                raise UserError(f"stop.{key}: found {as_written(value)}; every cell would stop at once")
        return stop

    @model_validator(mode="after")
    def _is_a_sweep(self) -> Self:
        axes = {f"grid.{key}": values for key, values in self.grid.items()}
        for name, values in (axes | {f"cases.{name}": cases for name, cases in self.cases.items()}).items():
            written = [repr(value) for value in values]
            if not values:
                raise UserError(f"{name}: found []; at least one value is required")
            if len(set(written)) < len(values):
                twice = next(value for value in values if written.count(repr(value)) > 1)
                raise UserError(f"{name}: lists {truncated_repr(twice)} more than once")
        if not self.spaces:
            if self.samples > 1:
                raise UserError(f"samples: found {self.samples}; without `search` there is nothing to draw")
            for key, is_given in (
                ("searcher", self.searcher != Searcher()),
                ("budget", self.budget != "draws"),
                ("tune", self.tune is not None),
            ):
                if is_given:
                    raise UserError(f"{key}: without `search` there is nothing to draw")
        if self.stop and self.learns:
            raise UserError("stop: found with optuna, which could not learn from what `stop` ends; leave one out")
        for key in (key for space in self.spaces for key in space if self.learns):
            if key.partition(".")[0] in ("data", "runtime"):
                raise UserError(
                    f"search.{key}: optuna cannot draw keys of data or runtime, which are needed before the first draw"
                )
        count = self.samples * math.prod(map(len, [*self.cases.values(), *self.grid.values()]))
        if count > CELLS:
            raise UserError(f"grid: the axes multiply to {count} cells; at most {CELLS} are allowed")
        return self

    @model_validator(mode="after")
    def _keeps_every_axis(self) -> Self:
        for first, second in itertools.combinations(self.keys, 2):
            if second in COMPONENTS and first.startswith(f"{second}."):
                raise UserError(f"grid.{second}: stands after {first}, which it would undo; list it before")
        return self

    @model_validator(mode="after")
    def _stages(self) -> Self:
        if (self.tune is None) != (self.final is None):
            missing, there = ("tune", "final") if self.tune is None else ("final", "tune")
            raise UserError(f"{missing}: is required beside `{there}`")
        if self.tune is None or self.final is None:
            return self
        if both := set(self.tune.seeds) & set(self.final.seeds):
            raise UserError(
                f"final.seeds: {min(both)} is also in tune.seeds; a seed that helped to choose says nothing about "
                "the choice"
            )
        if self.stop:
            raise UserError("stop: found beside `tune`, which could not choose what `stop` ends; leave one out")
        held = found(self.base, "data.validation") is not None
        for key in [*self.keys, *(["base.data.validation"] if held else [])]:
            if key == "seed" or key.removeprefix("base.").startswith("data.validation"):
                raise UserError(f"{key}: belongs to `tune` and `final`, which say it for each stage")
        if on_test_set(self.select) and self.tune.validation is not None:
            raise UserError(f"tune.validation: select is {self.select}, which does not look at it; leave one out")
        if on_test_set(self.select) and self.final.train_on == "training":
            raise UserError("final.train_on: found training; nothing is held out where `select` names the test set")
        return self

    @property
    def learns(self) -> bool:
        """Whether its draws follow from the results of earlier ones."""
        return self.searcher.name == "optuna" and bool(self.spaces)

    @property
    def spaces(self) -> list[Space]:
        """The spaces of `search` and of the cases, where they are not empty."""
        found = [self.search, *(case.get("search", {}) for axis in self.cases.values() for case in axis)]
        return [space for space in found if space]

    @property
    def keys(self) -> list[str]:
        """Every key that cases, grid and search set, in the order in which they are set."""
        cases = (key for axis in self.cases.values() for case in axis for key in case if key != "search")
        return list(dict.fromkeys([*cases, *self.grid, *(key for space in self.spaces for key in space)]))

    @property
    def varied(self) -> list[str]:
        """Those of `keys`, and of sections the keys inside, whose values differ between configurations.

        A section that is chosen by name stands for that name, and its options differ where those of one name do.
        """
        keys, rows = self.keys, []
        for point in self.points():
            row: dict[str, str] = {}
            for key in keys:
                value = found(point, key)
                if isinstance(value, Mapping):
                    row |= {key if k == "name" else f"{key}.{k}": str(v) for k, v in value.items()}
                else:
                    row[key] = str(value)
            rows.append(row)
        names = dict.fromkeys(name for row in rows for name in row)
        return [name for name in names if _differs(rows, name)]

    @property
    def stopper(self) -> str:
        """What may end a cell of this sweep early; empty where nothing may."""
        rules = [f"{key}>={as_written(value)}" for key, value in self.stop.items()]
        if self.scheduler is None:
            return " ".join(rules)
        # Who a scheduler stops depends on the other cells, so its outcomes hold for this sweep alone.
        return " ".join([self.scheduler.rule, *rules, f"in {self.name}"])

    @classmethod
    def load(cls, path: Path, smoke: bool = False) -> "Sweep":
        """Read a file; with `smoke` its own `smoke` section is applied. Raises UserError naming file and key."""
        try:
            return cls.parse(load_yaml(path), smoke)
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}") from None

    @classmethod
    def parse(cls, document: Mapping[str, Any], smoke: bool = False) -> "Sweep":
        """A sweep from a file's contents; with `smoke` its own `smoke` section is applied. Raises UserError."""
        try:
            sweep = cls.model_validate(dict(document))
            return sweep._small() if smoke else sweep
        except ValidationError as error:
            raise describe(error, "", cls) from None

    def _small(self) -> "Sweep":
        if self.smoke is None:
            raise UserError("smoke: this sweep has no smoke section")
        base = dict(self.base)
        for key, value in self.smoke.base.items():
            base = changed(base, key, value)
        if foreign := self.smoke.cases.keys() - self.cases.keys():
            raise unknown("smoke.cases", min(foreign), self.cases)
        changes = {
            "name": f"{self.name}-smoke",
            "base": base,
            "grid": self.grid | self.smoke.grid,
            "cases": self.cases | self.smoke.cases,
        }
        given = {key: getattr(self, key) for key in self.model_fields_set - {"smoke"}}
        return type(self).model_validate(given | changes)

    def altered(self, changes: Mapping[str, Any]) -> "Sweep":
        """A copy with other values, as `fedray sweep --set` gives them.

        Args:
            changes: dotted key -> value. A key of a run (`training.rounds`, `base.training.rounds`) changes the base,
                a key of the file (`name`, `grid.training.lr`, `tune.validation.fraction`) the file.

        Returns:
            The sweep under a name of its own, `NAME-KEY-VALUE...`, unless `name` is among the changes: its results
            must not be taken for those of the file as it is.

        Raises:
            UserError: a key that the grid, the cases or the search would set again, or a value that is not allowed.
        """
        document = {key: getattr(self, key) for key in self.model_fields_set}
        words = [self.name]
        for key, value in changes.items():
            of_run, key = key.startswith("base."), key.removeprefix("base.")
            if not of_run and key.partition(".")[0] in type(self).model_fields:
                document = _with(document, key, value, f"--set {key}")
            elif key in self.keys:
                raise UserError(f"--set {key}: an axis of the sweep sets it too; try --set 'grid.{key}=[VALUE]'")
            else:
                document["base"] = changed(document["base"], key, value)
            words += [key, as_written(value)]
        if "name" not in changes:
            document["name"] = re.sub(r"[^\w./]+", "-", "-".join(words)).strip("-")[:120]
        try:
            return type(self).model_validate(document)
        except ValidationError as error:
            raise UserError(f"--set: {describe(error, '', type(self))}") from None

    def combinations(self) -> Iterator[tuple[dict[str, Any], Space]]:
        """Cases x grid, in the file's order: a configuration, and what is drawn for it."""
        for cases, values in itertools.product(
            itertools.product(*self.cases.values()), itertools.product(*self.grid.values())
        ):
            config, space = dict(self.base), dict(self.search)
            for key, value in (
                *(pair for case in cases for pair in case.items()),
                *zip(self.grid, values, strict=True),
            ):
                if key == "search":
                    space |= value
                else:
                    config = changed(config, key, value)
            yield config, space

    def points(self) -> Iterator[dict[str, Any]]:
        """Every configuration, as written (defaults not filled in): cases x grid x draws, in the file's order.

        Draws of `optuna` follow from results; random ones stand in for them (`fedray.sweep.studies` makes the real
        ones).
        """
        for config, space in self.combinations():
            for values in self.draws(config, space):
                yield drawn(config, values)

    def draws(self, config: Mapping[str, Any], space: Space) -> list[dict[str, Any]]:
        """What is drawn for a method and setting, as many draws as the budget allows; for `optuna` stand-ins."""
        count = self.samples if space else 1
        return self.affordable(config, [draw(space, self.searcher, index, self.samples) for index in range(count)])

    def affordable(self, config: Mapping[str, Any], draws: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first ones of the draws of a method and setting, as many as `budget` allows.

        Args:
            config: the method and setting.
            draws: of its space, in order; at most `samples`.

        Raises:
            UserError: the budget allows none.
        """
        if self.budget == "draws" or draws == [{}]:
            return list(draws)
        from fedray.sweep.gradients import gradients_per_step  # here: it imports PyTorch

        left, found = self.samples + 1e-6, list[dict[str, Any]]()
        for values in draws:
            run = RunConfig.parse(drawn(config, values))
            left -= gradients_per_step(run)
            if left < 0:
                break
            found.append(values)
        if draws and not found:
            raise UserError(
                f"samples: found {self.samples}; {run.algorithm.name} takes {gradients_per_step(run):g} gradients per "
                "local step, so `budget: gradients` allows it no draw"
            )
        return found


def _with(section: Mapping[str, Any], key: str, value: Any, what: str) -> dict[str, Any]:
    """The keys of a section, or of a mapping whose own keys are dotted, with one of them set. Raises UserError."""
    head, _, rest = key.partition(".")
    held = section.get(head)
    if not rest:
        return {**section, head: value}
    if isinstance(held, Checked):
        return {**section, head: _with(held.model_dump(by_alias=True, exclude_unset=True), rest, value, what)}
    if held is not None and not isinstance(held, Mapping):
        raise UserError(f"{what}: {head} is not a mapping; only the whole of it can be set")
    return {**section, head: {**(held or {}), rest: value}}


def drawn(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the values of a draw."""
    result = dict(config)
    for key, value in values.items():
        result = changed(result, key, value)
    return result


def changed(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with one dotted key set. A mapping replaces a component section and is merged into any other."""
    head, _, rest = key.partition(".")
    found = config.get(head)
    if rest:
        if isinstance(found, str) and head in COMPONENTS:
            found = {"name": found}
        if found is not None and not isinstance(found, Mapping):
            raise UserError(f"{key}: {head} holds {truncated_repr(found)}, which has no keys")
        return {**config, head: changed(found or {}, rest, value)}
    if isinstance(value, Mapping) and isinstance(found, Mapping) and head not in COMPONENTS:
        for name, inner in value.items():
            found = changed(found, name, inner)
        return {**config, head: dict(found)}
    return {**config, key: value}


def _differs(rows: Sequence[Mapping[str, str]], key: str) -> bool:
    """Whether a key has several values; an option of a section that is chosen by name, under one of its names."""
    section, _, option = key.partition(".")
    found = {(row.get(section) if option else None, row.get(key)) for row in rows}
    return len(found) > len({name for name, _ in found})


def found(point: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None where there is none."""
    value: Any = point
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
