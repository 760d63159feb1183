"""Which process runs which cell: two sweeps on one storage that share cells never run one of them twice.

A claim is a locked byte of one file, at an offset that the cell's hash gives. The system takes it back when its holder
ends, however that ends; where storage is on NFS its lock daemon does the same.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from fedray.common.errors import UserError
from fedray.sweep.cells import Cell

OFFSETS = 2**62
"""Offsets below this are valid everywhere; two of 10^4 cells share one with a chance of 10^-11."""


class Claims:
    """The cells that this process has claimed. One object per process and file: closing any would give up all."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")

    def take(self, cells: Iterable[str]) -> set[str]:
        """Claim cells by hash; those that no other process holds. Nothing is waited for."""
        return {cell for cell in cells if self._take(cell)}

    def release(self, cell: str) -> None:
        """Give a cell up: its outcome is known."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _offset(cell))

    def _take(self, cell: str) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(cell))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def __enter__(self) -> "Claims":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _offset(cell: str) -> int:
    return int(cell, 16) % OFFSETS


def storage() -> Path:
    """Where checkpoints live: $FEDRAY_STORAGE (shared by all nodes of a cluster), else .fedray here."""
    return Path(os.environ.get("FEDRAY_STORAGE", ".fedray")).expanduser().resolve()


def directory(cell: Cell) -> Path:
    """Where a cell's checkpoints are."""
    return storage() / "cells" / cell.hash


@contextlib.contextmanager
def sweep_lock(name: str) -> Iterator[None]:
    """One process per sweep and storage; the lock goes with its holder, however that ends. Raises UserError."""
    path = storage() / "locks" / name.replace("/", "_")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{name}: another process is running this sweep (it holds {path})") from None
        yield
