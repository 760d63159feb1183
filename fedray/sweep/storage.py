"""The storage: who runs a cell, and what may be removed. Two sweeps on one storage never run a shared cell twice.

A cell's lock is a locked byte of one file, at an offset given by the cell's hash. The operating system releases it
when its holder ends, however that ends; on NFS the lock daemon does the same.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError, format_duration, redact, truncate_repr
from fedray.common.location import get_storage
from fedray.tracking.store import find_records, find_sweeps, open_reader, read_cells, read_stored_sweep, search

OFFSETS = 2**62
"""Offsets below this are valid everywhere; the chance that two of 10^4 cells share one is 10^-11."""


class CellLocks(contextlib.AbstractContextManager["CellLocks"]):
    """Cells locked by this process. One object per process and file: closing any of them would release all locks."""

    opened: ClassVar[int] = 0
    """How many this process has open."""

    def __init__(self, path: Path, looks: bool = False) -> None:
        """looks: only to see which cells others hold, in a file that is there and may be read-only."""
        self._path, self._file = path, _open_lock(path, "rb" if looks else "a+b")
        self._how = fcntl.LOCK_NB | (fcntl.LOCK_SH if looks else fcntl.LOCK_EX)
        CellLocks.opened += 1

    def take(self, cells: Iterable[str]) -> set[str]:
        """Lock cells by hash, without waiting. Returns the cells that no other process holds."""
        taken = set()
        for cell in cells:
            try:
                fcntl.lockf(self._file, self._how, 1, int(cell, 16) % OFFSETS)
            except (BlockingIOError, PermissionError):
                continue
            except OSError as error:
                raise _explain_no_locks(self._path.parent, error) from None
            taken.add(cell)
        return taken

    def release(self, cell: str) -> None:
        """Release a cell whose outcome is known."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, int(cell, 16) % OFFSETS)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        CellLocks.opened -= 1


def _open_lock(path: Path, mode: str = "a") -> IO[Any]:
    """Open a lock's file, created if it is missing and not only read. Raises UserError for all but files: a pipe may
    never open."""
    try:
        if mode[0] == "a":
            path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not path.is_file():
            raise UserError(f"FEDRAY_STORAGE: {path} is not a regular file; remove it")
        return path.open(mode)
    except OSError as error:
        raise UserError(f"FEDRAY_STORAGE: {path} cannot be opened: {error.strerror}") from None


def find_storage_parent(folder: str = "") -> Path:
    """Return the storage, or a folder in it, or what is above it and nearest of what exists."""
    wanted = get_storage() / folder
    return next(path for path in (wanted, *wanted.parents) if os.path.lexists(path))


def refuse_unwritable_storage() -> None:
    """Refuse a storage that cannot be written to or created, without creating it. Raises UserError."""
    path = os.environ.get("FEDRAY_STORAGE", "")
    if "://" in path:
        raise UserError(f"FEDRAY_STORAGE: found {truncate_repr(redact(path))}; expected a directory, got an address")
    for folder in ("cells", "locks", "tune"):
        nearest = find_storage_parent(folder)
        try:
            with tempfile.TemporaryFile(dir=nearest):
                pass
        except OSError as error:
            shown = max(get_storage(), nearest, key=lambda path: len(path.parts))
            raise UserError(
                f"FEDRAY_STORAGE: cannot write {shown}: {error.strerror}; set it to a directory that can be written"
            ) from None


@contextlib.contextmanager
def make_scratch(sweep: str) -> Iterator[Path]:
    """Yield a directory in the storage for the duration of a block, for the process that holds the sweep's lock.

    It is named like the lock. What a killed process has left there goes, at the next call or with `fedray clean`.
    """
    folder = get_storage() / "tune" / get_sweep_lock_file(sweep).name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def get_cell_dir(hash: str) -> Path:
    """Return the folder of a cell's checkpoints."""
    return get_storage() / "cells" / hash


