"""Checkpoints if the file system refuses, the disk is full, or another process saves: nothing intact is lost."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.common.vectors import digest_tensors
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import make_rounds
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state

from .test_checkpoint import advance


def refuse(
    monkeypatch: pytest.MonkeyPatch, access: tuple[Any, str], name: str, times: int, error: int = errno.EIO
) -> list[str]:
    """Let the file system refuse the first accesses to a file of that name; return the names that were refused."""
    refused: list[str] = []

    allowed = getattr(*access)

    def accessed(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path).match(name) and len(refused) < times:
            refused.append(Path(path).name)
            raise OSError(error, os.strerror(error))
        return allowed(path, *arguments, **options)

    monkeypatch.setattr("fedray.engine.disk.client_files.PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(*access, accessed)
    return refused


@pytest.mark.parametrize(
    ("access", "name"),
    [
        ((Path, "stat"), "client-*"),
        ((Path, "read_bytes"), "client-*"),
        ((Path, "read_bytes"), "server-2*"),
        ((Path, "read_bytes"), "checkpoint-2.json"),
        ((os, "listdir"), "cell"),
    ],
)
def test_what_the_file_system_refuses_for_now_is_no_damage(
    access: tuple[Any, str], name: str, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits out three refusals; with the fourth it ends in one line, and no file is gone."""
    problem, folder = simulation.problem, tmp_path / "cell"
    store = Checkpoints(folder)
    store.save(advance(simulation, 1))
    store.save(advance(simulation, 1))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patched:
        refused = refuse(patched, access, name, times=4)
        with pytest.raises(UserError, match=r": the file system says: Input/output error; the checkpoints stay"):
            list(make_rounds(Simulation(problem, InlineBackend()), Checkpoints(folder), every=100))
    assert len(refused) == 4
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "rows.jsonl"}
    assert found == before
    with monkeypatch.context() as patched:
        refused = refuse(patched, access, name, times=3, error=errno.ESTALE)
        states = list(make_rounds(Simulation(problem, InlineBackend()), Checkpoints(folder), every=100))
    assert len(refused) == 3
    assert [state.round for state in states] == list(range(2, 10)), "from the newest checkpoint, never back"


def test_a_manifest_that_cannot_be_read_for_now_keeps_the_files_it_names(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save removes files that no manifest names; here it does not know the files of the previous one."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 1))
    before = {path.name for path in tmp_path.iterdir()}
    state = advance(simulation, 1)
    refuse(monkeypatch, (Path, "read_bytes"), "checkpoint-1.json", times=4)
    with pytest.raises(UserError, match=r"checkpoint-1\.json: the file system says: Input/output error"):
        store.save(state)
    assert before < {path.name for path in tmp_path.iterdir()}
    assert store.list_rounds() == [1, 2]


def test_a_writer_that_stood_still_removes_nothing_of_the_one_that_went_on(
    simulation: Simulation, tmp_path: Path
) -> None:
    """A process that was presumed dead saves round 2 after its successor has saved rounds 3 and 4."""
    old, new = Checkpoints(tmp_path), Checkpoints(tmp_path)
    old.save(advance(simulation, 1))
    assert new.load() is not None
    late = advance(simulation, 1)
    for _ in range(2):
        new.save(advance(simulation, 1))
    after = {path.name for path in tmp_path.iterdir()}
    old.save(late)
    assert after < {path.name for path in tmp_path.iterdir()}
    new.save(advance(simulation, 1))
    found = Checkpoints(tmp_path).load()
    assert found is not None
    assert found.digest() == simulation.state.digest()
    assert {i: digest_tensors(load_state(s)) for i, s in found.clients.items()} == {
        i: digest_tensors(load_state(s)) for i, s in simulation.state.clients.items()
    }
    assert Checkpoints(tmp_path).list_rounds() == [4, 5]


@pytest.mark.parametrize("file", ["client-", "server-4", "checkpoint-4"])
def test_a_full_disk_leaves_the_checkpoint_before_and_nothing_else(
    file: str, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC while the first, the second or the last file is written: the directory is as it was before."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 3))
    digest, before = simulation.state.digest(), {path.name for path in tmp_path.iterdir()}
    state = advance(simulation, 1)
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(state)
    assert {path.name for path in tmp_path.iterdir()} == before
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded.digest() == digest
    monkeypatch.undo()
    store.save(state)
    again = Checkpoints(tmp_path).load()
    assert again is not None
    assert again.digest() == state.digest()
