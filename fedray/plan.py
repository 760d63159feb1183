"""What a call of a sweep will do: which cells there are, which are done, where their checkpoints lie."""

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedray.config import Runtime
from fedray.errors import UserError
from fedray.sweepfile import Cell, Cells, Sweep
from fedray.tracking import Outcome, Tracker, outcomes


@dataclass(frozen=True)
class Plan:
    """What a call of a sweep will do."""

    cells: Cells
    known: dict[str, Outcome]
    """Hash -> outcome in MLflow."""
    force: bool

    @property
    def to_run(self) -> list[Cell]:
        return [cell for cell in self.cells.cells.values() if self.force or not self._done(cell)]

    @property
    def requests(self) -> Counter[Runtime]:
        """What trials ask for, and how many ask it."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def _done(self, cell: Cell) -> bool:
        """Whether another call would only repeat the outcome; what another rule stopped early is not done."""
        outcome = self.known.get(cell.hash)
        if outcome is None:
            return False
        stopped_alike = outcome.status == "stopped" and outcome.stopper == self.cells.sweep.stopper
        return outcome.status in ("finished", "diverged") or stopped_alike


def plan(sweep: Sweep, force: bool = False) -> Plan:
    """Expand and check a sweep; nothing is written. Raises UserError before anything starts."""
    cells = Cells(sweep)
    known = outcomes()
    return Plan(cells, {cell: known[cell] for cell in cells.cells if cell in known}, force)


def storage() -> Path:
    """Where checkpoints live: $FEDRAY_STORAGE (shared by all nodes of a cluster), else .fedray here."""
    return Path(os.environ.get("FEDRAY_STORAGE", ".fedray")).expanduser().resolve()


def directory(cell: Cell) -> Path:
    """Where a cell's checkpoints are."""
    return storage() / "cells" / cell.hash


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """One process per sweep and storage; the lock goes with its holder, however that ends. Raises UserError."""
    path = storage() / "locks" / name.replace("/", "_")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{name}: another process is running this sweep (it holds {path})") from None
        yield


def execute(plan: Plan, max_concurrent: int | None = None, address: str | None = None) -> Counter[str]:
    """Run a sweep; how many of its cells have which outcome now (`missing`: none yet).

    Raises UserError, before anything starts or is written to the store, where a trial can never be placed or another
    process runs this sweep.
    """
    sweep, cells = plan.cells.sweep, plan.cells.cells
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone(sweep.name))
        if plan.to_run:
            from fedray.sweep import placed, run_cells  # here: Ray takes seconds to import, which a second call saves

            stack.enter_context(placed(plan, address))
        tracker = Tracker()
        parent = tracker.open_sweep(sweep.name, sweep.description, [
            {"hash": cell.hash, "label": cell.label, "config": cell.run.resolved()} for cell in cells.values()])
        statuses = {cell: outcome.status for cell, outcome in plan.known.items()}
        counts = Counter[str]()
        try:
            if plan.to_run:
                statuses |= run_cells(plan, tracker, parent, max_concurrent)
        finally:
            counts.update(statuses.get(cell, "missing") for cell in cells)
            tracker.close_sweep(parent, counts)
            tracker.close()
    return counts