def make_cell_dir(hash: str) -> Path:
    """Make the folder of a cell, before the store says that it runs: so it is known as killed if it is.

    What an earlier failure left there goes.
    """
    directory = get_cell_dir(hash)
    with contextlib.suppress(OSError):  # a full disk: its first checkpoint says so
        directory.mkdir(parents=True, exist_ok=True)
        get_traceback_file(hash).unlink(missing_ok=True)
    return directory


def get_traceback_file(hash: str) -> Path:
    """Return the file of the traceback with which a cell has failed last."""
    return get_cell_dir(hash) / "traceback.txt"


def get_cell_locks_file() -> Path:
    """Return the file in which cells are locked; no sweep's name starts with a dot."""
    return get_storage() / "locks" / ".cells"


def get_sweep_lock_file(name: str) -> Path:
    """Return the file that a process locks while it runs the sweep; no sweep's name contains the `%` used for `/`."""
    return get_storage() / "locks" / name.replace("/", "%")


@contextlib.contextmanager
def lock_registration() -> Iterator[None]:
    """Let one process at a time list a sweep in the store that runs cells of it on their own; others wait."""
    with _open_lock(get_storage() / "locks" / ".listing") as file:
        _try_lock(file, fcntl.LOCK_EX)
        yield


def find_started_sweeps() -> dict[str, bool]:
    """Return the names of the sweeps that were started on this storage -> whether a process runs it now, from their
    locks. Nothing is created."""
    names = (file.name.replace("%", "/") for file in _list_sweep_locks())
    return {name: is_sweep_running(name) for name in names}


def _list_sweep_locks() -> list[Path]:
    """Return the files that `get_sweep_lock_file` has named, in order; none if nothing has run here."""
    folder = get_storage() / "locks"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in files if file.is_file() and file.name[0] != "."]


def is_sweep_running(name: str) -> bool:
    """Return True if a process holds the sweep's lock. Nothing is created."""
    file = get_sweep_lock_file(name)
    if not file.is_file():
        return False
    with _open_lock(file, "r") as opened:
        return not _try_lock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)


class Call(NamedTuple):
    """What a sweep's lock tells of its last call: the cells and the hashes of those to run, when it began, and when its
    lock was touched, in Unix time; empty and NaN if it has ended by itself."""

    sheet: Sheet
    to_run: frozenset[str] = frozenset()
    began: float = math.nan
    touched: float = math.nan
    is_running: bool = False

    @property
    def is_starting(self) -> bool:
        """True if a process runs the sweep and no cell has started yet."""
        return self.is_running and self.touched < self.began + 0.5

    def describe(self) -> str:
        """Return how far the sweep's process is; empty if there is none."""
        if self.is_starting:
            return f"starting, {format_duration(round(time.time() - self.began))} so far: Ray, then the first processes"
        return "running now" if self.is_running else ""


def read_call(name: str) -> Call:
    """Return the last call of a sweep in this storage."""
    file, is_running = get_sweep_lock_file(name), is_sweep_running(name)
    try:
        found = json.loads(file.read_text())
        sheet = Sheet(name, {cell.hash: cell for cell in map(Cell.from_json, found["cells"])})
        began, to_run = float(found.get("began", math.nan)), frozenset(map(str, found.get("to_run", ())))
        return Call(sheet, to_run, began, file.stat().st_mtime, is_running)
    except (OSError, ValueError, LookupError, TypeError):  # it is being written, or another file's
        return Call(Sheet(name), is_running=is_running)


def note_first_cell(name: str) -> None:
    """Note in a sweep's lock that its first cell starts: `fedray status` tells from here how long it takes."""
    with contextlib.suppress(OSError):
        path = get_sweep_lock_file(name)
        now = max(time.time(), path.stat().st_mtime + 1)  # by this machine's clock, not the storage's server's
        os.utime(path, (now, now))


def count_kept_rounds(cell: Cell) -> int:
    """Return the round of the cell's newest checkpoint in this storage; 0 if it has none."""
    names = (path.stem.rpartition("-")[2] for path in get_cell_dir(cell.hash).glob("checkpoint-*.json"))
    return max((int(round) for round in names if round.isdecimal()), default=0)


