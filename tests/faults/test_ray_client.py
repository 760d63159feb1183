"""`fedray sweep --address ray://...`: a driver in the cluster, a token, a password, relative paths, no secret shown."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tests.faults.test_store import port, server
from tests.sweep.running import (
    REPOSITORY,
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
from tests.tracking.proxy import PASSWORD, USER, proxy

__all__ = ["port"]
TOKEN = "c0ffee" * 8


def free() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def head(client: int, folder: Path, token: Path) -> Iterator[None]:
    """A Ray of two CPUs on 127.0.0.1 that takes drivers at the port `client`, with its files in `folder`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
    environment |= {"PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    options = {
        "port": free(),
        "ray-client-server-port": client,
        "node-ip-address": "127.0.0.1",
        "num-cpus": 2,
        "include-dashboard": "false",
        "temp-dir": folder,
        "object-store-memory": 100_000_000,
    }
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--disable-usage-stats"]
    process = subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in options.items())],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_listening(client)
        time.sleep(5)  # before, grpc's threads in Ray's proxy are not ready for a fork, and a driver may fail
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def command_lines() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes()
    return found


def holding(folder: Path, secrets: list[bytes]) -> list[str]:
    """Files below `folder` that contain a secret."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                found += [str(path) for secret in secrets if secret in content]
    return found


@pytest.mark.faults
@pytest.mark.parametrize("relative", [True, False])
def test_a_sweep_over_ray_client(relative: bool, tmp_path: Path, port: int) -> None:
    """Four cells on a user's .npz file, with a relative path or not, with checkpoints in a relative folder.

    The cells end as those of undisturbed runs do, and neither the store's password nor the cluster's token is found in
    what is printed, in Ray's logs, in the store, in checkpoints, or in any command line while the sweep runs.
    """
    work, elsewhere = tmp_path / "work", Path(tempfile.mkdtemp(prefix="fr"))
    work.mkdir()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(200, 6)), "x_test": rng.normal(size=(50, 6))}
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    np.savez(work / "data.npz", **arrays, y_train=np.arange(200) % 4, y_test=np.arange(50) % 4)
    base = SWEEP["base"] | {"data": {"name": "npz", "path": "data.npz" if relative else str(work / "data.npz")}}
    sweep: dict[str, Any] = {"name": "far", "base": base, "grid": {"algorithm": ["fedavg", "scaffold"], "seed": [0, 1]}}
    client, seen = free(), [b""]
    secrets = [PASSWORD.encode(), quote(PASSWORD, safe="").encode(), TOKEN.encode()]

    def look(stop: threading.Event) -> None:
        while not stop.wait(0.5):
            seen[0] += command_lines()

    try:
        with server(tmp_path, port), proxy(port) as store, head(client, elsewhere, token):
            stop = threading.Event()
            watcher = threading.Thread(target=look, args=(stop,))
            watcher.start()
            driver = fedray(
                work,
                "sweep",
                str(write(work, sweep)),
                "--address",
                f"ray://127.0.0.1:{client}",
                RAY_AUTH_MODE="token",
                RAY_AUTH_TOKEN_PATH=str(token),
                FEDRAY_STORAGE="storage" if relative else str(work / "storage"),
                MLFLOW_TRACKING_URI=f"http://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{store.port}",
            )
            out, err = driver.communicate(timeout=280)
            stop.set()
            watcher.join()
        assert driver.returncode == 0, out + err
        assert "far: 4 finished" in out
        assert {path.name for path in work.iterdir()} == {"data.npz", "sweep.yaml", "storage"}
        assert len(list((work / "storage/cells").iterdir())) == 4
        assert len(state_hashes(tmp_path)) == 4
        logged_once(tmp_path, 12)
        assert b"fedray.cli" in seen[0]
        assert not [secret for secret in secrets if secret in (out + err).encode() + seen[0]]
        assert holding(elsewhere, secrets) == []
        assert set(holding(tmp_path, secrets)) == {str(token)}
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


@pytest.mark.faults
def test_ctrl_c_over_ray_client_is_written_down_and_the_next_call_goes_on(tmp_path: Path) -> None:
    """The driver in the cluster ends as one here does: no run is left running, and nothing is made twice.

    The first two cells take 2 s each and the last two 18 s (12 rounds, 3 clients' naps), because a line of a driver in
    the cluster arrives late: with four short cells the sweep can be over before the signal.
    """
    slow = [{"name": "tests.plugins:Slow", "nap": nap} for nap in (0.05, 0.5)]
    sweep = SWEEP | {"grid": {"algorithm": slow, "seed": [0, 1]}}
    token, elsewhere, client = tmp_path / "token", Path(tempfile.mkdtemp(prefix="fr")), free()
    token.write_text(TOKEN)

    def call() -> subprocess.Popen[str]:
        return fedray(
            tmp_path,
            "sweep",
            str(write(tmp_path, sweep)),
            "--address",
            f"ray://127.0.0.1:{client}",
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN_PATH=str(token),
            FEDRAY_STORAGE=str(tmp_path / "storage"),
            MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path / 'mlflow.db'}",
        )

    try:
        with head(client, elsewhere, token):
            driver = call()
            assert driver.stdout is not None
            for line in driver.stdout:
                if "[1/4]" in line:
                    break
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=240)
            assert driver.returncode == 130
            first = outcome(tmp_path)
            assert set(first.values()) == {"finished", "interrupted"}
            assert "small: 4 finished" in done(call())
        assert state_hashes(tmp_path) == undisturbed(sweep)
        logged_once(tmp_path, 12)
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)
