"""A sweep file and the cells it means. No Ray in here."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedray.common.component import as_written, describe
from fedray.common.errors import UserError, truncated_repr, unknown
from fedray.common.rng import generator
from fedray.common.yaml_files import load_yaml
from fedray.config import Section
from fedray.sweep.claims import Claim

COMPONENTS = ("data", "partition", "model", "algorithm")
"""Sections that a grid replaces whole, since their other keys belong to the name; other sections are merged."""

SYMBOLS = {"rho": "ρ", "alpha": "α", "beta": "β", "kappa": "κ", "mu": "μ", "lambda": "λ", "tau": "τ", "gamma": "γ"}

STOPS = ("round", "test_accuracy")
"""What `stop` can name: a cell ends when it is at or above the value."""


def _short(value: float) -> float:
    """Six significant digits, which a person can type again."""
    return float(f"{value:.6g}")


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "uniform": lambda rng, low, high: _short(rng.uniform(low, high)),
    "loguniform": lambda rng, low, high: _short(math.exp(rng.uniform(math.log(low), math.log(high)))),
    "randint": lambda rng, low, high: int(rng.integers(low, high)),
    "choice": lambda rng, *values: values[int(rng.integers(len(values)))],
}
ARGUMENTS = {
    "uniform": "[LOW, HIGH]",
    "loguniform": "[LOW, HIGH], above 0",
    "randint": "[LOW, HIGH), integers",
    "choice": "a list of values, at least one",
}
"""What they take, for messages."""

CELLS = 100_000
"""A sweep of more cells is taken for a mistake."""


Cases = dict[str, Annotated[list[dict[str, Any]], Field(min_length=1)]]
"""Axes of settings that belong together: name of the axis -> settings, each of dotted keys."""


def _axes(cases: Any) -> Any:
    """A plain list of cases is one axis, named `cases`."""
    return {"cases": cases} if isinstance(cases, list) else cases


class Changes(Section):
    """What `--smoke` changes: dotted keys of the base, whole axes of the grid and of the cases."""

    base: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    cases: Annotated[Cases, BeforeValidator(_axes)] = {}


class Sweep(Section):
    """The contents of a sweep file."""

    name: str = Field(pattern=r"^\w[\w./-]*$", max_length=120)
    description: str = ""
    base: dict[str, Any]
    grid: dict[str, list[Any]] = {}
    cases: Annotated[Cases, BeforeValidator(_axes)] = Field(
        {}, description="settings that belong together: a list is one axis, a mapping names several"
    )
    search: dict[str, dict[str, list[Any]]] = {}
    samples: int = Field(1, gt=0, description="draws of `search` per grid point")
    scheduler: Literal["asha", "median"] | None = None
    stop: dict[str, float] = {}
    smoke: Changes | None = None
    claims: list[Claim] = Field([], description="what the results are to decide: `fedray claims NAME`")

    @field_validator("search")
    @classmethod
    def _known(cls, search: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
        for key, distribution in search.items():
            if len(distribution) != 1:
                raise UserError(f"search.{key}: one distribution is required, found {list(distribution)}")
            ((kind, arguments),) = distribution.items()
            if kind not in DISTRIBUTIONS:
                raise unknown(f"search.{key}", kind, DISTRIBUTIONS)
            try:
                DISTRIBUTIONS[kind](np.random.default_rng(0), *arguments)
            except (TypeError, ValueError, ArithmeticError):
                raise UserError(
                    f"search.{key}: {kind} does not take {truncated_repr(arguments)}; {ARGUMENTS[kind]} is required"
                ) from None
        return search

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
        if self.samples > 1 and not self.search:
            raise UserError(f"samples: found {self.samples}; without `search` there is nothing to draw")
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

    @property
    def keys(self) -> list[str]:
        """Every key that cases, grid and search set, in the order in which they are set."""
        cases = (key for axis in self.cases.values() for case in axis for key in case)
        return list(dict.fromkeys([*cases, *self.grid, *self.search]))

    @property
    def varied(self) -> list[str]:
        """Those of `keys` whose values differ between configurations; of sections without a name the keys inside."""
        keys, rows = self.keys, []
        for point in self.points():
            row: dict[str, str] = {}
            for key in keys:
                value = found(point, key)
                inside = isinstance(value, Mapping) and "name" not in value
                row |= {f"{key}.{k}": str(v) for k, v in value.items()} if inside else {key: str(value)}
            rows.append(row)
        names = dict.fromkeys(name for row in rows for name in row)
        return [name for name in names if len({row.get(name) for row in rows}) > 1]

    @property
    def stopper(self) -> str:
        """What may end a cell of this sweep early; empty where nothing may."""
        rules = [self.scheduler or "", *(f"{key}>={as_written(value)}" for key, value in self.stop.items())]
        # Who a scheduler stops depends on the other cells, so its outcomes hold for this sweep alone.
        return " ".join([*filter(None, rules), f"in {self.name}"] if self.scheduler else rules).strip()

    @classmethod
    def load(cls, path: Path, smoke: bool = False) -> "Sweep":
        """Read a file; with `smoke` its own `smoke` section is applied. Raises UserError naming file and key."""
        try:
            sweep = cls.model_validate(load_yaml(path))
            if not smoke:
                return sweep
            if sweep.smoke is None:
                raise UserError("smoke: this sweep has no smoke section")
            base = dict(sweep.base)
            for key, value in sweep.smoke.base.items():
                base = changed(base, key, value)
            if foreign := sweep.smoke.cases.keys() - sweep.cases.keys():
                raise unknown("smoke.cases", min(foreign), sweep.cases)
            changes = {
                "name": f"{sweep.name}-smoke",
                "base": base,
                "grid": sweep.grid | sweep.smoke.grid,
                "cases": sweep.cases | sweep.smoke.cases,
            }
            given = {key: getattr(sweep, key) for key in sweep.model_fields_set - {"smoke"}}
            return cls.model_validate(given | changes)
        except ValidationError as error:
            raise UserError(f"{path}: {describe(error, '', cls)}") from None
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}") from None

    def altered(self, changes: Mapping[str, Any]) -> "Sweep":
        """A copy with other values, as `fedray sweep --set` gives them.

        Args:
            changes: dotted key -> value. A key of a run (`training.rounds`) changes the base, a key of the file
                (`name`, `grid.training.lr`, `samples`) the file.

        Returns:
            The sweep under a name of its own, `NAME-KEY-VALUE...`, unless `name` is among the changes: its results
            must not be taken for those of the file as it is.

        Raises:
            UserError: a key that the grid, the cases or the search would set again, or a value that is not allowed.
        """
        document = {key: getattr(self, key) for key in self.model_fields_set}
        words = [self.name]
        for key, value in changes.items():
            head, _, rest = key.partition(".")
            if head in type(self).model_fields:
                document[head] = {**(document.get(head) or {}), rest: value} if rest else value
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

    def points(self) -> Iterator[dict[str, Any]]:
        """Every configuration, as written (defaults not filled in): cases x grid x samples, in the file's order."""
        for cases, values in itertools.product(
            itertools.product(*self.cases.values()), itertools.product(*self.grid.values())
        ):
            config = dict(self.base)
            for key, value in (
                *(pair for case in cases for pair in case.items()),
                *zip(self.grid, values, strict=True),
            ):
                config = changed(config, key, value)
            for index in range(self.samples if self.search else 1):
                yield self._drawn(config, index)

    def _drawn(self, config: dict[str, Any], index: int) -> dict[str, Any]:
        for key, distribution in self.search.items():
            ((kind, arguments),) = distribution.items()
            config = changed(config, key, DISTRIBUTIONS[kind](generator(0, f"search/{key}", index), *arguments))
        return config


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


def found(point: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None where there is none."""
    value: Any = point
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
