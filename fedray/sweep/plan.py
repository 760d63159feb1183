"""A sweep made into cells, one configuration and one seed each, and the plan of a call: which of them are done."""

import itertools
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedray.cells.cell import Cell, PluginLabels, get_dotted, leave_out_seed
from fedray.cells.metric import OF_CLASSES, Metric
from fedray.cells.record import Record
from fedray.cells.sheet import Sheet, select_labels
from fedray.cells.status import Status
from fedray.common.errors import UserError, escape, format_count, unknown
from fedray.components.base import Component, format_value
from fedray.components.identity import hash_of
from fedray.config import COMPONENTS, RunConfig, Runtime
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem, prepare_data
from fedray.engine.process.device import warn_of_slow_precision
from fedray.sweep.draws import find_axes, iter_points
from fedray.sweep.storage import count_kept_rounds, is_trained
from fedray.sweep.sweep import Sweep
from fedray.tracking.store import count_unlisted, describe_unlisted, read_records

KEPT_PROBLEMS = 8
"""Number of split data sets that are kept; cells that share one follow each other."""


class Problems:
    """The data sets of a sweep, each loaded once, and its cells' problems.

    Attributes:
        data: key -> data set, as `prepare_data` makes it.
    """

    def __init__(self) -> None:
        self.data: dict[str, Dataset] = {}
        self._loaded: dict[str, Dataset] = {}
        self._problems: OrderedDict[str, Problem] = OrderedDict()
        self._checked: set[str] = set()
        self._sections: dict[str, Any] = {}

    def make_cell(self, run: RunConfig, label: str, **listed: Any) -> Cell:
        """Make the cell of a configuration; data are loaded if need be."""
        source = json.dumps(run.data.list_loading_options())
        if source not in self._loaded:
            self._loaded[source] = load_data(run.data)
        data = self._loaded[source]
        identity = run.make_identity(data.digest)
        cell = Cell(
            hash_of(identity),
            label,
            self._share(run.resolve()),
            self._share(identity),
            describe_plugins(run),
            **listed,
            packed=run.pack(),
        )
        if (key := cell.data) not in self.data:
            self.data[key] = prepare_data(data, run)
        return cell

    def _share(self, sections: Mapping[str, Any]) -> dict[str, Any]:
        """Return equal sections of several cells as one object: there may be thousands of cells."""
        return {key: self._sections.setdefault(json.dumps(value), value) for key, value in sections.items()}

    def check(self, cell: Cell) -> None:
        """Split the data and build the model, once per kind of cell.

        Cells that differ only in their seed, or in hyper-parameters that change no shape, are of one kind. An error
        that only one seed causes is found when its trial starts.
        """
        run = cell.run
        warn_of_slow_precision(run.training.precision, run.runtime.torch_device)
        dealt = self._describe_split(cell)[:-1]
        if _is_new(self._checked, dealt):
            self.get_problem(cell)
        shapes = {key: value for key, value in run.algorithm.list_options().items() if not isinstance(value, float)}
        probes = [probe.list_options() for probe in run.evaluation.probes]
        if _is_new(self._checked, cell.data, run.model.list_options(), shapes, run.training.precision, probes):
            self.get_problem(cell).build_network("cpu")

    def get_problem(self, cell: Cell) -> Problem:
        """Return the cell's problem, with its data split among the clients; only the latest few splits are kept."""
        setting = json.dumps(self._describe_split(cell))
        dealt = self._problems.pop(setting, None) or Problem.build(cell.run, self.data[cell.data])
        self._problems[setting] = dealt
        if len(self._problems) > KEPT_PROBLEMS:
            self._problems.popitem(last=False)
        return replace(dealt, config=cell.run)

    @staticmethod
    def _describe_split(cell: Cell) -> list[Any]:
        """Return everything that decides which client holds which samples."""
        run = cell.run
        personal = run.evaluation.personal
        return [
            cell.data,
            *(run.data.list_options()[key] for key in ("validation", "test")),
            run.partition.list_options(),
            run.clients.model_dump(mode="json"),
            None if personal is None else personal.split,
            run.seed,
        ]


