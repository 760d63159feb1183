"""The wall clock jumps by days, in every process of a sweep: steps, durations and states are as ever."""

import os
import time
from pathlib import Path

import pytest

from tests.sweep.running import REPOSITORY, SWEEP, done, fedray, logged_once, runs, state_hashes, undisturbed, write

JUMPING = """
import itertools, os, time
real, calls = time.time, itertools.count()
DAYS = (3, -2, 40, -400)
MARKER = os.path.join(os.path.dirname(__file__), "jump")
time.time = lambda: real() + (86400 * DAYS[next(calls) // 25 % len(DAYS)] if os.path.exists(MARKER) else 0)
"""
"""A sitecustomize: once the marker is there, `time.time()` jumps at every 25th call, forth and back."""


def _day() -> int:
    """Days since 1970, by this process's clock, which does not jump."""
    return int(time.time()) // 86_400


@pytest.mark.faults
def test_jumps_of_the_wall_clock_change_nothing(tmp_path: Path) -> None:
    today, site = {_day(), _day() + 1}, tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(JUMPING, encoding="utf-8")
    driver = fedray(tmp_path, "sweep", str(write(tmp_path, SWEEP)), PYTHONPATH=f"{site}{os.pathsep}{REPOSITORY}")
    assert driver.stdout is not None
    for line in driver.stdout:  # Ray's own start measures its patience by the wall clock
        if "[1/4]" in line:
            break
    (site / "jump").touch()
    out = done(driver)
    assert "small: 4 finished" in out
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)
    for run in runs(tmp_path):
        assert 0 < run.data.metrics["summary/seconds_per_round"] < 60
    stamps = {at // 86_400_000 for run in runs(tmp_path) for at in (run.info.start_time, run.info.end_time)}
    assert stamps - today, "the clock did not jump"