def describe_kept(cell: Cell) -> str:
    """Return where a call that is run again goes on with an interrupted cell."""
    kept, rounds = count_kept_rounds(cell), cell.get("training.rounds")
    return f"round {kept} of {rounds}" if kept else "no checkpoint here yet"


def find_last_round(cell: Cell) -> int:
    """Return the last evaluated round of the cell here, or its newest checkpoint's if that is later; 0 for neither."""
    last = 0
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # there is none; it is being written
        last = int(json.loads((get_cell_dir(cell.hash) / "rows.jsonl").read_bytes().splitlines()[-1])["round"])
    return max(last, count_kept_rounds(cell))


def is_trained(cell: Cell) -> bool:
    """Return True if this storage has a checkpoint of the cell's last round."""
    return (get_cell_dir(cell.hash) / f"checkpoint-{cell.get('training.rounds')}.json").is_file()


def find_killed(cells: Iterable[str]) -> set[str]:
    """Return the cells with a folder in this storage that no process runs, of cells that have begun.

    A process that runs cells itself finds none: looking would release its locks.
    """
    known = [cell for cell in cells if re.fullmatch("[0-9a-f]+", cell) and get_cell_dir(cell).is_dir()]
    if not known or CellLocks.opened:
        return set()
    if not get_cell_locks_file().exists():
        return set(known)
    with CellLocks(get_cell_locks_file(), looks=True) as locks:
        return locks.take(known)


def correct_statuses(sheet: Sheet) -> Sheet:
    """Return a sheet whose open cells have the statuses that this machine's processes and checkpoints give them.

    A cell with its last checkpoint is unlogged; one that has begun is running, or interrupted if its process is gone or
    has not come to it yet.
    """
    records = dict(sheet.records)
    is_open = (cell for cell in sheet.cells.values() if sheet.get_status(cell.hash).is_open)
    begun = [cell for cell in is_open if cell.hash in records or get_cell_dir(cell.hash).is_dir()]
    killed = find_killed(cell.hash for cell in begun)
    killed |= call.to_run if (call := read_call(sheet.name)).is_starting else set()
    for cell in begun:
        if cell.hash in killed and cell.hash not in records and not count_kept_rounds(cell):
            continue  # its run was removed, or it was killed before its first checkpoint
        record = records.get(cell.hash, Record(Ending(Status.RUNNING)))
        if is_trained(cell):
            status = Status.UNLOGGED
        elif cell.hash in killed:
            status = Status.INTERRUPTED
        else:
            status = record.ending.status
        records[cell.hash] = replace(record, ending=replace(record.ending, status=status))
    return replace(sheet, records=records)


@contextlib.contextmanager
def lock_sweep(name: str, sheet: Sheet | None = None, to_run: Iterable[str] = ()) -> Iterator[None]:
    """Allow one process per sweep and storage; the lock ends with its holder, however that ends.

    Until the block ends, the lock's file has the sweep's cells and the hashes of those to run: `fedray status` tells
    how far a sweep is that the store does not know, and how long it takes. If the block raises before anything else
    was written to a new storage, it goes again. Raises UserError if another process runs the sweep.
    """
    path, above = get_sweep_lock_file(name), find_storage_parent("locks")
    new = not path.exists()
    with _open_lock(path) as file:
        if not _try_lock(file) or not (path.exists() and os.path.samefile(path, file.fileno())):  # or just removed
            shown = f"`fedray status {name}` shows how far it is"
            raise UserError(f"{name}: another process is running this sweep (it holds {path}); {shown}")
        try:
            with contextlib.suppress(OSError):  # a full disk: status says less
                file.truncate(0)
                began = time.time()
                call = {"to_run": [*to_run], "began": began}
                file.write("" if sheet is None else json.dumps(sheet.to_json() | call))
                file.flush()
                os.utime(path, (began, began))
            yield
        except BaseException:
            if new:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others have files there
                    for folder in takewhile(lambda folder: folder != above, path.parents):
                        folder.rmdir()
            raise
        finally:
            file.truncate(0)


