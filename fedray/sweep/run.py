"""Driver of a sweep: runs the remaining cells, called by the command line or by a task in a cluster."""

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from fedray.cells.cell import Cell
from fedray.cells.status import Status
from fedray.cluster.connection import count_cpus, refuse_bad_address, use_cluster
from fedray.cluster.resources import describe_idle_gpus, list_nodes, refuse_infeasible, refuse_unseen
from fedray.common.errors import UserError, escape, format_count, name_place
from fedray.common.process import treat_sigterm_as_interrupt
from fedray.engine.process.device import isolate_run
from fedray.sweep import plan as planning
from fedray.sweep import storage
from fedray.sweep.plan import Options, Plan
from fedray.sweep.session import Session
from fedray.sweep.sweep import Sweep
from fedray.tracking.mirrors import refuse_missing_extras
from fedray.tracking.outbox import Outbox

POLL = 2.0
"""Seconds between checks of cells that another sweep runs."""


@isolate_run()
def plan_and_print(sweep: Sweep, file: str, options: Options = Options(), text: str = "") -> Plan:
    """Plan a sweep and print a summary. Raises a UserError that names the file; text: as for `make_plan`."""
    with name_place(file):
        plan = planning.make_plan(sweep, options, text)
    for line in describe_partial(sweep):
        print(escape(line))
    print(plan.describe(), flush=True)
    return plan


def describe_partial(sweep: Sweep) -> Iterator[str]:
    """Yield a line for each key of `grid` and `search` that some methods lack."""
    for key, (having, lacking) in sweep.points.partial.items():
        if key in sweep.keys:  # a change is set in all runs that have the key
            option = key.partition(".")[2]
            yield f"{sweep.name}: {key} varies for {', '.join(having)}; without {option}: {', '.join(lacking)}"


def drive(plan: Plan) -> int:
    """Run a planned sweep with this process as its driver, and print its counts.

    Return the exit code: 0; 1 if cells failed or are missing; 130 if the sweep was interrupted. Raises as `execute`.
    """
    session = execute(plan)
    counts = plan.sheet.counts
    ended = storage.correct_statuses(plan.sheet).counts  # also cells that were interrupted after their last round
    print(f"{plan.sweep.name}: " + ", ".join(f"{n} {status}" for status, n in sorted(ended.items())))
    if session.stopped:
        return 130
    if counts[Status.FAILED]:
        print(f"`fedray status {plan.sweep.name}` says why cells failed")
    return 1 if counts[Status.FAILED] or (counts[Status.MISSING] and not plan.options.only) else 0


def execute(plan: Plan) -> Session:
    """Run a planned sweep; return the session at its end, with the outcomes.

    Raises UserError, before anything is written that stays, if a trial can never be placed, another process runs this
    sweep, or a viewer of `runtime.mirror` is not installed.
    """
    refuse_missing_extras(kind for cell in plan.to_run for kind in cell.run.runtime.mirror)
    with contextlib.ExitStack() as stack:
        stack.enter_context(treat_sigterm_as_interrupt())
        if plan.to_run:
            refuse_bad_address(plan.options.address)
        stack.enter_context(storage.lock_sweep(plan.sweep.name, plan.sheet, [cell.hash for cell in plan.to_run]))
        if plan.to_run:
            with ThreadPoolExecutor(1, "imports") as pool:  # seconds each; Ray needs the main thread for signals
                logging.getLogger("fedray").info("%s: starting Ray", plan.sweep.name)
                imported = pool.submit(import_module, "fedray.sweep.tune")
                stack.enter_context(use_cluster(plan.options.address, _choose_preloads(plan)))
                imported.result()
            nodes = list_nodes()
            for runtime in plan.requests:
                refuse_infeasible(runtime, nodes)
            if line := describe_idle_gpus(plan.requests, nodes):
                print(f"{plan.sweep.name}: {line}", flush=True)
            with tempfile.NamedTemporaryFile(dir=storage.find_storage_parent(), prefix=".seen-") as marker:
                refuse_unseen(Path(marker.name))
        locks = stack.enter_context(storage.CellLocks(storage.get_cell_locks_file()))
        session = Session(plan, locks, stack.enter_context(Outbox()))
        if plan.unlisted:
            session.open()  # so that tables, too, tell at once which cells are this file's
        cells = session.take()
        try:
            _run_until_done(session, cells)
            storage.refuse_moved(plan.folder)
        except UserError:
            with contextlib.suppress(UserError):  # of the same store, say: the first one tells more
                session.close()
            raise
        except BaseException:
            session.close()
            raise
        session.close()
    return session


def _choose_preloads(plan: Plan) -> Sequence[str]:
    """Return the modules that Ray's processes (one per CPU) import at once.

    If each will be a trial's or an actor's, they import them while this process prepares.
    """
    wanted = sum(count * runtime.actor_count for runtime, count in plan.requests.items())
    spread = all(runtime.cpus_per_actor <= 1 and not runtime.gpus_per_actor for runtime in plan.requests)
    fills = min(wanted, plan.options.max_concurrent or wanted) >= count_cpus()
    return ["fedray.sweep.trainable"] if spread and fills else []


def _run_until_done(session: Session, cells: Sequence[Cell]) -> None:
    """Run the cells that no other sweep runs, and wait for the rest."""
    told = False
    while cells or session.left:
        cells = cells or session.take()
        if session.left and not told:
            told = True
            print(f"{describe_elsewhere(session)}; waiting for them", flush=True)
        if cells:
            from fedray.sweep.tune import run_cells  # here: a sweep with nothing to run does not need Tune

            run_cells(session, cells)
            if session.stopped:
                return
            cells = []
        elif session.left:
            try:
                time.sleep(POLL)
            except KeyboardInterrupt:
                print(f"{describe_elsewhere(session)}, which goes on with them", flush=True)
                raise


def describe_elsewhere(session: Session) -> str:
    """Return the number of cells that are left to other processes."""
    return f"{session.plan.sweep.name}: {format_count(len(session.left), 'cell')} being run by another process"
