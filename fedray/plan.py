"""What a call of a sweep will do: which cells there are, which are done, where their checkpoints lie."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fedray.config import Runtime
from fedray.sweepfile import Cell, Cells, Sweep
from fedray.tracking import Tracker

DONE = ("finished", "diverged", "stopped")
"""Outcomes that another call would only repeat."""


@dataclass(frozen=True)
class Plan:
    """What a call of a sweep will do."""

    cells: Cells
    statuses: dict[str, str]
    """Hash -> outcome known to MLflow."""
    force: bool

    @property
    def to_run(self) -> list[Cell]:
        return [cell for cell in self.cells.cells.values() if self.force or self.statuses.get(cell.hash) not in DONE]

    @property
    def requests(self) -> Counter[Runtime]:
        """What trials ask for, and how many ask it."""
        return Counter(cell.run.runtime for cell in self.to_run)


def plan(sweep: Sweep, tracker: Tracker, force: bool = False) -> Plan:
    """Expand and check a sweep. Raises UserError before anything starts."""
    cells = Cells(sweep)
    statuses = tracker.statuses()
    return Plan(cells, {cell: statuses[cell] for cell in cells.cells if cell in statuses}, force)


def storage() -> Path:
    """Where checkpoints live: $FEDRAY_STORAGE (shared by all nodes of a cluster), else .fedray here."""
    return Path(os.environ.get("FEDRAY_STORAGE", ".fedray")).expanduser().resolve()


def directory(cell: Cell) -> Path:
    """Where a cell's checkpoints are."""
    return storage() / "cells" / cell.hash


def execute(plan: Plan, tracker: Tracker, max_concurrent: int | None = None, address: str | None = None
            ) -> Counter[str]:
    """Run a sweep; how many of its cells have which outcome now (`missing`: none yet).

    Raises UserError before anything starts where a trial can never be placed.
    """
    sweep, cells = plan.cells.sweep, plan.cells.cells
    parent = tracker.open_sweep(sweep.name, sweep.description, [
        {"hash": cell.hash, "label": cell.label, "config": cell.run.resolved()} for cell in cells.values()])
    outcomes = dict(plan.statuses)
    counts = Counter[str]()
    try:
        if plan.to_run:
            from fedray.sweep import run_cells  # here: Ray takes seconds to import, and is not wanted for a second call

            outcomes |= run_cells(plan, tracker, parent, max_concurrent, address)
    finally:
        counts.update(outcomes.get(cell, "missing") for cell in cells)
        tracker.close_sweep(parent, counts)
    return counts
