"""Two sweeps at once on one store and one storage."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedray.sweep.plan.storage import CellLocks
from tests.sweep.running import SWEEP, done, fedray, logged_once, runs, state_hashes, undisturbed, write


@pytest.mark.faults
def test_two_sweeps_that_share_cells_run_each_of_them_once(tmp_path: Path) -> None:
    """Cells 0 1 2 3 and 2 3 4: five of them. Each is trained by one of the two, and both end with all of theirs.

    12 rounds of 3 clients that sleep 0.5 s each are 18 s per cell: time for the second sweep to start next to the
    first, unless the machine is busy with other things.
    """

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
    write(tmp_path, SWEEP)
    with CellLocks(tmp_path / ".fedray/locks/.cells") as claims:
        held = sorted(undisturbed(SWEEP))[:2]
        assert claims.take(held) == set(held)
        driver = fedray(tmp_path, "sweep", "sweep.yaml")
        assert driver.stdout is not None
        lines = list[str]()
        for line in driver.stdout:
            lines.append(line)
            if "[2/2] finished" in line:
                break
        assert "small: 2 cells are being run by another sweep; waiting for them\n" in lines
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
