"""The cells of a sweep: one configuration and one seed each, with their data."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.common.component import as_written
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem, fitted
from fedray.sweep.file.sections import on_test_set
from fedray.sweep.grid import Sweep, found

KEPT_PROBLEMS = 8
"""Dealt data sets that are kept: cells that share one follow each other."""


@dataclass(frozen=True)
class Cell:
    """One configuration and one seed of a sweep."""

    hash: str
    label: str
    run: RunConfig
    data: str
    """Key of its data set in `Problems.data`."""


class Problems:
    """The data sets of a sweep, each loaded once, and its cells' problems.

    Attributes:
        data: key -> data set, fitted to the model's image size.
    """

    def __init__(self) -> None:
        self.data: dict[str, Dataset] = {}
        self._loaded: dict[str, tuple[Dataset, str]] = {}
        self._problems: OrderedDict[str, Problem] = OrderedDict()
        self._checked: set[str] = set()

    def cell(self, run: RunConfig, label: str) -> Cell:
        """The cell of a configuration; its data are loaded unless they are there. Raises UserError."""
        source = json.dumps(run.data.options() | {"validation": None})
        if source not in self._loaded:
            data = run.data.load()
            self._loaded[source] = data, data.digest
        data, digest = self._loaded[source]
        key = f"{digest}/{run.model.side}"
        if key not in self.data:
            self.data[key] = fitted(data, run)
        return Cell(run.cell(digest), label, run, key)

    def check(self, cell: Cell) -> None:
        """Deal the data out, and try the model, once per kind of cell.

        Cells that differ in their seed alone, or in hyper-parameters that no shape depends on, are of one kind. What
        only one seed makes impossible is found when its trial starts.

        Raises:
            UserError: the data cannot be dealt out so, or the model cannot be built for them.
        """
        run = cell.run
        dealt = self._setting(cell)[:-1]
        if _new(self._checked, dealt):
            self.problem(cell)
        shapes = {key: value for key, value in run.algorithm.options().items() if not isinstance(value, float)}
        probes = [probe.options() for probe in run.evaluation.probes]
        if _new(self._checked, cell.data, run.model.options(), shapes, run.training.precision, probes):
            self.problem(cell).network("cpu")

    def problem(self, cell: Cell) -> Problem:
        """The cell's data dealt out; only the latest few are kept.

        A search that learns and the thread that writes to MLflow ask at the same time, so it is taken out first.
        """
        setting = json.dumps(self._setting(cell))
        dealt = self._problems.pop(setting, None) or Problem.build(cell.run, self.data[cell.data])
        self._problems[setting] = dealt
        if len(self._problems) > KEPT_PROBLEMS:
            self._problems.popitem(last=False)
        return replace(dealt, config=cell.run)

    @staticmethod
    def _setting(cell: Cell) -> list[Any]:
        """What decides who holds which samples."""
        run = cell.run
        personal = run.evaluation.personal
        return [
            cell.data,
            run.data.options()["validation"],
            run.partition.options(),
            run.clients.model_dump(mode="json"),
            None if personal is None else personal.split,
            run.seed,
        ]


def _new(seen: set[str], *setting: Any) -> bool:
    key = json.dumps(setting)
    known = key in seen
    seen.add(key)
    return not known


def cells(sweep: Sweep, problems: Problems) -> dict[str, Cell]:
    """The cells of a sweep, checked as far as that is possible without training.

    Returns:
        Hash -> cell, in the sweep's order; equal configurations are one cell.

    Raises:
        UserError: a configuration is wrong, its data or its model cannot be used.
    """
    found: dict[str, Cell] = {}
    make = maker(sweep, problems)
    for point in sweep.points():
        cell = make(point)
        found.setdefault(cell.hash, cell)
    return found


def maker(sweep: Sweep, problems: Problems) -> Callable[[dict[str, Any]], Cell]:
    """What makes the checked cell of one of a sweep's configurations. It raises UserError as `cells` does."""
    varied = sweep.varied

    def make(point: dict[str, Any]) -> Cell:
        run = RunConfig.parse(point)
        if run.runtime.backend != "ray":
            raise UserError(f"runtime.backend: found {run.runtime.backend}; a sweep runs on Ray")
        if run.data.validation is None:
            _refuse_unvalidated(sweep)
        if sweep.learns:
            refuse_unlogged(run, sweep.select)
        cell = problems.cell(run, label(point, run, varied))
        problems.check(cell)
        return cell

    return make


