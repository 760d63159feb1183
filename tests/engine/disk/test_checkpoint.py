"""Checkpoints: complete, incremental, checked; damaged ones are passed over; and nothing intact is lost if the file
system refuses, the disk is full, or another process saves. The rows next to them: each evaluated round once."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedray.common.errors import UserError
from fedray.common.vectors import digest_tensors
from fedray.engine.disk.checkpoint import COPIED, Checkpoints
from fedray.engine.disk.client_files import StoredState
from fedray.engine.disk.rows import RowFile
from fedray.engine.loop import make_rounds, run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State, StateDamaged, load_state
from tests import small
from tests.conftest import each
from tests.engine.test_loop import REPOSITORY
from tests.engine.test_loop import simulation as seven_rounds


@pytest.fixture
def simulation() -> Simulation:
    """The run whose checkpoints are inspected."""
    return small.simulation("scaffold", (6, 2), evaluation={"every": 1}, training={"rounds": 9, "local_epochs": 1})


def advance(simulation: Simulation, rounds: int) -> State:
    for _ in range(rounds):
        simulation.step()
    return simulation.state


def test_two_checkpoints_are_kept_with_the_files_they_need(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    for _ in range(5):
        store.save(advance(simulation, 1))
    state, loaded = simulation.state, store.load()
    assert (loaded.digest(), loaded.history, loaded.active) == (state.digest(), state.history, state.active)
    assert (loaded.seconds, set(loaded.clients)) == (state.seconds, set(state.clients))
    assert (loaded.sent, loaded.evaluation_seconds) == (state.sent, state.evaluation_seconds)
    assert store.list_rounds() == [4, 5]
    needed = {"checkpoint-4.json", "checkpoint-5.json", "server-4.safetensors", "server-5.safetensors"}
    active = {}
    for round in (4, 5):
        document = json.loads((tmp_path / f"checkpoint-{round}.json").read_text())
        active[round] = {i: known[0] for i, known in json.loads(document["manifest"])["clients"].items()}
        needed |= {f"client-{i}-{at}.safetensors" for i, at in active[round].items()}
    assert {path.name for path in tmp_path.iterdir()} == needed
    assert active[5] == {str(i): at for i, at in state.active.items()}


def test_every_field_of_a_state_is_in_a_checkpoint() -> None:
    named = {"theta", "buffers", "server", "clients", "active", *COPIED}
    assert {field.name for field in fields(State)} == named, "write it in `save`, read it in `_load`, name it here"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("server-4.safetensors", "client-*-4.safetensors", "checkpoint-4.json")
        for damage in ("truncated", "one bit", "missing", "longer", "a pipe")
        if (name, damage) not in (("checkpoint-4.json", "missing"), ("client-*-4.safetensors", "one bit"))
    ],
)  # without a manifest there is nothing to be damaged; a wrong bit of a state is seen when it is read
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    name: str, damage: str, simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, before = Checkpoints(tmp_path), advance(simulation, 3)
    digest = before.digest()
    store.save(before)
    store.save(advance(simulation, 1))
    path = next(tmp_path.glob(name))
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
    path.unlink()
    if damage == "a pipe":
        os.mkfifo(path)
        with pytest.raises(StateDamaged, match="is not a regular file"):
            StoredState(str(path), "").load()
    elif damage != "missing":
        path.write_bytes({"truncated": content[:middle], "longer": content + b"x", "one bit": flipped}[damage])
    loaded = store.load()
    assert (loaded.round, loaded.digest()) == (3, digest)
    assert "checkpoint-4.json is damaged" in caplog.text
    # Going on from there must not build on what is damaged: rounds 4 and 5 again, saved once after each or after both.
    again = Checkpoints(tmp_path)
    simulation.restore(again.load())
    for count in (2,) if damage == "truncated" else (1, 1):
        again.save(advance(simulation, count))
    assert Checkpoints(tmp_path).load().digest() == simulation.state.digest()
    assert again.list_rounds() == ([3, 5] if damage == "truncated" else [4, 5])


def test_a_state_with_a_wrong_bit(simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The damage is found when its client is drawn again; the run ends like an undisturbed one."""
    problem = simulation.problem
    whole, store = run(problem, InlineBackend()), Checkpoints(tmp_path)
    store.save(advance(simulation, 2))
    store.save(advance(simulation, 2))
    for path in tmp_path.glob("client-*-4.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    states = list(make_rounds(Simulation(problem, InlineBackend()), Checkpoints(tmp_path), every=100))
    assert states[0].round == 4
    assert "checkpoint-4.json is damaged" in caplog.text
    assert "does not have the hash it was written with" in caplog.text
    assert 2 in [state.round for state in states[1:]]
    assert (states[-1].digest(), states[-1].history) == (whole.state.digest(), whole.history)


def test_a_checkpoint_of_a_later_version_is_refused_in_one_line(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 1))
    path = tmp_path / "checkpoint-1.json"
    body = json.loads(path.read_text())["manifest"].replace('"format":1', '"format":2')
    path.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}))
    with pytest.raises(UserError, match=r"checkpoint-1\.json: written by a later fedray \(format 2, this one reads"):
        list(make_rounds(Simulation(simulation.problem, InlineBackend()), store))


