"""One cell runs out of memory or disk, or the driver is interrupted: the others continue; a new call resumes it."""

import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mlflow import MlflowClient

from fedray.common.explain import LESS_MEMORY
from fedray.common.vectors import Vectors
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.state import load_state
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.sweep import Sweep
from tests.sweep.running import SWEEP, done, fedray, logged_once, outcome, runs, start, state_hashes, undisturbed, until


@pytest.mark.faults
def test_a_cell_that_runs_out_of_memory_or_disk_does_not_disturb_the_others(tmp_path: Path) -> None:
    """A tensor of 256 MiB under an RLIMIT_AS that leaves 128; files of 2 kB at most from round 6 on (RLIMIT_FSIZE). The
    checkpoint of round 4 stays (every second round has one). Once there is room again the cell continues from it and
    ends like an undisturbed one."""
    marker = tmp_path / "marker"
    marker.touch()
    greedy_one = {"algorithm": {"name": "tests.plugins:Greedy", "mebibytes": 256}}
    filling = {"algorithm": {"name": "tests.plugins:FillsDisk", "marker": str(marker)}}
    lifting = {"algorithm": "tests.plugins:FillsDisk"}  # it lifts the limit of its process
    base = SWEEP["base"] | {"training": SWEEP["base"]["training"] | {"lr_decay": 0.9}}
    small = {"name": "small", "base": base, "cases": [greedy_one, filling, lifting]}
    out = done(start(tmp_path, small), code=1)
    assert "small: 2 failed, 1 finished" in out
    messages = {one.data.tags["fedray.message"] for one in runs(tmp_path)} - {""}
    greedy, disk = sorted(messages, key=lambda text: "checkpoint" in text)
    assert "client " in greedy
    assert " samples): out of memory: " in greedy
    assert greedy.endswith(f"; {LESS_MEMORY}")
    assert "the checkpoint of round 6 cannot be written: File too large; that of round 4 stays" in disk
    cells = {path.name: Checkpoints(path).list_rounds() for path in (tmp_path / ".fedray/cells").iterdir()}
    assert sorted(map(max, filter(None, cells.values()))) == [4, 12], "of the greedy one no checkpoint was due"
    assert not list((tmp_path / ".fedray").rglob("*.tmp"))
    marker.unlink()
    assert "small: 1 failed, 2 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml"), code=1)
    expected = undisturbed(small | {"cases": small["cases"][1:]})
    found = {one.data.tags["fedray.cell"]: one.data.tags.get("fedray.state_sha256") for one in runs(tmp_path)}
    assert expected.items() <= found.items()


@pytest.mark.faults
def test_sigterm_keeps_the_rounds_made_and_the_next_call_goes_on(tmp_path: Path) -> None:
    """No checkpoint is due in these 12 rounds: the one found was made when the sweep was interrupted. 12 rounds of 3
    clients that sleep 0.5 s each are 18 s; the other cell is done in one or two."""
    slow = SWEEP | {
        "base": SWEEP["base"] | {"runtime": {"checkpoint_every": 1000}},
        "grid": {"algorithm": ["scaffold", {"name": "tests.plugins:Slow", "nap": 0.5}]},
    }
    driver = start(tmp_path, slow)
    until(driver, "[1/2]")
    time.sleep(4)
    driver.send_signal(signal.SIGTERM)  # `timeout` sends it to the command and to the whole group, with Ray's processes
    os.killpg(driver.pid, signal.SIGTERM)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "interrupted; run the same command again to resume" in err
    assert {run.info.status for run in runs(tmp_path)} <= {"FINISHED", "FAILED"}
    assert "interrupted" in set(outcome(tmp_path).values())
    rounds = [max(Checkpoints(path).list_rounds()) for path in (tmp_path / ".fedray/cells").iterdir()]
    assert any(0 < round < 12 for round in rounds), rounds
    assert "small: 2 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml"))
    assert state_hashes(tmp_path) == undisturbed(slow)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_a_killed_force_has_lost_no_cell_that_it_did_not_reach(tmp_path: Path) -> None:
    """Of twelve cells the first has ended again, two run or have just ended, and at most four wait in Tune."""
    sweep = SWEEP | {"grid": {"seed": [*range(12)]}, "base": SWEEP["base"] | {"algorithm": "fedavg"}}
    done(start(tmp_path, sweep))
    driver = start(tmp_path, sweep, "--force")
    until(driver, "[1/12]")
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=60)
    assert list(outcome(tmp_path).values()).count("finished") >= 12 - 7
    assert "12 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml"))
    states = {one.data.tags["fedray.cell"]: one.data.tags.get("fedray.state_sha256") for one in runs(tmp_path)}
    assert states == undisturbed(sweep)