def _is_new(seen: set[str], *setting: Any) -> bool:
    key = json.dumps(setting)
    known = key in seen
    seen.add(key)
    return not known


def make_sheet(
    sweep: Sweep, problems: Problems, check: bool = True, file: str = ""
) -> tuple[Sheet, list[tuple[dict[str, Any], str]]]:
    """Make a sweep into cells; with `check` try what can be tried without training.

    Return the sheet, without records, and each configuration as written with its cell's hash; equal ones share it.
    file: the whole file as text, if the sweep is one of its stages.
    """
    searched = dict.fromkeys(key for space in sweep.spaces for key in space)
    cells, hashes = dict[str, Cell](), list[tuple[dict[str, Any], str]]()
    for point, run, label, _ in label_points(sweep):
        if check and run.runtime.backend != "ray":
            raise UserError(f"runtime.backend: found {run.runtime.backend}; a sweep runs on Ray")
        if check and run.data.validation is None:
            _refuse_unvalidated(sweep)
        select = sweep.select if searched else ""
        cell = problems.make_cell(run, label, names=sweep.names, searched=tuple(searched), select=select)
        if check:
            problems.check(cell)
        cells.setdefault(cell.hash, cell)
        hashes.append((point, cell.hash))
    return Sheet(sweep.name, cells, description=sweep.description, file=file or sweep.to_yaml()), hashes


def label_points(sweep: Sweep) -> Iterator[tuple[dict[str, Any], RunConfig, str, str]]:
    """Yield each configuration as written, parsed, its label, and what tells its cell apart without reading data.

    A setting's label that an earlier one has gets a number, as of 0.3 and 0.300001: labels have four digits. Cells that
    differ in their seed alone are one setting.
    """
    points, labels = list(iter_points(sweep)), dict[str, str]()
    varied = [key for key, varies in find_axes(sweep.keys, points).items() if varies]
    for point in points:
        run = RunConfig.parse(point)
        written = run.resolve() | {"runtime": run.runtime.list_identity_entries(), "seed": None}
        written["training"]["channels_last"] = run.channels_last
        setting, plain = json.dumps(written, sort_keys=True), leave_out_seed(make_label(point, run, varied), run.seed)
        names = itertools.chain([plain], (f"{plain} #{number}" for number in itertools.count(2)))
        label = next(name for name in names if labels.setdefault(name, setting) == setting)
        yield point, run, f"{label} s{run.seed}", f"{setting} {run.seed}"


def list_distinct(sweep: Sweep, only: Collection[str] = ()) -> dict[int, tuple[RunConfig, str]]:
    """Return cell number -> run and label of a sweep, each cell once, without reading data; `only` as for
    `Sheet.select`, but for hashes, which need the data."""
    cells = dict[str, tuple[RunConfig, str]]()
    for _, run, label, key in label_points(sweep):
        cells.setdefault(key, (run, label))
    labels = {key: label for key, (_, label) in cells.items()}
    chosen = {key for text in only for key in select_labels(labels, text, "--only")} if only else cells.keys()
    return {number: cells[key] for number, key in enumerate(cells, 1) if key in chosen}


def refuse_unlogged(run: RunConfig, select: str) -> None:
    """Raise UserError if a run will not log the metric that selects."""
    lacking = ""
    if (key := Metric.parse(select).known.needs) and not get_dotted(run.resolve(), key):
        lacking = f"the cells have no `{key}`"
    elif select.endswith(OF_CLASSES) and run.algorithm.keeps != "none":
        lacking = f"{run.algorithm.name} has no global model"
    elif "validation_client" in select or "validation_personal" in select:
        if run.data.validation is None or run.data.validation.source != "clients":
            lacking = "no samples of clients are held out (`from: clients`)"
        elif "validation_client" in select and run.algorithm.keeps != "none":
            lacking = f"{run.algorithm.name} has no global model"
    if lacking:
        raise UserError(f"select: found {select}, but {lacking}")


