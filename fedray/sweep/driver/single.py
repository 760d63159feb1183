"""One cell on its own, for `fedray run`: found in a file, locked while it runs."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedray.cells.spec import select_cells
from fedray.common.errors import Diverged, UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.device import refuse_missing
from fedray.sweep.file.points import apply_draw, with_key
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell, CellMaker, Problems, make_label
from fedray.sweep.plan.draws import iter_points
from fedray.sweep.plan.plan import Plan
from fedray.sweep.plan.storage import (
    CellLocks,
    get_cell_dir,
    get_cell_locks_file,
    is_sweep_running,
    lock_registration,
    refuse_unwritable_storage,
)


def load_cell(
    document: Mapping[str, Any],
    file: Path,
    which: str | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    backend: str | None = None,
) -> tuple[Cell, Problem, Plan | None]:
    """Return the cell of a run's file, or one cell of a sweep's file, its problem, and the sweep.

    Returns:
        The sweep is None unless `which` names a cell of it and the changes leave it that cell.

    Raises:
        UserError: there is no such cell, or its configuration, data or model cannot be used.
    """
    listed, problems = None, Problems()
    if "base" in document:
        sweep = Sweep.parse(document, file=file)
        if which is None:
            written = next(iter_points(sweep))
        else:
            written, listed = pick_point(sweep, which)
            problems = listed.problems
    elif which is not None:
        raise UserError(f"--cell: {file} is one run, not a sweep")
    else:
        written = dict(document)
    point = apply_draw(written, changes)
    try:
        run = RunConfig.parse(point if backend is None else with_key(point, "runtime.backend", backend))
    except UserError as error:
        source = "--backend" if _is_valid(point) else "--set" if _is_valid(written) else file
        raise UserError(f"{source}: {error}") from None
    cell = problems.make_cell(run, make_label(point, run))
    if listed is not None:
        listed, cell = (listed, listed.cells[cell.hash].with_run(run)) if cell.hash in listed.cells else (None, cell)
    problem = problems.get_problem(cell)
    if run.runtime.backend == "inline":
        refuse_missing(run.runtime.torch_device)
    problem.build_network("cpu")  # before anything is written
    return cell, problem, listed


def _is_valid(point: Mapping[str, Any]) -> bool:
    """Return True if a configuration can be parsed; then a mistake must be in the changes to it."""
    try:
        RunConfig.parse(point)
    except UserError:
        return False
    return True


def pick_point(sweep: Sweep, which: str) -> tuple[dict[str, Any], Plan]:
    """Return one configuration of a sweep as the file has it, and the sweep's plan, without what the store knows.

    Raises:
        UserError: there is no such cell, or there are several.
    """
    file = sweep
    if sweep.tune is not None:
        if sweep.tune.blocks:
            raise UserError(f"--cell: {sweep.name} has tune.blocks, so it is several sweeps; run it whole")
        from fedray.sweep.driver.stages import make_tune_stage  # here: it imports Ray

        sweep = make_tune_stage(sweep)
    maker, points, cells = CellMaker(sweep), dict[str, dict[str, Any]](), dict[str, Cell]()
    for point in iter_points(sweep):
        cell = maker.make(point, check=False)
        points.setdefault(cell.hash, point)
        cells.setdefault(cell.hash, cell)
    found = select_cells({hash: cell.label for hash, cell in cells.items()}, which, "--cell")
    if len(found) > 1:
        raise UserError(
            f"--cell: {which!r} names {len(found)} cells, such as {cells[found[0]].label!r}; one is required"
        )
    return points[found[0]], Plan(maker, cells, {}, file=file)


def hold_cell(hash: str, again: bool, listed: Plan | None = None) -> AbstractContextManager[Path]:
    """Return a context that locks a cell and yields its directory, the same that a sweep would use.

    Raises:
        UserError: store or storage cannot be written; on entering, also that another process runs the cell.
    """
    from fedray.common.location import refuse_unwritable_store

    refuse_unwritable_storage()
    refuse_unwritable_store()
    return _hold_cell(hash, again, listed)


@contextlib.contextmanager
def _hold_cell(hash: str, again: bool, listed: Plan | None) -> Iterator[Path]:
    from fedray.tracking.store import open_store  # here: MLflow takes seconds to import
    from fedray.tracking.tracker import Tracker

    open_store(create=True)  # before anything is written to the storage
    directory = get_cell_dir(hash)
    with CellLocks(get_cell_locks_file()) as locks:
        if not locks.take([hash]):
            raise UserError(f"run: another process is running this cell, {hash}; wait for it, or give --no-track")
        if again and directory.exists():
            Tracker().supersede([hash])
            shutil.rmtree(directory)
        if listed is not None and not is_sweep_running(listed.sweep.name):
            sweep = listed.sweep
            with lock_registration():
                Tracker().list_sweep(
                    sweep.name,
                    sweep.description,
                    listed.list_cells(),
                    listed.text,
                )
        try:
            yield directory
        except Diverged:
            _close(listed)
            raise
        else:
            _close(listed)


def _close(listed: Plan | None) -> None:
    """Close the run of a sweep none of whose cells is left, unless a driver of the whole sweep will."""
    from fedray.tracking.tracker import Tracker  # here: MLflow takes seconds to import

    if listed is not None and not is_sweep_running(listed.sweep.name):
        Tracker().close_whole_sweep(listed.sweep.name, listed.cells)
