"""Checkpoints: complete, incremental, checked; damaged ones are passed over."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedray.common.errors import UserError
from fedray.common.vectors import digest_tensors
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.disk.client_files import StoredState
from fedray.engine.loop import make_rounds, run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import ClientState, State, StateDamaged, load_state


def advance(simulation: Simulation, rounds: int) -> State:
    for _ in range(rounds):
        simulation.step()
    return simulation.state


def test_what_is_loaded_is_what_was_saved(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    state = advance(simulation, 3)
    store.save(state)
    loaded = store.load()
    assert loaded is not None
    assert loaded.digest() == state.digest()
    assert loaded.history == state.history
    assert loaded.active == state.active
    assert loaded.seconds == state.seconds
    assert set(loaded.clients) == set(state.clients)


def test_states_that_did_not_change_are_not_written_again(simulation: Simulation, tmp_path: Path) -> None:
    """Between rounds 3 and 4 only the 2 clients of round 4's cohort change."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 3))
    store.save(advance(simulation, 1))
    written = {path.name for path in tmp_path.glob("client-*-4.safetensors")}
    assert written == {f"client-{i}-4.safetensors" for i in simulation.draw_cohort(3)}
    loaded = store.load()
    assert loaded is not None
    assert loaded.digest() == simulation.state.digest()


def test_two_checkpoints_are_kept_with_the_files_they_need(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for _ in range(5):
        store.save(advance(simulation, 1))
    assert store.list_rounds() == [4, 5]
    needed = {"checkpoint-4.json", "checkpoint-5.json", "server-4.safetensors", "server-5.safetensors"}
    active = {}
    for round in (4, 5):
        document = json.loads((tmp_path / f"checkpoint-{round}.json").read_text())
        active[round] = {i: known[0] for i, known in json.loads(document["manifest"])["clients"].items()}
        needed |= {f"client-{i}-{at}.safetensors" for i, at in active[round].items()}
    assert {path.name for path in tmp_path.iterdir()} == needed
    assert active[5] == {str(i): at for i, at in simulation.state.active.items()}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("server-4.safetensors", "client-*-4.safetensors", "checkpoint-4.json")
        for damage in ("truncated", "one bit", "missing", "empty")
        if (name, damage) not in (("checkpoint-4.json", "missing"), ("client-*-4.safetensors", "one bit"))
    ],
)  # without a manifest there is nothing to be damaged; a wrong bit of a state is seen when it is read
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    name: str, damage: str, simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    before = advance(simulation, 3)
    digest = before.digest()
    store.save(before)
    store.save(advance(simulation, 1))
    path = next(tmp_path.glob(name))
    content = path.read_bytes()
    middle = len(content) // 2
    path.unlink()
    if damage != "missing":
        path.write_bytes(
            {
                "truncated": content[:middle],
                "empty": b"",
                "one bit": content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :],
            }[damage]
        )
    loaded = store.load()
    assert loaded is not None
    assert loaded.round == 3
    assert loaded.digest() == digest
    assert "checkpoint-4.json is damaged" in caplog.text
    # Going on from there must not build on what is damaged: rounds 4 and 5 again, saved once after each or after both.
    for counts in ((1, 1), (2,)):
        again = Checkpoints(tmp_path)
        state = again.load()
        assert state is not None
        simulation.restore(state)
        for count in counts:
            if simulation.state.round < 5:
                again.save(advance(simulation, count))
        reread = Checkpoints(tmp_path).load()
        assert reread is not None
        assert reread.digest() == simulation.state.digest()


def test_any_byte_of_any_file_may_be_wrong(simulation: Simulation, tmp_path: Path) -> None:
    """120 flipped bytes, cuts and additions: what is loaded is one of the two states that were saved, or nothing.

    A state in which a bit is wrong is refused when it is read, never handed out.
    """
    store = Checkpoints(tmp_path)
    saved, states = set(), []
    for _ in range(2):
        state = advance(simulation, 1)
        store.save(state)
        saved.add(state.digest())
        states += [digest_tensors(load_state(kept)) for kept in state.clients.values()]
    rng = np.random.default_rng(0)
    seen, damaged = [], 0
    for _ in range(120):
        path = rng.choice(sorted(tmp_path.iterdir()))
        whole = path.read_bytes()
        at = int(rng.integers(len(whole)))
        path.write_bytes(
            [whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :], whole[:at], whole + b"x"][
                int(rng.integers(3))
            ]
        )
        found = Checkpoints(tmp_path).load()
        seen.append(None if found is None else found.digest())
        for kept in () if found is None else found.clients.values():
            try:
                assert digest_tensors(load_state(kept)) in states
            except StateDamaged:
                damaged += 1
        path.write_bytes(whole)
    assert set(seen) <= {None, *saved}
    assert len(set(seen) - {None}) == 2, "the newest where it is whole, else the one before"
    assert damaged > 5


