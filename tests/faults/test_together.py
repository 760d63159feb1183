"""Two sweeps at once on one store and one storage."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import SWEEP, done, fedray, logged_once, runs, state_hashes, undisturbed, write


@pytest.mark.faults
def test_two_sweeps_that_share_cells_run_each_of_them_once(tmp_path: Path) -> None:
    """Cells 0 1 2 3 and 2 3 4: five of them. Each is ended by one of the two, and both end with all of theirs.

    12 rounds of 3 clients that sleep 0.5 s each are 18 s a cell: time for the second sweep to start beside the first.
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
    assert "second: 2 cells are being run by another sweep; waiting for them" in out[1]
    assert len(runs(tmp_path)) == 5
    assert state_hashes(tmp_path) == undisturbed(first) | undisturbed(second)
    logged_once(tmp_path, 12)