def _refuse_unvalidated(sweep: Sweep) -> None:
    """Raise UserError if something selects on validation data that are not held out: the test set must be named."""
    lacking = "the cells have no `data.validation`"
    if sweep.scheduler is not None and not Metric.parse(sweep.scheduler.metric).is_on_test_set:
        raise UserError(
            f"scheduler.metric: found {sweep.scheduler.metric}, but {lacking}; hold samples out, or name the test set: "
            "`metric: test_accuracy`"
        )
    for key in sweep.stop:
        if "validation" in key:
            raise UserError(f"stop.{key}: {lacking}")


def make_label(point: Mapping[str, Any], run: RunConfig, varied: Sequence[str] = ()) -> str:
    """Return a readable name: `fedtoga ρ=0.1 α=0.1 dirichlet(0.1) lr=0.1 s0`.

    It has the hyper-parameters that the file sets, and the value of each other key that varies in the sweep.
    """
    words = [run.algorithm.own_name or run.algorithm.name]
    section = point.get("algorithm")
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if key != "name":
            value = value.get("name", value) if isinstance(value, Mapping) else value
            words.append(f"{run.algorithm.get_symbol(key)}={format_value(value)}")
    words.append(run.partition.make_label())
    named = ("algorithm", "partition", "seed", *(f"partition.{option}" for option in run.partition.list_required()))
    for key in varied:
        if not key.startswith("algorithm.") and key not in named:
            value, option = get_dotted(point, key), key.rpartition(".")[2]
            option = run.partition.get_symbol(option) if key.startswith("partition.") else option
            chosen = value.get("name", None if value else "{}") if isinstance(value, Mapping) else value
            options = value if isinstance(value, Mapping) and chosen is None else {option: chosen}
            told = {name: one for name, one in options.items() if one is not None and f"{key}.{name}" not in varied}
            told |= {name: str(one) for name, one in told.items() if name == "per_round"}  # 1.0 is not 1: everyone
            words += [f"{name}={format_value(one)}" for name, one in told.items()]
    return escape(" ".join([*words, f"s{run.seed}"]))


def describe_plugins(run: RunConfig) -> PluginLabels:
    """Return the letters that a run's classes declare, and how tables and figures show its plug-ins; else empty."""
    plugins = [component for component in run.components if ":" in component.name]
    probes = [probe for probe in run.evaluation.probes if probe in plugins]
    letters = {
        one.name: {k: one.get_symbol(k) for k in type(one).model_fields if one.get_symbol(k) != Component.get_symbol(k)}
        for one in run.components
    }
    return PluginLabels(
        {name: own for name, own in letters.items() if own},
        {one.name: one.list_required() for one in plugins if one is run.partition},
        {one.name: one.own_name for one in plugins if one.own_name},
        {metric: title for probe in probes for metric, title in probe.metrics.items()},
        sorted(metric for probe in probes for metric in probe.lower_is_better),
        sorted(metric for probe in probes for metric in probe.unranked),
    )