def refuse_moved(folder: Path) -> None:
    """Raise UserError if the working folder of this process no longer has its name."""
    if not folder.exists() or not os.path.samefile(".", folder):
        raise UserError(
            f"{folder}: this folder was renamed or replaced while the sweep ran; what it has written since lies "
            "under this name: put both together, and run the sweep again"
        )


@contextlib.contextmanager
def find_running_sweeps() -> Iterator[set[Path]]:
    """Yield the lock files of running sweeps; no other sweep can start for the duration of a block."""
    with contextlib.ExitStack() as stack:
        yield {path for path in _list_sweep_locks() if not _try_lock(stack.enter_context(_open_lock(path)))}


def _try_lock(file: IO[str], how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
    """Lock a file until it is closed; return False if another process holds the lock. Raises UserError."""
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _explain_no_locks(Path(file.name).parent, error) from None
    return True


def _explain_no_locks(folder: Path, error: OSError) -> UserError:
    """Return the error for file systems without locks, such as Lustre mounted with `noflock`."""
    return UserError(
        f"FEDRAY_STORAGE: files in {folder} cannot be locked: {error.strerror}; set it to a directory on a file system "
        "with locks"
    )


REMOVED = "its runs were removed"
GO = [*(status for status in Status if status.is_final), REMOVED]
"""Reasons to remove a cell's folder: no call runs it again."""


@dataclass(frozen=True)
class CellFolder:
    """A folder of the storage: its size, and why it may be removed or has to stay."""

    path: Path
    nbytes: int
    why: str


@contextlib.contextmanager
def find_removable(name: str | None = None) -> Iterator[tuple[list[CellFolder], list[CellFolder]]]:
    """Yield the folders that may be removed, and those that stay, of the storage or of one sweep.

    For the duration of the block no other process can begin to run a cell that may be removed.
    """
    root = get_storage()
    paths = sorted((root / "cells").iterdir()) if (root / "cells").is_dir() else []
    cells = None if name is None else read_stored_sweep(name).cells
    folders = [path for path in paths if _is_cell_dir(path) and (cells is None or path.name in cells)]
    client, experiment = open_reader()
    records = find_records(client, experiment, [path.name for path in folders])
    odd = [path for path in paths if name is None and not _is_cell_dir(path)]
    scratch = [path for path in (root / "tune").glob("*") if name is None and path.is_dir() and not path.is_symlink()]
    goes, stays = list[CellFolder](), [CellFolder(path, path.lstat().st_size, "not a cell's folder") for path in odd]
    with CellLocks(get_cell_locks_file()) as locks, find_running_sweeps() as running_locks:
        running = {
            name: run
            for name, run in find_sweeps(client, experiment).items()
            if get_sweep_lock_file(name) in running_locks
        }
        theirs = {cell for run in running.values() for cell in read_cells(client, run, intact=True)}
        for path in folders:
            record = records.get(path.name)
            removed = record is None and any(search(client, experiment, f"tags.`fedray.cell` = '{path.name}'", True))
            why = REMOVED if removed else "is not in this store" if record is None else record.ending.status
            if path.name in theirs or (record is not None and record.tags.get("fedray.sweep") in running):
                why = "belongs to a sweep that is running"
            elif why in GO and not locks.take([path.name]):
                why = "is being run"
            (goes if why in GO else stays).append(CellFolder(path, _measure_size(path), why))
        left = [path for path in scratch if root / "locks" / path.name not in running_locks]  # listed before the locks
        goes += [CellFolder(path, _measure_size(path), "left by a killed sweep") for path in left]
        yield goes, stays


def _is_cell_dir(path: Path) -> bool:
    """Return True for a real folder that is named by a hash; links and other names are none of fedray's."""
    return re.fullmatch(r"[0-9a-f]{16}", path.name) is not None and path.is_dir() and not path.is_symlink()


def _measure_size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
