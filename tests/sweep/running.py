"""Sweeps through the command line, for tests: started in a folder of their own, read back from its store."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from mlflow import MlflowClient

from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.sweep import Sweep
from fedray.tracking.store import get_label
from tests.conftest import list_environment

REPOSITORY = Path(__file__).parents[2]

SWEEP: dict[str, Any] = {
    "name": "small",
    "base": {
        "data": "digits", "clients": {"total": 10, "per_round": 3}, "model": {"name": "mlp", "hidden": [8]},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "training": {"rounds": 12, "local_epochs": 1, "batch_size": 50, "lr": 0.1}, "evaluation": {"every": 1},
        "runtime": {"checkpoint_every": 2},
    },
    "grid": {"algorithm": [{"name": "tests.plugins:Slow", "nap": 0.05}, {"name": "scaffold"}], "seed": [0, 1]},
}  # fmt: skip


def fedray(folder: Path, *arguments: str, module: str = "fedray", **variables: str) -> subprocess.Popen[str]:
    """A command in its own folder and session, so that killing it is like a lost machine, not like Ctrl-C."""
    environment = list_environment() | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"} | variables
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)


def start(folder: Path, sweep: dict[str, Any], *options: str, **variables: str) -> subprocess.Popen[str]:
    """`fedray sweep` of a sweep that is written into its folder."""
    return fedray(folder, "sweep", str(write(folder, sweep)), *options, **variables)


def until(process: subprocess.Popen[str], *words: str) -> list[str]:
    """Read the output of a command up to a line with all of these words; return the lines."""
    lines = list[str]()
    for line in process.stdout or ():
        lines.append(line)
        if all(word in line for word in words):
            return lines
    raise AssertionError(f"it ended before {words}: {lines}")


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
    return out if code != 2 else err


def write(folder: Path, sweep: dict[str, Any]) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep, allow_unicode=True), encoding="utf-8")
    return path


def runs(folder: Path) -> list[Any]:
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedray")
    return list(client.search_runs([experiment.experiment_id], "tags.`fedray.kind` = 'cell'"))


def state_hashes(folder: Path) -> dict[str, str]:
    """cell hash -> state_sha256 of its run; exactly one run per cell, FINISHED."""
    found = runs(folder)
    assert {run.info.status for run in found} == {"FINISHED"}
    assert max(Counter(run.data.tags["fedray.cell"] for run in found).values()) == 1
    return {run.data.tags["fedray.cell"]: run.data.tags["fedray.state_sha256"] for run in found}


def undisturbed(sweep: dict[str, Any]) -> dict[str, str]:
    """cell hash -> state_sha256 as one process without Ray and MLflow makes it, without any naps."""
    problems = Problems()
    sheet, _ = make_sheet(Sweep.model_validate(sweep), problems)
    with mock.patch("time.sleep"):
        results = {cell.hash: run(problems.get_problem(cell), InlineBackend()) for cell in sheet.cells.values()}
    return {hash: result.summary()["state_sha256"] for hash, result in results.items()}


def logged_once(folder: Path, rounds: int) -> None:
    """Assert that each run holds every round exactly once, for every metric of a row."""
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    for found in runs(folder):
        for name in ("test_accuracy", "test_loss", "train_loss", "lr"):
            steps = [metric.step for metric in client.get_metric_history(found.info.run_id, name)]
            assert sorted(steps) == list(range(1, rounds + 1)), f"{found.info.run_name}: {name}"


def outcome(folder: Path) -> dict[str, str]:
    """label -> fedray.status of each cell's run that is not superseded."""
    found = [(get_label(run), run.data.tags["fedray.status"]) for run in runs(folder)]
    return {label: status for label, status in found if status != "superseded"}


@contextlib.contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """A real `mlflow server` on 127.0.0.1; SIGKILLed, its workers too, at the end."""
    words = f"-m mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri".split()
    command = [sys.executable, *words, f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", folder / "files"]
    quiet: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, cwd=folder, start_new_session=True, **quiet)
    try:
        until_listening(port)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_listening(port: int, seconds: float = 200) -> None:
    """Return once something listens at the port of this machine. Raises TimeoutError if nothing does in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens at port {port} after {seconds:g} s")