def test_a_state_with_a_wrong_bit_takes_the_run_back_to_the_checkpoint_before(
    simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The damage is found when its client is drawn again; the run ends like an undisturbed one."""
    problem = simulation.problem
    whole = run(problem, InlineBackend())
    store = Checkpoints(tmp_path)
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
    assert states[-1].digest() == whole.state.digest()
    assert states[-1].history == whole.history


def test_a_resumed_run_reads_only_the_states_it_needs(simulation: Simulation, tmp_path: Path) -> None:
    """The files of clients that round 5 does not draw may even be missing until they are drawn."""
    Checkpoints(tmp_path).save(advance(simulation, 4))
    found = Checkpoints(tmp_path).load()
    assert found is not None
    drawn = set(simulation.draw_cohort(4).tolist())
    others = [i for i in found.clients if i not in drawn]
    assert others
    for i in others:
        (tmp_path / f"client-{i}-{found.active[i]}.safetensors").unlink()
    resumed = Simulation(simulation.problem, InlineBackend())
    resumed.restore(found)
    resumed.step()
    assert resumed.state.digest() == advance(simulation, 1).digest()


def test_the_disk_holds_each_state_that_the_two_checkpoints_name_once(simulation: Simulation, tmp_path: Path) -> None:
    """At most 1.25 times these states' bytes, headers included: a state of 4 vectors has at least 2,600 bytes."""
    store, named = Checkpoints(tmp_path), {}
    for _ in range(8):
        state = advance(simulation, 1)
        store.save(state)
        named[state.round] = {(i, state.active[i]): _bytes(kept) for i, kept in state.clients.items()}
    union = named[7] | named[8]
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("client-*"))
    assert sum(union.values()) <= on_disk <= 1.25 * sum(union.values())
    assert len(list(tmp_path.glob("client-*"))) == len(union)


def _bytes(kept: ClientState) -> int:
    return sum(v.nbytes for v in load_state(kept).values())


def test_a_damaged_checkpoint_takes_no_room_from_the_whole_ones(simulation: Simulation, tmp_path: Path) -> None:
    """Round 4's model is damaged: a run that continues from round 2 keeps its own last two, not round 4's files."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 2))
    store.save(advance(simulation, 2))
    (tmp_path / "server-4.safetensors").write_bytes(b"damaged")
    store = Checkpoints(tmp_path)
    state = store.load()
    assert state is not None
    simulation.restore(state)
    store.save(advance(simulation, 1))
    store.save(advance(simulation, 3))
    assert store.list_rounds() == [3, 6]
    (tmp_path / "server-6.safetensors").write_bytes(b"damaged")
    found = Checkpoints(tmp_path).load()
    assert found is not None
    assert found.round == 3


def test_what_killed_processes_left_half_written_goes_with_the_next_save(
    simulation: Simulation, tmp_path: Path
) -> None:
    left = [f"{name}.4711.tmp" for name in ("rows.jsonl", "checkpoint-1.json", "client-3-1.safetensors")]
    for name in [*left, "rows.jsonl", "mine.tmp"]:
        (tmp_path / name).touch()
    Checkpoints(tmp_path).save(advance(simulation, 1))
    found = {path.name for path in tmp_path.iterdir()}
    assert not found & set(left)
    assert {"rows.jsonl", "mine.tmp"} < found


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
    assert found is not None
    assert found.digest() == simulation.state.digest()
    assert torch.equal(found.theta, simulation.state.theta)
    assert [state.round for state in make_rounds(simulation, Checkpoints(tmp_path))] == [9]


@pytest.mark.parametrize("manifest", [2, "2", "[]", "{}", '{"clients": 1, "active": {}}', "[" * 100_000])
def test_a_manifest_of_a_strangers(simulation: Simulation, tmp_path: Path, manifest: object) -> None:
    """Its own checksum is right, but it is not one of ours: nothing is loaded, and the next save tidies it away."""
    checksum = hashlib.sha256(str(manifest).encode()).hexdigest()
    (tmp_path / "checkpoint-9.json").write_text(json.dumps({"sha256": checksum, "manifest": manifest}))
    store = Checkpoints(tmp_path)
    assert store.load() is None
    store.save(advance(simulation, 1))
    assert store.list_rounds() == [1]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("round", "2", "round\n  Input should be a valid integer"),
        ("round", 7, "it is of round 7"),
        ("seconds", "long", "seconds\n  Input should be a valid number"),
        ("history", [], ""),
        ("history", None, "history\n  Input should be a valid array"),
        ("history", [{"round": 9}], "its evaluated rounds are [9]; it is of round 2"),
        ("history", [{"round": 2}, {"round": 1}], "its evaluated rounds are [2, 1]; it is of round 2"),
        ("sent", [1], "sent.1\n  Field required"),
        ("dropped", -1, "dropped\n  Input should be greater than or equal to 0"),
        ("clients", {"x": [1, "a", 2]}, "clients.x.[key]\n  Input should be a valid integer"),
        ("tables", {"clients": 3}, "tables.clients\n  Input should be an object"),
        ("server", None, "server\n  Input should be a valid string"),
    ],
)
def test_the_fields_of_a_manifest_are_checked(
    simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: object, line: str
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
    found = Checkpoints(tmp_path, "seed0").load()
    assert found is not None
    assert found.round == 2


@pytest.mark.parametrize("name", ["checkpoint-2.json", "server-2.safetensors", "client"])
def test_a_pipe_is_damage_and_is_not_read(simulation: Simulation, tmp_path: Path, name: str) -> None:
    store = Checkpoints(tmp_path)
    state = advance(simulation, 2)
    store.save(state)
    file = tmp_path / name if name != "client" else next(tmp_path.glob("client-*"))
    file.unlink()
    os.mkfifo(file)
    assert store.load() is None
    if name == "client":
        with pytest.raises(StateDamaged, match="is not a regular file"):
            StoredState(str(file), "").load()


def test_hash_of_the_state_sees_every_part(simulation: Simulation) -> None:
    state = advance(simulation, 2)
    digest = state.digest()
    client = next(iter(state.clients))
    for part in (state.theta, state.server.c, state.clients[client].c):
        kept = part.clone()
        part[0] = torch.nextafter(part[0], torch.tensor(9.0))
        assert state.digest() != digest
        part.copy_(kept)
    assert state.digest() == digest