def test_a_finished_run_drops_its_clients_and_keeps_model_and_hash(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 8))
    store.save(advance(simulation, 1))
    Checkpoints(tmp_path).drop_clients()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-9.json", "server-9.safetensors"}
    found = Checkpoints(tmp_path).load()
    assert found.digest() == simulation.state.digest()
    assert torch.equal(found.theta, simulation.state.theta)
    assert [state.round for state in make_rounds(simulation, Checkpoints(tmp_path))] == [9]


@each(
    ("round", "2", "round\n  Input should be a valid integer"), ("round", 7, "it is of round 7"), ("history", [], ""),
    ("history", [{"round": 2}, {"round": 1}], "its evaluated rounds are [2, 1]; it is of round 2"),
    ("clients", {"x": [1, "a", 2]}, "clients.x.[key]\n  Input should be a valid integer"),
    ("tables", {"clients": 3}, "tables.clients\n  Input should be an object"),
)  # fmt: skip
def test_the_fields_of_a_manifest_are_checked(
    key: str, value: object, line: str, simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each field of a manifest, with a right checksum; a run may have evaluated no round yet."""
    store, file = Checkpoints(tmp_path, "mine"), tmp_path / "checkpoint-2.json"
    store.save(advance(simulation, 2))
    body = json.dumps(json.loads(json.loads(file.read_text())["manifest"]) | {key: value})
    file.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}))
    assert (store.load() is None) == bool(line)
    assert line in caplog.text


def test_a_finished_run_without_rows_is_refused(simulation: Simulation, tmp_path: Path) -> None:
    """Every run evaluates its last round, the ninth."""
    Checkpoints(tmp_path).save(replace(advance(simulation, 9), history=[]))
    with pytest.raises(UserError, match=r"its checkpoint has no rows; start again with --force$"):
        next(make_rounds(simulation, Checkpoints(tmp_path)))


def test_the_folder_of_another_seed_is_refused_and_stays(simulation: Simulation, tmp_path: Path) -> None:
    """Two seeds of one configuration; the folder of the first is given the name of the second."""
    Checkpoints(tmp_path, "seed0").save(advance(simulation, 2))
    with pytest.raises(UserError, match=r"of another .* \(cell seed0; this one is seed1\); move or remove it"):
        next(make_rounds(simulation, Checkpoints(tmp_path, "seed1")))
    assert Checkpoints(tmp_path, "seed0").load().round == 2


def test_hash_of_the_state_sees_every_part(simulation: Simulation) -> None:
    state = advance(simulation, 2)
    digest, client = state.digest(), next(iter(state.clients))
    for part in (state.theta, state.server.c, state.clients[client].c):
        kept = part.clone()
        part[0] = torch.nextafter(part[0], torch.tensor(9.0))
        assert state.digest() != digest
        part.copy_(kept)
    assert state.digest() == digest


def refuse(monkeypatch: pytest.MonkeyPatch, access: Any, name: str, times: int, error: int = errno.EIO) -> list[str]:
    """Let the file system refuse the first accesses to a file of that name; return the names that were refused."""
    refused, allowed = list[str](), getattr(*access)

    def accessed(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path).match(name) and len(refused) < times:
            refused.append(Path(path).name)
            raise OSError(error, os.strerror(error))
        return allowed(path, *arguments, **options)

    monkeypatch.setattr("fedray.engine.disk.client_files.PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(*access, accessed)
    return refused


@each(
    ((Path, "stat"), "client-*"), ((Path, "read_bytes"), "client-*"), ((Path, "read_bytes"), "server-2*"),
    ((Path, "read_bytes"), "checkpoint-2.json"), ((os, "listdir"), "cell"),
)  # fmt: skip
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
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "rows.jsonl"} == before
    with monkeypatch.context() as patched:
        refused = refuse(patched, access, name, times=3, error=errno.ESTALE)
        states = list(make_rounds(Simulation(problem, InlineBackend()), Checkpoints(folder), every=100))
    assert len(refused) == 3
    assert [state.round for state in states] == list(range(2, 10)), "from the newest checkpoint, never back"


def test_a_manifest_unreadable_for_now(simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save removes files that no manifest names; here it does not know those of the previous one, which stay."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 1))
    before, state = {path.name for path in tmp_path.iterdir()}, advance(simulation, 1)
    refuse(monkeypatch, (Path, "read_bytes"), "checkpoint-1.json", times=4)
    with pytest.raises(UserError, match=r"checkpoint-1\.json: the file system says: Input/output error"):
        store.save(state)
    assert before < {path.name for path in tmp_path.iterdir()}
    assert store.list_rounds() == [1, 2]


def test_a_writer_that_stood_still_removes_nothing_of_one_that_went_on(simulation: Simulation, tmp_path: Path) -> None:
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
    assert found.digest() == simulation.state.digest()
    assert {i: digest_tensors(load_state(s)) for i, s in found.clients.items()} == {
        i: digest_tensors(load_state(s)) for i, s in simulation.state.clients.items()
    }
    assert Checkpoints(tmp_path).list_rounds() == [4, 5]


@pytest.mark.parametrize("file", ["client-", "server-4", "checkpoint-4"])
def test_a_full_disk(file: str, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC while the first, the second or the last file is written: the directory is as it was before."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 3))
    digest, before = simulation.state.digest(), {path.name for path in tmp_path.iterdir()}
    state, fsync = advance(simulation, 1), os.fsync

    def full(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size, "what is still buffered is not on the disk"
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(state)
    assert ({path.name for path in tmp_path.iterdir()}, Checkpoints(tmp_path).load().digest()) == (before, digest)
    monkeypatch.undo()
    store.save(state)
    assert Checkpoints(tmp_path).load().digest() == state.digest()


def rows(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def test_rows_are_there_while_the_run_makes_rounds(tmp_path: Path) -> None:
    """Rounds 2, 4, 6 and the last, 7, are evaluated; the only checkpoint, and so the folder, is made at the end."""
    folder = tmp_path / "cell"
    seen = [len(rows(folder)) if (folder / "rows.jsonl").exists() else 0 for _ in rounds_of(folder, every=100)]
    assert seen == [0, 0, 1, 1, 2, 2, 3, 4]
    made = (folder / "rows.jsonl").stat().st_mtime_ns
    assert rows(folder) == list(rounds_of(folder))[-1].history
    assert (folder / "rows.jsonl").stat().st_mtime_ns == made, "a finished run that is shown again writes nothing"


def rounds_of(directory: Path, every: int = 3):  # type: ignore[no-untyped-def]
    return make_rounds(seven_rounds(), Checkpoints(directory), every)


KILLED = """
import os, sys, pathlib
from tests.engine.disk.test_checkpoint import rounds_of
for state in rounds_of(pathlib.Path(sys.argv[1])):
    if state.round == 5:
        os._exit(9)  # as SIGKILL: nothing is closed, nothing is saved
"""


def test_a_killed_run_that_goes_on_has_no_row_twice_and_lacks_none(tmp_path: Path) -> None:
    """Killed after round 5 with a checkpoint of round 3: the row of round 4 is in the file, and is made again."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=120, check=False)
    assert (ended.returncode, [row["round"] for row in rows(tmp_path)]) == (9, [2, 4])
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"round": 6, "test_acc')  # a line that the kill cut off
    states = rounds_of(tmp_path)
    assert next(states).round == 3
    assert [row["round"] for row in rows(tmp_path)] == [2], "what the checkpoint holds, before a round is made"
    last = list(states)[-1]
    assert ([row["round"] for row in rows(tmp_path)], rows(tmp_path)) == ([2, 4, 6, 7], last.history)


def test_a_run_that_falls_back_takes_its_rows_back(tmp_path: Path) -> None:
    file, history = RowFile(tmp_path), [{"round": t, "test_accuracy": 10.0 * t} for t in range(1, 6)]
    for length in (1, 2, 3, 4, 2, 3, 4, 5):
        file.follow(history[:length])
        assert rows(tmp_path) == history[:length]


def test_rows_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(UserError, match=rf"^{tmp_path / 'rows.jsonl'}: cannot be written: Is a directory; make room"):
        list(rounds_of(tmp_path))
