"""One cell on its own, for `fedray run`: found in a file, locked while it runs."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedray.cells.selection import select_cells
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.device import refuse_missing
from fedray.sweep.file.dotted import apply_draw, with_key
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell, Problems, make_label
from fedray.sweep.plan.draws import find_axes, iter_points
from fedray.sweep.plan.storage import CellLocks, get_cell_dir, get_cell_locks_file, refuse_unwritable_storage


def load_cell(
    document: Mapping[str, Any],
    file: Path,
    which: str | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    backend: str | None = None,
) -> tuple[Cell, Problem]:
    """Return the cell of a run's file, or one cell of a sweep's file, and its problem.

    Args:
        document: the file's contents.
        file: its path, for messages.
        which: for a sweep, the cell, as in `pick_point`.
        changes: dotted key -> value, from `--set`.
        backend: the value of `--backend`; None if it was not given.

    Raises:
        UserError: there is no such cell, or its configuration, data or model cannot be used.
    """
    if "base" in document:
        written = pick_point(Sweep.parse(document, file=file), which)
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
    problems = Problems()
    cell = problems.make_cell(run, make_label(point, run))
    problem = problems.get_problem(cell)
    if run.runtime.backend == "inline":
        refuse_missing(run.runtime.torch_device)
    problem.build_network("cpu")  # before anything is written
    return cell, problem


def _is_valid(point: Mapping[str, Any]) -> bool:
    """Return True if a configuration can be parsed; then a mistake must be in the changes to it."""
    try:
        RunConfig.parse(point)
    except UserError:
        return False
    return True


def pick_point(sweep: Sweep, which: str | None = None) -> dict[str, Any]:
    """Return one configuration of a sweep as the file has it.

    Args:
        sweep: the file.
        which: the cell, as `select_cells` takes it; None for the first.

    Raises:
        UserError: there is no such cell, or there are several.
    """
    if which is None:
        return next(iter_points(sweep))
    problems, points, labels = Problems(), dict[str, dict[str, Any]](), dict[str, str]()
    varied = [key for key, varies in find_axes(sweep).items() if varies]
    for point in iter_points(sweep):
        run = RunConfig.parse(point)
        cell = problems.make_cell(run, make_label(point, run, varied))
        points.setdefault(cell.hash, point)
        labels.setdefault(cell.hash, cell.label)
    found = select_cells(labels, which, "--cell")
    if len(found) > 1:
        raise UserError(f"--cell: {which!r} names {len(found)} cells, such as {labels[found[0]]!r}; one is required")
    return points[found[0]]


def hold_cell(hash: str, again: bool) -> AbstractContextManager[Path]:
    """Return a context that locks a cell and yields its directory, the same that a sweep would use.

    Args:
        hash: the cell's hash.
        again: empty the directory first; earlier runs no longer count.

    Raises:
        UserError: store or storage cannot be written; on entering, also that another process runs the cell.
    """
    from fedray.common.location import refuse_unwritable_store

    refuse_unwritable_storage()
    refuse_unwritable_store()
    return _hold_cell(hash, again)


@contextlib.contextmanager
def _hold_cell(hash: str, again: bool) -> Iterator[Path]:
    from fedray.tracking.store import open_store  # here: MLflow takes seconds to import

    open_store(create=True)  # before anything is written to the storage
    directory = get_cell_dir(hash)
    with CellLocks(get_cell_locks_file()) as locks:
        if not locks.take([hash]):
            raise UserError(f"run: another process is running this cell, {hash}; wait for it, or give --no-track")
        if again and directory.exists():
            from fedray.tracking.tracker import Tracker  # here: MLflow takes seconds to import

            Tracker().supersede([hash])
            shutil.rmtree(directory)
        yield directory
