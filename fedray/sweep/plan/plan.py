"""Plan of a call of a sweep: its cells, and which of them are done."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count, unknown
from fedray.config import COMPONENTS, RunConfig, Runtime
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Problems, make_sheet
from fedray.sweep.plan.storage import is_trained
from fedray.tracking.store import count_unlisted, describe_unlisted, read_records


@dataclass(frozen=True)
class Options:
    """How a call runs a sweep.

    Attributes:
        force: True to run finished cells again.
        only: the cells to run, as `Sheet.select` takes them; empty for all.
        max_concurrent: maximum number of trials at a time; None for as many as fit.
        address: a cluster's, `auto` or HOST:PORT; None for $RAY_ADDRESS, or this machine if that is not set.
    """

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
        chosen: hashes of the cells that this call may run; None for all.
        unlisted: number of finished cells in MLflow that ran under this sweep's name and are not in the sheet.
        folder: the working folder; relative paths mean this one.
    """

    sweep: Sweep
    sheet: Sheet
    problems: Problems
    points: Sequence[tuple[Mapping[str, Any], str]]
    options: Options = Options()
    chosen: frozenset[str] | None = None
    unlisted: int = 0
    folder: Path = field(default_factory=Path.cwd)

    @property
    def to_run(self) -> list[Cell]:
        """The cells that this call has to run."""
        cells, records = filter(self.is_chosen, self.sheet.cells.values()), self.sheet.records
        return [cell for cell in cells if self.options.force or not self.is_done(records.get(cell.hash))]

    def is_chosen(self, cell: Cell) -> bool:
        """Return True if this call may run the cell."""
        return self.chosen is None or cell.hash in self.chosen

    @property
    def requests(self) -> Counter[Runtime]:
        """Resource requests of trials, with the number of trials that make each."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def describe(self) -> str:
        """Return one line: the number of cells, of finished and diverged ones, and of those left to run.

        A second one warns of finished cells of the same name that are not among them.
        """
        name, counts = self.sheet.name, self.sheet.counts
        unlogged = sum(map(self.is_unlogged, self.to_run))
        line = (
            f"{name}: {format_count(len(self.sheet.cells), 'cell')}, {counts[Status.FINISHED]} finished, "
            f"{counts[Status.DIVERGED]} diverged, {len(self.to_run)} to run"
        )
        line += f", {unlogged} of them {Status.UNLOGGED}" if unlogged else ""
        return "\n".join(filter(None, [line, describe_unlisted(name, self.unlisted)]))

    def get_values(self) -> dict[str, float | None]:
        """Return hash -> selection metric of the cells that need not run again, None for one that has not finished.

        Raises:
            UserError: a finished run has not logged the metric.
        """
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

    def is_unlogged(self, cell: Cell) -> bool:
        """Return True if a killed call has trained the cell to its end, and this one only has to log it."""
        return not self.options.force and self.sheet.get_status(cell.hash).is_open and is_trained(cell)

    def is_done(self, record: Record | None) -> bool:
        """Return True if another call would only repeat the run; a cell that another rule stopped is not done."""
        if record is None:
            return False
        ending = record.ending
        return ending.status.is_final or (ending.status.is_early and ending.stopper == self.sweep.stopper)


def make_plan(sweep: Sweep, options: Options = Options(), file: str = "") -> Plan:
    """Expand and check a sweep, and look up its cells; nothing is written. file: as for `make_sheet`.

    Raises UserError, before anything starts, if a cell cannot run, or `options.only` names no cell.
    """
    problems = Problems()
    sheet, points = make_sheet(sweep, problems, file=file)
    named = frozenset(hash for text in options.only for hash in sheet.select(text, "--only"))
    refuse_unknown_names(sweep, sheet.cells.values())
    unlisted = count_unlisted(sheet)
    sheet.records.update(read_records(sheet.cells))
    return Plan(sweep, sheet, problems, points, options, named if options.only else None, unlisted)


def refuse_unknown_names(sweep: Sweep, cells: Iterable[Cell]) -> None:
    """Raise UserError if `names` has a word that no component has, or a dotted key that no run has."""
    own = {part for cell in cells for part in cell.run.components if ":" in part.name} if sweep.names else set()
    labels = {type(part).__name__: part.own_name or part.name for part in own}
    known = {name for registry, *_ in COMPONENTS.values() for name in registry} | set(labels.values())
    for key in sweep.names:
        if re.fullmatch(r"\w+", key) and key not in known and key not in RunConfig.model_fields:
            listing = "`fedray list algorithms|models|datasets|partitions`"
            raise unknown("names", key, known, listing, repr(labels[key]) if key in labels else "")
        if re.fullmatch(r"\w+(\.\w+)+", key) and key.partition(".")[0] not in RunConfig.model_fields:
            raise unknown("names", key.partition(".")[0], RunConfig.model_fields)
