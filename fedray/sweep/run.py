"""A sweep's driver: runs what is left to run, in this process or as a task of a cluster."""

import contextlib
import sys
import time
from collections import Counter
from dataclasses import replace

from fedray.common.errors import UserError
from fedray.common.signals import sigterm_as_interrupt
from fedray.sweep.grid import Sweep
from fedray.sweep.plan import Plan, plan
from fedray.sweep.storage import Claims, storage, sweep_lock
from fedray.tracking.store import outcomes
from fedray.tracking.tracker import Tracker

POLL = 2.0
"""Seconds between looks at cells that another sweep runs."""


def execute(plan: Plan, max_concurrent: int | None = None, address: str | None = None) -> Counter[str]:
    """Run a sweep; how many of its cells have which outcome now (`missing`: none yet).

    Raises UserError, before anything starts or is written to the store, where a trial can never be placed or another
    process runs this sweep.
    """
    sweep, cells = plan.cells.sweep, plan.cells.cells
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        stack.enter_context(sweep_lock(sweep.name))
        if plan.to_run:
            from fedray.sweep.tune import prepared_cluster

            stack.enter_context(prepared_cluster(plan, address))
        claims = stack.enter_context(Claims(storage() / "locks" / "cells"))
        tracker = Tracker()
        parent = tracker.open_sweep(
            sweep.name,
            sweep.description,
            [{"hash": cell.hash, "label": cell.label, "config": cell.run.resolved()} for cell in cells.values()],
        )
        statuses = {cell: outcome.status for cell, outcome in plan.known.items()}
        counts = Counter[str]()
        try:
            _run(plan, claims, tracker, parent, max_concurrent, statuses)
        finally:
            counts.update(statuses.get(cell, "missing") for cell in cells)
            tracker.close_sweep(parent, counts)
            tracker.close()
    return counts


def _run(
    plan: Plan, claims: Claims, tracker: Tracker, parent: str, max_concurrent: int | None, statuses: dict[str, str]
) -> None:
    """Run what is to run and no other sweep runs; wait for what another one does. `statuses` is kept up to date."""
    left = {cell.hash for cell in plan.to_run}
    told = False
    while left:
        mine = claims.take(left)
        if left - mine and not told:
            told = True
            print(
                f"{plan.cells.sweep.name}: {len(left - mine)} cells are being run by another sweep; waiting for them",
                flush=True,
            )
        if mine:
            tracker.close()
            # Read again now that nobody else can run them: the sweep that did may just have finished them.
            known = {cell: outcome for cell, outcome in outcomes().items() if cell in plan.cells.cells}
            part = replace(plan, known=known, chosen=frozenset(mine))
            statuses.update((cell, known[cell].status) for cell in mine & known.keys())
            for cell in mine - {cell.hash for cell in part.to_run}:
                claims.release(cell)
            if part.to_run:
                from fedray.sweep.tune import run_cells

                run_cells(part, tracker, parent, max_concurrent, claims.release, statuses)
                if any(statuses.get(cell.hash) in (None, "running", "interrupted") for cell in part.to_run):
                    return  # told to stop
            left -= mine
        if left:
            time.sleep(POLL)


def sweep_here(
    loaded: Sweep, file: str, address: str | None, force: bool, max_concurrent: int | None, dry_run: bool = False
) -> int:
    """A sweep with this process as its driver; the exit code."""
    try:
        planned = plan(loaded, force)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    known = [outcome.status for outcome in planned.known.values()]
    print(
        f"{loaded.name}: {len(planned.cells.cells)} cells, {known.count('finished')} finished, "
        f"{known.count('diverged')} diverged, {len(planned.to_run)} to run"
    )
    if dry_run:
        from fedray.sweep.dry_run import show

        show(planned, address)
        return 0
    counts = execute(planned, max_concurrent, address)
    print(f"{loaded.name}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    if counts["interrupted"]:
        print("interrupted: call the same command again to go on from the checkpoints", file=sys.stderr)
        return 130
    return 1 if counts["failed"] or counts["missing"] else 0