def kill_and_resume(folder: Path, slow: dict[str, Any]) -> dict[int, Vectors]:
    """Kill the processes of a sweep of one cell by SIGKILL after its first checkpoint, and run it again to its end.

    Two Ray actors train. Every second round has a checkpoint; 12 rounds of 3 clients that sleep take 9 s or more.
    The resumed cell must have the state of an undisturbed one, and each round once.

    Returns:
        What each client kept when it was killed.
    """
    driver = start(folder, slow)
    cells, deadline = folder / ".fedray/cells", time.monotonic() + 240
    while not (made := [Checkpoints(path).list_rounds() for path in cells.glob("*")]) or not any(made):
        assert driver.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint in 240 s"
        time.sleep(0.1)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=60)
    [path] = cells.iterdir()
    state = Checkpoints(path, path.name).load()
    assert state is not None
    assert 0 < state.round < 12
    kept = {i: load_state(one) for i, one in state.clients.items()}  # the resumed run removes their files
    assert "small: 1 finished" in done(fedray(folder, "sweep", "sweep.yaml"))
    assert state_hashes(folder) == undisturbed(slow)
    logged_once(folder, 12)
    return kept


def one_slow(**sections: dict[str, Any]) -> dict[str, Any]:
    """A sweep of one cell whose clients sleep; sections: additions to those of its base."""
    base = SWEEP["base"] | {"runtime": SWEEP["base"]["runtime"] | {"actors": 2}}
    base |= {name: base[name] | more for name, more in sections.items()}
    return {"name": "small", "base": base, "grid": {"algorithm": [{"name": "tests.plugins:Slow", "nap": 0.5}]}}


@pytest.mark.faults
def test_sigkill_with_moments_that_clients_keep(tmp_path: Path) -> None:
    """Each client keeps AdamW's moments, which are part of the state compared."""
    slow = one_slow(training={"optimizer": "adamw", "adamw": {"state": "client"}, "lr": 0.01})
    kept = kill_and_resume(tmp_path, slow)
    assert any(name.startswith("optimizer_") for vectors in kept.values() for name in vectors)


@pytest.mark.faults
def test_sigkill_with_clients_that_never_train(tmp_path: Path) -> None:
    """Four newcomers are tested every third round, before and after the kill: the numbers of an undisturbed run."""
    slow = one_slow(clients={"unseen": 4}, evaluation={"personal": {"epochs": [0, 1], "every": 3}})
    kept = kill_and_resume(tmp_path, slow)
    assert max(kept, default=0) < 10, "newcomers keep nothing"
    problems = Problems()
    sheet, _ = make_sheet(Sweep.model_validate(slow), problems)
    [cell] = sheet.cells.values()
    with mock.patch("time.sleep"):
        rows = run(problems.get_problem(cell), InlineBackend()).history
    [found], client = runs(tmp_path), MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    for name in ("unseen_accuracy", "unseen_std", "unseen_worst10", "unseen_finetuned_accuracy"):
        logged = {one.step: one.value for one in client.get_metric_history(found.info.run_id, name)}
        assert logged == {row["round"]: row[name] for row in rows if name in row}
        assert sorted(logged) == [3, 6, 9, 12]
