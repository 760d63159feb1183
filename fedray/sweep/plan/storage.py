"""Locks that decide which process runs a cell: two sweeps on one storage never run a shared cell twice.

A cell's lock is a locked byte of one file, at an offset given by the cell's hash. The operating system releases it
when its holder ends, however that ends; on NFS the lock daemon does the same.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar

from fedray.cells.cell import Cell
from fedray.common.errors import UserError, redact, truncate_repr
from fedray.common.location import get_storage

OFFSETS = 2**62
"""Offsets below this are valid everywhere; the chance that two of 10^4 cells share one is 10^-11."""


class CellLocks:
    """Cells locked by this process. One object per process and file: closing any of them would release all locks."""

    opened: ClassVar[int] = 0
    """How many this process has open."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, _open_lock(path, "a+b")
        CellLocks.opened += 1

    def take(self, cells: Iterable[str]) -> set[str]:
        """Lock cells by hash, without waiting. Returns the cells that no other process holds."""
        return {cell for cell in cells if self._take(cell)}

    def release(self, cell: str) -> None:
        """Release a cell whose outcome is known."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, int(cell, 16) % OFFSETS)

    def _take(self, cell: str) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(cell, 16) % OFFSETS)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise _explain_no_locks(self._path.parent, error) from None
        return True

    def __enter__(self) -> "CellLocks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        CellLocks.opened -= 1


def _open_lock(path: Path, mode: str = "a") -> IO[Any]:
    """Open a lock's file, created if it is missing. Raises UserError for all but files: a pipe may never open."""
    try:
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
def make_scratch() -> Iterator[Path]:
    """Yield a directory in the storage for the duration of a block, and remove what killed drivers have left there.

    Each such directory is locked while its driver lives, whichever machine that is on.
    """
    with _lock_scratch() as root:
        for left in _list_abandoned(root):
            shutil.rmtree(left, ignore_errors=True)
        own = root / uuid.uuid4().hex
        own.mkdir()
        lock = (own / "lock").open("w")
        _try_lock(lock)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        lock.close()


@contextlib.contextmanager
def _lock_scratch() -> Iterator[Path]:
    """Yield the folder of all scratch directories, locked against other processes for the duration of a block."""
    root = get_storage() / "tune"
    with _open_lock(root / "lock") as one_at_a_time:
        _try_lock(one_at_a_time, fcntl.LOCK_EX)
        yield root


def list_abandoned() -> list[Path]:
    """Return the directories that killed drivers have left."""
    if not (get_storage() / "tune").is_dir():
        return []
    with _lock_scratch() as root:
        return _list_abandoned(root)


def _list_abandoned(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and _is_abandoned(path)]


def _is_abandoned(path: Path) -> bool:
    lock = path / "lock"
    if os.path.lexists(lock) and not lock.is_file():
        return False  # no driver's, and opening a pipe may never end
    try:
        with lock.open("a") as opened:
            return _try_lock(opened)
    except OSError:  # its driver has just removed it, or it belongs to another user
        return False


def get_cell_dir(hash: str) -> Path:
    """Return the folder of a cell's checkpoints."""
    return get_storage() / "cells" / hash


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


def is_sweep_running(name: str) -> bool:
    """Return True if a process holds the sweep's lock. Nothing is created."""
    file = get_sweep_lock_file(name)
    if not file.is_file():
        return False
    with _open_lock(file) as opened:
        return not _try_lock(opened)


def refuse_second_call(name: str) -> None:
    """Raise UserError if another process runs the sweep. Nothing is created."""
    if is_sweep_running(name):
        raise _is_running(name)


def _is_running(name: str) -> UserError:
    return UserError(f"{name}: another process is running this sweep (it holds {get_sweep_lock_file(name)})")


def is_trained(cell: Cell) -> bool:
    """Return True if this storage has a checkpoint of the cell's last round."""
    return (get_cell_dir(cell.hash) / f"checkpoint-{cell.get('training.rounds')}.json").is_file()


def find_killed(cells: Iterable[str]) -> set[str]:
    """Return the cells with a folder in this storage that no process runs, of cells that the store calls running.

    A process that runs cells itself finds none: looking would release its locks.
    """
    known = [cell for cell in cells if re.fullmatch("[0-9a-f]+", cell) and get_cell_dir(cell).is_dir()]
    if not known or CellLocks.opened:
        return set()
    with CellLocks(get_cell_locks_file()) as locks:
        return locks.take(known)


@contextlib.contextmanager
def lock_sweep(name: str) -> Iterator[None]:
    """Allow one process per sweep and storage; the lock ends with its holder, however that ends. Raises UserError."""
    with _open_lock(get_sweep_lock_file(name)) as file:
        if not _try_lock(file):
            raise _is_running(name)
        yield


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
        yield {
            path
            for path in (get_storage() / "locks").iterdir()
            if path.is_file() and path.name[0] != "." and not _try_lock(stack.enter_context(_open_lock(path)))
        }


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
