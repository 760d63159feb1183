"""Folders of the storage that may be removed: folders of finished cells, and what killed drivers have left."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedray.cells.status import Status
from fedray.common.location import get_storage
from fedray.sweep.plan.storage import (
    CellLocks,
    find_running_sweeps,
    get_cell_locks_file,
    get_sweep_lock_file,
    list_abandoned,
)
from fedray.tracking.store import find_records, find_sweeps, open_reader, read_cells, search
from fedray.tracking.stored_sweep import read_stored_sweep

DONE = [status for status in Status if status.is_final]
"""Statuses of cells that no call runs again, so that their checkpoints are no longer needed."""

REMOVED = "its runs were removed"
GO = [*DONE, REMOVED]
"""Reasons to remove a cell's folder."""


@dataclass(frozen=True)
class CellFolder:
    """A folder of the storage: its size, and why it may be removed or has to stay."""

    path: Path
    nbytes: int
    why: str


@contextlib.contextmanager
def find_removable(name: str | None = None) -> Iterator[tuple[list[CellFolder], list[CellFolder]]]:
    """Yield the folders that may be removed, and those that stay, of the storage or of one sweep.

    For the duration of the block no other process can begin to run a cell that may be removed. Raises UserError if no
    store knows which cells are done, or it does not know the sweep.
    """
    root = get_storage()
    found = sorted((root / "cells").iterdir()) if (root / "cells").is_dir() else []
    cells = None if name is None else read_stored_sweep(name).cells
    folders = [path for path in found if _is_cell_dir(path) and (cells is None or path.name in cells)]
    client, experiment = open_reader()
    records = find_records(client, experiment, [path.name for path in folders])
    odd = [path for path in found if name is None and not _is_cell_dir(path)]
    goes, stays = list[CellFolder](), [CellFolder(path, path.lstat().st_size, "not a cell's folder") for path in odd]
    with CellLocks(get_cell_locks_file()) as locks, find_running_sweeps() as running_locks:
        running = {
            name: run
            for name, run in find_sweeps(client, experiment).items()
            if get_sweep_lock_file(name) in running_locks
        }
        theirs = {cell for run in running.values() for cell in read_cells(client, run)}
        for path in folders:
            record = records.get(path.name)
            removed = record is None and any(search(client, experiment, f"tags.`fedray.cell` = '{path.name}'", True))
            why = REMOVED if removed else "is not in this store" if record is None else record.ending.status
            if path.name in theirs or (record is not None and record.tags.get("fedray.sweep") in running):
                why = "belongs to a sweep that is running"
            elif why in GO and not locks.take([path.name]):
                why = "is being run"
            (goes if why in GO else stays).append(CellFolder(path, _measure_size(path), why))
        if name is None:
            goes += [CellFolder(path, _measure_size(path), "left by a killed sweep") for path in list_abandoned()]
        yield goes, stays


def _is_cell_dir(path: Path) -> bool:
    """Return True for a real folder that is named by a hash; links and other names are none of fedray's."""
    return re.fullmatch(r"[0-9a-f]{16}", path.name) is not None and path.is_dir() and not path.is_symlink()


def _measure_size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
