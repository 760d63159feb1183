"""What a call of a sweep will do: which cells there are, which are done, where their checkpoints lie."""

import contextlib
import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedray.claims import Claims
from fedray.config import Runtime
from fedray.errors import UserError
from fedray.signals import sigterm_as_interrupt
from fedray.sweepfile import Cell, Cells, Sweep
from fedray.tracking import Outcome, Tracker, outcomes

POLL = 2.0
"""Seconds between looks at cells that another sweep runs."""


@dataclass(frozen=True)
class Plan:
    """What a call of a sweep will do."""

    cells: Cells
    known: dict[str, Outcome]
    """Hash -> outcome in MLflow."""
    force: bool
    chosen: frozenset[str] | None = None
    """Hashes of the cells that this process may run; None: all."""

    @property
    def to_run(self) -> list[Cell]:
        return [cell for cell in self.cells.cells.values()
                if (self.chosen is None or cell.hash in self.chosen) and (self.force or not self._done(cell))]

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
        stack.enter_context(sigterm_as_interrupt())
        stack.enter_context(alone(sweep.name))
        if plan.to_run:
            from fedray.sweep import placed  # here: Ray takes seconds to import, which a second call saves

            stack.enter_context(placed(plan, address))
        claims = stack.enter_context(Claims(storage() / "locks" / "cells"))
        tracker = Tracker()
        parent = tracker.open_sweep(sweep.name, sweep.description, [
            {"hash": cell.hash, "label": cell.label, "config": cell.run.resolved()} for cell in cells.values()])
        statuses = {cell: outcome.status for cell, outcome in plan.known.items()}
        counts = Counter[str]()
        try:
            _run(plan, claims, tracker, parent, max_concurrent, statuses)
        finally:
            counts.update(statuses.get(cell, "missing") for cell in cells)
            tracker.close_sweep(parent, counts)
            tracker.close()
    return counts


def _run(plan: Plan, claims: Claims, tracker: Tracker, parent: str, max_concurrent: int | None,
         statuses: dict[str, str]) -> None:
    """Run what is to run and no other sweep runs; wait for what another one does. `statuses` is kept up to date."""
    left = {cell.hash for cell in plan.to_run}
    told = False
    while left:
        mine = claims.take(left)
        if left - mine and not told:
            told = True
            print(f"{plan.cells.sweep.name}: {len(left - mine)} cells are being run by another sweep; waiting for them",
                  flush=True)
        if mine:
            tracker.close()
            # Read again now that nobody else can run them: the sweep that did may just have finished them.
            known = {cell: outcome for cell, outcome in outcomes().items() if cell in plan.cells.cells}
            part = replace(plan, known=known, chosen=frozenset(mine))
            statuses.update((cell, known[cell].status) for cell in mine & known.keys())
            for cell in mine - {cell.hash for cell in part.to_run}:
                claims.release(cell)
            if part.to_run:
                from fedray.sweep import run_cells

                run_cells(part, tracker, parent, max_concurrent, claims.release, statuses)
                if any(statuses.get(cell.hash) in (None, "running", "interrupted") for cell in part.to_run):
                    return  # told to stop
            left -= mine
        if left:
            time.sleep(POLL)
