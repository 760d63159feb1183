"""One process at a time runs a cell, and a dead one releases it."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedray.common.errors import UserError
from fedray.sweep import storage
from fedray.sweep.storage import CellLocks, get_cell_locks_file, get_sweep_lock_file, lock_sweep, make_scratch


@pytest.fixture(autouse=True)
def _storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path))


HOLDER = """
import sys
from pathlib import Path
from fedray.sweep.storage import CellLocks
locks = CellLocks(Path(sys.argv[1]))
print(sorted(locks.take(["00000000000000aa", "00000000000000bb"])), flush=True)
for line in sys.stdin:
    locks.release(line.strip())
    print("released", flush=True)
"""
A, B, C = "00000000000000aa", "00000000000000bb", "ffffffffffffffff"


def start(code: str, *words: str) -> subprocess.Popen[str]:
    """Run code in a process of its own, to talk with."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", code, *words], text=True, **pipes)


def test_a_cell_is_locked_once_until_it_is_released_or_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "cells"
    with CellLocks(path) as locks:
        assert locks.take([A]) == {A}
        locks.release(A)
        with start(HOLDER, str(path)) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert (holder.stdout.readline(), locks.take([A, B, C])) == (f"{[A, B]}\n", {C})
            print(A, file=holder.stdin, flush=True)
            holder.stdout.readline()
            assert locks.take([A, B]) == {A}
            holder.kill()
            holder.wait()
            assert locks.take([B]) == {B}


def test_what_a_killed_driver_left_is_gone_after_the_next_call_of_its_sweep(tmp_path: Path) -> None:
    for left in ("a%b/4711", "c"):
        (tmp_path / "tune" / left).mkdir(parents=True)
    with make_scratch("a/b") as own:
        assert (own, [*own.iterdir()]) == (tmp_path / "tune/a%b", [])
        (own / "state").touch()
    assert [path.name for path in (tmp_path / "tune").iterdir()] == ["c"]


def test_no_two_sweeps_share_a_lock_and_none_has_that_of_the_cells() -> None:
    names = ["a/tune", "a_tune", "a.tune", "a-tune", "cells", "x/cells"]
    files = {get_sweep_lock_file(name) for name in names}
    assert len(files) == len(names)
    assert get_cell_locks_file() not in files
    assert {path.parent for path in files} == {get_cell_locks_file().parent}
    with CellLocks(get_cell_locks_file()) as locks, contextlib.ExitStack() as stack:
        locks.take([A])
        for name in names:
            stack.enter_context(lock_sweep(name))
        with storage.find_running_sweeps() as running:
            assert running == files


@pytest.mark.parametrize("written", ["", "storage/locks/s"])
def test_a_refused_sweep_leaves_what_was_there(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts under the lock. One that opened the file before it went does not take it for the sweep's lock."""
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    if written:
        (tmp_path / written).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / written).touch()
    before, running = sorted(tmp_path.rglob("*")), []
    with contextlib.suppress(UserError), lock_sweep("s"):
        running = [name for name, runs in storage.find_started_sweeps().items() if runs]
        raise UserError("no room")
    assert (running, sorted(tmp_path.rglob("*"))) == (["s"], before)
    monkeypatch.setattr(fcntl, "flock", lambda *_: get_sweep_lock_file("s").unlink())
    with pytest.raises(UserError, match="another process is running this sweep"), lock_sweep("s"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_one_line(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, Mock(side_effect=OSError(number, os.strerror(number))))
    refused = pytest.raises(UserError, match=rf"^FEDRAY_STORAGE: files in {tmp_path}/locks cannot be locked: ")
    for context in (lambda: lock_sweep("small"), storage.find_running_sweeps):
        with refused, context():
            pass
    with CellLocks(get_cell_locks_file()) as locks, refused:
        locks.take([A])


MAKERS: dict[str, Callable[[Path], object]] = {"pipe": os.mkfifo, "file": Path.touch, "folder": Path.mkdir}
MAKERS["loop"] = lambda path: path.symlink_to(path.name)


def put(what: str, path: Path) -> None:
    """Make something odd, in a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    MAKERS[what](path)


@pytest.mark.parametrize("what", ["pipe", "file", "loop"])
@pytest.mark.parametrize("place", ["", "locks", "cells", "tune"])
def test_what_is_no_folder_is_refused(what: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    put(what, tmp_path / "storage" / place)
    with pytest.raises(UserError, match=rf"FEDRAY_STORAGE: cannot write {tmp_path / 'storage' / place}: \w.*"):
        storage.refuse_unwritable_storage()


@pytest.mark.parametrize("what", ["pipe", "loop", "folder"])
def test_a_lock_that_is_no_file_is_refused_and_never_waited_for(what: str, tmp_path: Path) -> None:
    """The locks of a sweep and of cells; an open pipe would wait for a reader."""
    for path in (get_sweep_lock_file("s"), get_cell_locks_file()):
        put(what, path)
    for lock in (lambda: lock_sweep("s"), lambda: CellLocks(get_cell_locks_file())):
        with pytest.raises(UserError, match=r"FEDRAY_STORAGE: .* is not a regular file; remove it"), lock():
            pass
    with storage.find_running_sweeps() as running:
        assert running == set()
