"""The soak's victims are found under the names that their processes really have."""

import time
from pathlib import Path

import pytest

from benchmarks.soak import WHOLE, kind, processes
from tests.sweep.running import SWEEP, done, fedray, write


@pytest.mark.faults
def test_a_sweeps_processes_have_the_names_that_the_soak_knows(tmp_path: Path) -> None:
    """A real sweep: while a cell trains there are its driver, all of Ray, a trial and two client actors."""
    slow = SWEEP | {
        "base": SWEEP["base"] | {"runtime": {"actors": 2}},
        "grid": {"algorithm": [{"name": "tests.plugins:Slow", "nap": 0.3}]},
    }
    driver = fedray(tmp_path, "sweep", str(write(tmp_path, slow)), FEDRAY_SOAK="test")
    seen: set[str] = set()
    while driver.poll() is None:
        seen |= {kind(command) for command in processes("test").values()}
        time.sleep(0.2)
    done(driver)
    assert set(WHOLE) <= seen
