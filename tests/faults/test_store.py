"""The MLflow server dies under a sweep and comes back, or does not."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweep.running import (
    SWEEP,
    done,
    fedray,
    logged_once,
    outcome,
    state_hashes,
    undisturbed,
    until_listening,
    write,
)


@contextlib.contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """A real `mlflow server` on 127.0.0.1; SIGKILLed, its workers too, at the end."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{folder / 'mlflow.db'}",
            "--artifacts-destination",
            str(folder / "files"),
        ],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_listening(port)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.mark.faults
def test_a_server_killed_and_started_again_misses_nothing_and_repeats_nothing(tmp_path: Path, port: int) -> None:
    """It dies when one cell has been logged; the other three run, and two of them end, while it is away."""
    variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with server(tmp_path, port):
        driver = fedray(tmp_path, "sweep", str(write(tmp_path, SWEEP)), **variables)
        assert driver.stdout is not None
        for line in driver.stdout:
            if "[1/4]" in line:
                break
    for line in driver.stdout:
        if "[3/4]" in line:
            break
    assert driver.poll() is None
    with server(tmp_path, port):
        assert "small: 4 finished" in done(driver)
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_a_server_that_stays_away_is_said_at_the_end_and_the_next_call_completes_the_log(
    tmp_path: Path, port: int
) -> None:
    variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with server(tmp_path, port):
        driver = fedray(tmp_path, "sweep", str(write(tmp_path, SWEEP)), **variables, FEDRAY_STORE_PATIENCE="3")
        assert driver.stdout is not None
        for line in driver.stdout:
            if "[1/4]" in line:
                break
    message = done(driver, code=2)
    assert "MLflow has been unreachable for 3 s" in message
    assert "Run the same command again" in message
    assert list(outcome(tmp_path).values()).count("finished") < 4, "the server died too late to show anything"
    with server(tmp_path, port):
        assert "small: 4 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml", **variables))
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)
