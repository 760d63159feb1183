"""Two sweeps at once on one store and one storage, and the cells of one sweep as processes of their own."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from fedray.sweep.storage import CellLocks
from tests.sweep.running import (
    SWEEP,
    done,
    fedray,
    logged_once,
    runs,
    server,
    start,
    state_hashes,
    undisturbed,
    until,
    write,
)


@pytest.mark.faults
def test_two_sweeps_that_share_cells_run_each_of_them_once(tmp_path: Path) -> None:
    """Cells 0 1 2 3 and 2 3 4: five of them. Each is trained by one of the two, and both end with all of theirs. 12
    rounds of 3 clients that sleep 0.5 s each are 18 s per cell: time for the second sweep to start next to the first,
    unless the machine is busy with other things."""

    def slow(name: str, seeds: list[int]) -> dict[str, Any]:
        algorithm = [{"name": "tests.plugins:Slow", "nap": 0.5}]
        return SWEEP | {"name": name, "grid": {"algorithm": algorithm, "seed": seeds}}

    first, second = slow("first", [0, 1, 2, 3]), slow("second", [2, 3, 4])
    write(tmp_path, first).rename(tmp_path / "first.yaml")
    write(tmp_path, second).rename(tmp_path / "second.yaml")
    drivers = [fedray(tmp_path, "sweep", "first.yaml")]
    while not list(tmp_path.glob(".fedray/cells/*/*.json")):
        assert drivers[0].poll() is None
        time.sleep(0.1)
    drivers.append(fedray(tmp_path, "sweep", "second.yaml"))
    out = [done(driver) for driver in drivers]
    assert "first: 4 finished" in out[0]
    assert "second: 3 finished" in out[1]
    ended = [line for text in out for line in text.splitlines() if "] finished" in line]
    assert len(ended) == 5, ended
    assert len(runs(tmp_path)) == 5
    assert state_hashes(tmp_path) == undisturbed(first) | undisturbed(second)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_cells_that_another_process_holds_are_waited_for_and_run_when_it_gives_them_up(tmp_path: Path) -> None:
    """The other process is this one. It holds two of four cells until the other two have ended, and never runs them."""
    with CellLocks(tmp_path / ".fedray/locks/.cells") as locks:
        held = sorted(undisturbed(SWEEP))[:2]
        assert locks.take(held) == set(held)
        driver = start(tmp_path, SWEEP)
        lines = until(driver, "[2/2] finished")
        assert "small: 2 cells being run by another process; waiting for them\n" in lines
        while not (tmp_path / "mlflow.db").exists() or len(runs(tmp_path)) < 2:
            time.sleep(0.5)
            assert driver.poll() is None
        time.sleep(3)
        assert driver.poll() is None
        assert len(runs(tmp_path)) == 2
    out = done(driver)
    assert "[2/2] finished" in out
    assert "small: 4 finished" in out
    assert state_hashes(tmp_path) == undisturbed(SWEEP)


EIGHT = SWEEP | {"grid": {"algorithm": [{"name": "tests.plugins:Slow", "nap": 0.05}], "seed": list(range(8))}}


def start_cell(folder: Path, number: int, *options: str, **variables: str) -> Any:
    task = {"SLURM_ARRAY_TASK_ID": str(number)} | variables
    cell = ("--cell", str(number), "--backend", "inline")
    return fedray(folder, "run", "sweep.yaml", *cell, *options, **task)


def run_eight(folder: Path, *options: str, **variables: str) -> None:
    """Run eight cells at once, kill one when it has a checkpoint, and run its cell again."""
    write(folder, EIGHT)

    def give(number: int) -> list[str]:
        return [option.format(number) for option in options]

    tasks = {number: start_cell(folder, number, *give(number), **variables) for number in range(1, 9)}
    while not list(folder.glob(".fedray/cells/*/checkpoint-*.json")):
        for task in tasks.values():
            if task.poll() is not None:
                done(task)
        time.sleep(0.05)
    killed = next(number for number, task in tasks.items() if task.poll() is None)
    os.killpg(tasks[killed].pid, signal.SIGKILL)
    tasks.pop(killed).communicate()
    for task in tasks.values():
        done(task)
    done(start_cell(folder, killed, *give(killed), **variables))


@pytest.mark.faults
def test_eight_cells_at_once_write_archives_that_one_command_imports(tmp_path: Path) -> None:
    run_eight(tmp_path, "--archive", "cells/{}.zip")
    assert not (tmp_path / "mlflow.db").exists()
    out = done(fedray(tmp_path, "import", *(f"cells/{number}.zip" for number in range(1, 9))))
    assert out == "small: 1 cell added, 0 already present\n" * 8
    assert json.loads(done(fedray(tmp_path, "status", "--json")))[0]["cells"] == {"finished": 8}
    assert state_hashes(tmp_path) == undisturbed(EIGHT)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_eight_cells_at_once_on_a_server_are_one_sweep(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port):
        address = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
        run_eight(tmp_path, **address)
        shown = json.loads(done(fedray(tmp_path, "status", "--json", **address)))
    assert shown == [{"name": "small", "cells": {"finished": 8}, "running": False}]
    assert state_hashes(tmp_path) == undisturbed(EIGHT)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_three_cells_at_once_make_a_new_store_together(tmp_path: Path) -> None:
    """Each of the three finds no file, and makes the store's tables, the experiment and the sweep's run."""
    write(tmp_path, SWEEP)
    options = ("--backend", "inline", "--cell")
    for task in [fedray(tmp_path, "run", "sweep.yaml", *options, str(number)) for number in (1, 2, 3)]:
        done(task)
    found = runs(tmp_path)
    assert sorted(run.data.tags["fedray.status"] for run in found) == ["finished"] * 3
    assert {run.info.status for run in found} == {"FINISHED"}
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_two_folders_that_share_a_store_leave_one_finished_run_per_cell(tmp_path: Path) -> None:
    """Neither sees the other's locks, so both train all cells; of a cell's two runs the older one counts."""
    drivers = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, SWEEP)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    MlflowClient(tracking_uri=address).search_experiments()  # makes the store
    for name in ("first", "second"):
        drivers.append(fedray(tmp_path / name, "sweep", "sweep.yaml", MLFLOW_TRACKING_URI=address))
    assert all("small: 4 finished" in done(driver) for driver in drivers)
    finished = [run for run in runs(tmp_path) if run.data.tags["fedray.status"] == "finished"]
    assert len(finished) == len({run.data.tags["fedray.cell"] for run in finished}) == 4


@pytest.mark.faults
def test_a_project_folder_that_is_renamed_during_its_sweep_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    driver = fedray(tmp_path / "project", "sweep", str(write(tmp_path, SWEEP)))
    lock = tmp_path / "project" / ".fedray" / "locks" / "small"
    while not (lock.is_file() and lock.stat().st_size):
        assert driver.poll() is None
        time.sleep(0.05)
    (tmp_path / "project").rename(tmp_path / "moved")
    message = done(driver, 2)
    assert f"{tmp_path / 'project'}: this folder was renamed or replaced while the sweep ran" in message
