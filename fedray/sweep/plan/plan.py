"""Plan of a call of a sweep: its cells, and which of them are done."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedray.cells.record import RunRecord
from fedray.cells.spec import select_cells
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count, unknown
from fedray.config import COMPONENTS, RunConfig, Runtime
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell, CellMaker, Problems
from fedray.sweep.plan.storage import is_trained
from fedray.tracking.store import count_unlisted, describe_unlisted, read_records


@dataclass(frozen=True)
class Options:
    """How a call runs a sweep.

    Attributes:
        force: True to run finished cells again.
        only: the cells to run, as `select_cells` takes them; empty for all.
        max_concurrent: maximum number of trials at a time; None for as many as fit.
        address: a cluster's, `auto` or HOST:PORT; None for $RAY_ADDRESS, or this machine if that is not set.
    """

    force: bool = False
    only: Sequence[str] = ()
    max_concurrent: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of a call of a sweep, never modified; `dataclasses.replace` makes another.

    Attributes:
        maker: makes the cells, and holds their data.
        cells: hash -> cell, in the sweep's order.
        known: hash -> record in MLflow, for cells that have one.
        options: how this call runs them.
        chosen: hashes of the cells that this call may run; None for all.
        file: the whole file, if the sweep is one of its stages; None: the sweep is the file.
        unlisted: number of finished cells in MLflow that ran under this sweep's name and are not among `cells`.
        folder: the working folder; relative paths mean this one.
    """

    maker: CellMaker
    cells: Mapping[str, Cell]
    known: Mapping[str, RunRecord]
    options: Options = Options()
    chosen: frozenset[str] | None = None
    file: Sweep | None = None
    unlisted: int = 0
    folder: Path = field(default_factory=Path.cwd)

    @property
    def sweep(self) -> Sweep:
        """The file."""
        return self.maker.sweep

    @property
    def text(self) -> str:
        """The whole file, with the changes of `--smoke` and `--set`."""
        return (self.file or self.sweep).to_yaml()

    @property
    def problems(self) -> Problems:
        """The cells' data."""
        return self.maker.problems

    @property
    def to_run(self) -> list[Cell]:
        """The cells that this call has to run."""
        return [
            cell
            for cell in self.cells.values()
            if self.is_chosen(cell) and (self.options.force or not self.is_done(self.known.get(cell.hash)))
        ]

    def is_chosen(self, cell: Cell) -> bool:
        """Return True if this call may run the cell."""
        return self.chosen is None or cell.hash in self.chosen

    @property
    def requests(self) -> Counter[Runtime]:
        """Resource requests of trials, with the number of trials that make each."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def list_cells(self) -> list[dict[str, Any]]:
        """Return the cells as the sweep's run in MLflow lists them."""
        return [cell.to_json() for cell in self.cells.values()]

    def describe(self) -> str:
        """Return one line: the number of cells, of finished and diverged ones, and of those left to run.

        A second one warns of finished cells of the same name that are not among them.
        """
        name, statuses = self.sweep.name, Counter(record.ending.status for record in self.known.values())
        unlogged = sum(map(self.is_unlogged, self.to_run))
        counts = (
            f"{name}: {format_count(len(self.cells), 'cell')}, {statuses[Status.FINISHED]} finished, "
            f"{statuses[Status.DIVERGED]} diverged, {len(self.to_run)} to run"
        )
        counts += f", {unlogged} of them {Status.UNLOGGED}" if unlogged else ""
        return "\n".join(filter(None, [counts, describe_unlisted(name, self.unlisted)]))

    def get_values(self, records: Mapping[str, RunRecord]) -> dict[str, float | None]:
        """Return the selection metric of each record, for cells that need not run again.

        Raises:
            UserError: a finished run has not logged the metric.
        """
        return {
            cell: get_value(record, self.sweep.select)
            for cell, record in records.items()
            if cell in self.cells and self.is_done(record)
        }

    def is_unlogged(self, cell: Cell) -> bool:
        """Return True if a killed call has trained the cell to its end, and this one only has to log it."""
        record = self.known.get(cell.hash)
        return not self.options.force and (record is None or record.ending.status.is_open) and is_trained(cell)

    def is_done(self, record: RunRecord | None) -> bool:
        """Return True if another call would only repeat the run; a cell that another rule stopped is not done."""
        if record is None:
            return False
        ending = record.ending
        return ending.status.is_final or (ending.status.is_early and ending.stopper == self.sweep.stopper)


def get_value(record: RunRecord, select: str) -> float | None:
    """Return the selection metric, or None unless the run has finished. Raises UserError if it was not logged."""
    if record.ending.status is not Status.FINISHED:
        return None
    if select not in (metrics := record.summarise()):
        why = (
            "all test samples are of one class"
            if select.endswith("test_auc")
            else "evaluation.personal gives personal accuracies"
        )
        raise UserError(f"select: {select} is not logged by the runs; {why}")
    return metrics[select]


def make_plan(sweep: Sweep, options: Options = Options()) -> Plan:
    """Expand and check a sweep, and look up its cells; nothing is written.

    Args:
        sweep: the file.
        options: how this call runs it.

    Raises:
        UserError: a cell cannot run, or `options.only` names no cell. Raised before anything starts.
    """
    maker = CellMaker(sweep)
    cells = maker.make_all()
    labels = {hash: cell.label for hash, cell in cells.items()}
    named = frozenset(hash for text in options.only for hash in select_cells(labels, text, "--only"))
    refuse_unknown_names(sweep, cells.values())
    chosen, unlisted = named if options.only else None, count_unlisted(sweep.name, cells)
    return Plan(maker, cells, read_records(cells), options, chosen, unlisted=unlisted)


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
