"""The MLflow server dies under a sweep and comes back, or does not; the wall clock jumps by days."""

import os
import time
from pathlib import Path

import pytest

from tests.sweep.running import (
    REPOSITORY,
    SWEEP,
    done,
    fedray,
    logged_once,
    outcome,
    runs,
    server,
    start,
    state_hashes,
    undisturbed,
    until,
)


@pytest.mark.faults
def test_a_server_killed_and_started_again_misses_nothing_and_repeats_nothing(tmp_path: Path, port: int) -> None:
    """It dies when one cell has been logged; the other three run, and two of them end, while it is away."""
    variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with server(tmp_path, port):
        driver = start(tmp_path, SWEEP, **variables)
        until(driver, "[1/4]")
    until(driver, "[3/4]")
    assert driver.poll() is None
    with server(tmp_path, port):
        assert "small: 4 finished" in done(driver)
        shown = done(fedray(tmp_path, "ui", "small", **variables))
        assert shown.startswith(f"the server shows the runs at http://127.0.0.1:{port}/#/experiments/1/runs?")
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_a_server_that_stays_away_is_said_at_the_end_and_the_next_call_completes_the_log(
    tmp_path: Path, port: int
) -> None:
    variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with server(tmp_path, port):
        driver = start(tmp_path, SWEEP, **variables, FEDRAY_STORE_PATIENCE="3")
        until(driver, "[1/4]")
    message = done(driver, code=2)
    assert "MLflow has been unreachable for 3 s" in message
    assert "Run the same command again" in message
    assert list(outcome(tmp_path).values()).count("finished") < 4, "the server died too late to show anything"
    with server(tmp_path, port):
        assert "small: 4 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml", **variables))
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)


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
    driver = start(tmp_path, SWEEP, PYTHONPATH=f"{site}{os.pathsep}{REPOSITORY}")
    until(driver, "[1/4]")  # Ray's own start measures its patience by the wall clock
    (site / "jump").touch()
    out = done(driver)
    assert "small: 4 finished" in out
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)
    for run in runs(tmp_path):
        assert 0 < run.data.metrics["summary/seconds_per_round"] < 60
    stamps = {at // 86_400_000 for run in runs(tmp_path) for at in (run.info.start_time, run.info.end_time)}
    assert stamps - today, "the clock did not jump"