@dataclass(frozen=True)
class Options:
    """How a call runs a sweep: what `fedray.run_sweep` takes under these names."""

    force: bool = False
    only: Sequence[str] = ()
    max_concurrent: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of a call of a sweep; `dataclasses.replace` makes another.

    Attributes:
        sweep: the file, or one of its stages.
        sheet: its cells, and their records in MLflow; its text is the whole file's, with all stages.
        problems: the cells' data.
        points: each configuration as written, in the file's order, and its cell's hash.
        options: how this call runs them.
        chosen: hashes of the cells that this call may run.
        unlisted: number of finished cells in MLflow that ran under this sweep's name and are not in the sheet.
        folder: the working folder; relative paths mean this one.
    """

    sweep: Sweep
    sheet: Sheet
    problems: Problems
    points: Sequence[tuple[Mapping[str, Any], str]]
    options: Options = Options()
    chosen: frozenset[str] = frozenset()
    unlisted: int = 0
    folder: Path = field(default_factory=Path.cwd)

    @property
    def to_run(self) -> list[Cell]:
        """The cells that this call still has to run: fewer as they end."""
        cells, records = filter(self.is_chosen, self.sheet.cells.values()), self.sheet.records
        return [cell for cell in cells if self.options.force or not self.is_done(records.get(cell.hash))]

    def is_chosen(self, cell: Cell) -> bool:
        """Return True if this call may run the cell."""
        return cell.hash in self.chosen

    @property
    def requests(self) -> Counter[Runtime]:
        """Resource requests of trials, with the number of trials that make each."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def describe(self) -> str:
        """Return one line: the number of cells, of finished and diverged ones, and of those left to run.

        A second one warns of finished cells of the same name that are not among them.
        """
        name, counts, to_run = self.sheet.name, self.sheet.counts, self.to_run
        kept = [] if self.options.force else [cell for cell in to_run if count_kept_rounds(cell)]
        unlogged = sum(self.sheet.get_status(cell.hash).is_open and is_trained(cell) for cell in kept)
        begun = len(kept) - unlogged
        line = (
            f"{name}: {format_count(len(self.sheet.cells), 'cell')}, {counts[Status.FINISHED] + unlogged} finished"
            f"{f' ({unlogged} of them not yet in MLflow)' if unlogged else ''}, "
            f"{counts[Status.DIVERGED]} diverged, {len(to_run) - unlogged} to run"
            f"{f' ({begun} from a checkpoint)' if begun else ''}{f', {unlogged} to log' if unlogged else ''}"
        )
        return "\n".join(filter(None, [line, describe_unlisted(name, self.unlisted)]))

    def get_values(self) -> dict[str, float | None]:
        """Return hash -> selection metric of the cells that need not run again, None for one that has not finished."""
        select, values = self.sweep.select, dict[str, float | None]()
        for hash, record in self.sheet.records.items():
            if self.is_done(record):
                metrics = record.summarise() if record.ending.status is Status.FINISHED else {select: None}
                if select not in metrics:
                    why = (
                        "all test samples are of one class"
                        if select.endswith("test_auc")
                        else "evaluation.personal gives personal accuracies"
                    )
                    raise UserError(f"select: {select} is not logged by the runs; {why}")
                values[hash] = metrics[select]
        return values

    def is_done(self, record: Record | None) -> bool:
        """Return True if another call would only repeat the run; a cell that another rule stopped is not done."""
        if record is None:
            return False
        ending = record.ending
        return ending.status.is_final or (ending.status.is_early and ending.stopper == self.sweep.stopper)


def make_plan(sweep: Sweep, options: Options = Options(), file: str = "") -> Plan:
    """Expand and check a sweep, and look up its cells; nothing is written. file: as for `make_sheet`."""
    problems = Problems()
    sheet, points = make_sheet(sweep, problems, file=file)
    named = (hash for text in options.only for hash in sheet.select(text, "--only"))
    refuse_unknown_names(sweep, sheet.cells.values())
    sheet.records.update(read_records(sheet.cells))
    unlisted = count_unlisted(sheet)
    return Plan(sweep, sheet, problems, points, options, frozenset(named if options.only else sheet.cells), unlisted)


def refuse_unknown_names(sweep: Sweep, cells: Iterable[Cell]) -> None:
    """Raise UserError if `names` has a word that no component has, or a dotted key that no run has."""
    plugins = {part for cell in cells for part in cell.run.components if ":" in part.name} if sweep.names else set()
    labels = {type(part).__name__: part.own_name or part.name for part in plugins}
    known = {name for registry, *_ in COMPONENTS.values() for name in registry} | set(labels.values())
    for key in sweep.names:
        if re.fullmatch(r"\w+", key) and key not in known and key not in RunConfig.model_fields:
            listing = "`fedray list algorithms|models|datasets|partitions`"
            raise unknown("names", key, known, listing, repr(labels[key]) if key in labels else "")
        if re.fullmatch(r"\w+(\.\w+)+", key) and key.partition(".")[0] not in RunConfig.model_fields:
            raise unknown("names", key.partition(".")[0], RunConfig.model_fields)