def refuse_unlogged(run: RunConfig, select: str) -> None:
    """Raise UserError where a run will not log the metric that selects."""
    lacking = ""
    if ("personal" in select or "generic" in select) and run.evaluation.personal is None:
        lacking = "the cells have no `evaluation.personal`"
    elif "validation_client" in select or "validation_personal" in select:
        if run.data.validation is None or run.data.validation.source != "clients":
            lacking = "no samples of clients are held out (`from: clients`)"
        elif "validation_client" in select and run.algorithm.keeps != "none":
            lacking = f"{run.algorithm.name} has no global model"
    if lacking:
        raise UserError(f"select: found {select}, but {lacking}")


def _refuse_unvalidated(sweep: Sweep) -> None:
    """Nothing selects on the test set unless the file names it."""
    lacking = "the cells have no `data.validation`"
    if sweep.scheduler is not None and not on_test_set(sweep.scheduler.metric):
        raise UserError(
            f"scheduler.metric: found {sweep.scheduler.metric}, but {lacking}; hold samples out, or name the test set: "
            "`metric: test_accuracy`"
        )
    if sweep.learns and not on_test_set(sweep.select):
        raise UserError(
            f"select: found {sweep.select}, but {lacking}; hold samples out, or name the test set: "
            f"`select: {sweep.select.replace('validation', 'test')}`"
        )
    for key in sweep.stop:
        if "validation" in key:
            raise UserError(f"stop.{key}: {lacking}")


def cell_point(sweep: Sweep, which: str | None = None) -> dict[str, Any]:
    """One cell's configuration as the file writes it.

    Args:
        sweep: the file.
        which: the cell's number (from 1, as `--dry-run` shows it) or the beginning of its hash; None: the first.

    Raises:
        UserError: there is no such cell.
    """
    if which is None:
        return next(sweep.points())
    problems, points = Problems(), dict[str, dict[str, Any]]()
    for point in sweep.points():
        points.setdefault(problems.cell(RunConfig.parse(point), "").hash, point)
    if which.isdecimal() and 1 <= int(which) <= len(points):
        return list(points.values())[int(which) - 1]
    found = [point for hash, point in points.items() if len(which) >= 4 and hash.startswith(which)]
    if len(found) != 1:
        raise UserError(
            f"--cell: {which!r} names {len(found)} cells; a number from 1 to {len(points)} or a hash is required"
        )
    return found[0]


def label(point: Mapping[str, Any], run: RunConfig, varied: Sequence[str] = ()) -> str:
    """A readable name: `fedtoga ρ=0.1 α=0.1 dirichlet(0.1) lr=0.1 s0`.

    Hyper-parameters as far as the file sets them, and the value of each other key that varies in the sweep.
    """
    words = [run.algorithm.name]
    section = point.get("algorithm")
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if key != "name":
            value = value["name"] if isinstance(value, Mapping) else value
            words.append(f"{run.algorithm.symbol(key)}={as_written(value)}")
    words.append(run.partition.label())
    named = ("algorithm", "partition", "seed", *(f"partition.{option}" for option in run.partition.required()))
    for key in varied:
        if not key.startswith("algorithm.") and key not in named:
            value = found(point, key)
            if isinstance(value, Mapping) and "name" in value:
                value = value["name"]
            if value is not None:
                option = key.rpartition(".")[2]
                option = run.partition.symbol(option) if key.startswith("partition.") else option
                words.append(f"{option}={as_written(value)}")
    return " ".join([*words, f"s{run.seed}"])
