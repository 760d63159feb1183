"""Checkpoints: complete, incremental, checked; what is damaged is passed over."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedray.config import RunConfig
from fedray.engine.backend import InlineBackend
from fedray.engine.checkpoint import Checkpoints
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.state import State


@pytest.fixture
def simulation() -> Simulation:
    run = RunConfig.parse(
        {
            "data": "digits",
            "partition": "iid",
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": "scaffold",
            "clients": {"total": 6, "per_round": 2},
            "evaluation": {"every": 1},
            "training": {"rounds": 9, "local_epochs": 1},
        }
    )
    return Simulation(Problem.build(run), InlineBackend())


def advance(simulation: Simulation, rounds: int) -> State:
    for _ in range(rounds):
        simulation.step()
    return simulation.state()


def test_what_is_loaded_is_what_was_saved(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    state = advance(simulation, 3)
    store.save(state)
    loaded = store.load()
    assert loaded is not None
    assert loaded.sha256() == state.sha256()
    assert loaded.history == state.history
    assert loaded.active == state.active
    assert loaded.seconds == state.seconds
    assert set(loaded.clients) == set(state.clients)


def test_states_that_did_not_change_are_not_written_again(simulation: Simulation, tmp_path: Path) -> None:
    """Between rounds 3 and 4 only the 2 clients of round 4's cohort change."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 3))
    store.save(advance(simulation, 1))
    from safetensors import safe_open

    with safe_open(tmp_path / "clients-4.safetensors", "pt") as file:
        written = {int(key.split("/")[0]) for key in file.keys()}  # noqa: SIM118 (no mapping)
    assert written == set(simulation.cohort(3).tolist())
    loaded = store.load()
    assert loaded is not None
    assert loaded.sha256() == simulation.state().sha256()


def test_two_checkpoints_are_kept_with_the_files_they_need(simulation: Simulation, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for _ in range(5):
        store.save(advance(simulation, 1))
    assert store.rounds() == [4, 5]
    needed = {"checkpoint-4.json", "checkpoint-5.json"}
    for round in (4, 5):
        document = json.loads((tmp_path / f"checkpoint-{round}.json").read_text())
        needed |= set(json.loads(document["manifest"])["files"])
    assert {path.name for path in tmp_path.iterdir()} == needed


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("server-4.safetensors", "clients-4.safetensors", "checkpoint-4.json")
        for damage in ("truncated", "one bit", "missing", "empty")
        if (name, damage) != ("checkpoint-4.json", "missing")
    ],
)  # without a manifest there is nothing to be damaged
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    name: str, damage: str, simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    before = advance(simulation, 3)
    digest = before.sha256()
    store.save(before)
    store.save(advance(simulation, 1))
    path = tmp_path / name
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
    assert loaded.sha256() == digest
    assert "checkpoint-4.json is damaged" in caplog.text
    # Going on from there must not build on what is damaged: rounds 4 and 5 again, saved once after each or after both.
    for rounds in ((1, 1), (2,)):
        again = Checkpoints(tmp_path)
        state = again.load()
        assert state is not None
        simulation.restore(state)
        for count in rounds:
            if simulation.state().round < 5:
                again.save(advance(simulation, count))
        reread = Checkpoints(tmp_path).load()
        assert reread is not None
        assert reread.sha256() == simulation.state().sha256()


def test_any_byte_of_any_file_may_be_wrong(simulation: Simulation, tmp_path: Path) -> None:
    """120 flipped bytes, cuts and additions: what is loaded is one of the two states that were saved, or nothing."""
    store = Checkpoints(tmp_path)
    saved = set()
    for _ in range(2):
        state = advance(simulation, 1)
        store.save(state)
        saved.add(state.sha256())
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(120):
        path = rng.choice(sorted(tmp_path.iterdir()))
        whole = path.read_bytes()
        at = int(rng.integers(len(whole)))
        path.write_bytes(
            [whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :], whole[:at], whole + b"x"][
                int(rng.integers(3))
            ]
        )
        loaded = Checkpoints(tmp_path).load()
        seen.append(None if loaded is None else loaded.sha256())
        path.write_bytes(whole)
    assert set(seen) <= {None, *saved}
    assert len(set(seen) - {None}) == 2, "the newest where it is whole, else the one before"


@pytest.mark.parametrize("manifest", [2, "2", "[]", "{}", '{"clients": 1, "active": {}}', "[" * 100_000])
def test_a_manifest_of_a_strangers(simulation: Simulation, tmp_path: Path, manifest: object) -> None:
    """Its own checksum is right, but it is not one of ours: nothing is loaded, and the next save tidies it away."""
    checksum = hashlib.sha256(str(manifest).encode()).hexdigest()
    (tmp_path / "checkpoint-9.json").write_text(json.dumps({"sha256": checksum, "manifest": manifest}))
    store = Checkpoints(tmp_path)
    assert store.load() is None
    store.save(advance(simulation, 1))
    assert store.rounds() == [1]


@pytest.mark.parametrize("file", ["clients-4", "server-4", "checkpoint-4"])
def test_a_full_disk_leaves_the_checkpoint_before_and_nothing_else(
    file: str, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC while the first, the second or the last file is written: the directory is as it was before."""
    store = Checkpoints(tmp_path)
    store.save(advance(simulation, 3))
    digest, before = simulation.state().sha256(), {path.name for path in tmp_path.iterdir()}
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
    assert loaded.sha256() == digest
    monkeypatch.undo()
    store.save(state)
    again = Checkpoints(tmp_path).load()
    assert again is not None
    assert again.sha256() == state.sha256()


def test_a_manifest_cannot_name_files_elsewhere(simulation: Simulation, tmp_path: Path) -> None:
    inside = tmp_path / "cell"
    store = Checkpoints(inside)
    store.save(advance(simulation, 1))
    (inside / "server-1.safetensors").rename(tmp_path / "server-1.safetensors")
    path = inside / "checkpoint-1.json"
    body = json.loads(path.read_text())["manifest"].replace("server-1.safetensors", "../server-1.safetensors")
    path.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}))
    assert store.load() is None


def test_hash_of_the_state_sees_every_part(simulation: Simulation) -> None:
    state = advance(simulation, 2)
    digest = state.sha256()
    client = next(iter(state.clients))
    for part in (state.theta, state.server.c, state.clients[client].c):
        kept = part.clone()
        part[0] = torch.nextafter(part[0], torch.tensor(9.0))
        assert state.sha256() != digest
        part.copy_(kept)
    assert state.sha256() == digest
