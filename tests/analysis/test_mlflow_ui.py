"""MLflow's own pages over a sweep's runs, looked at in a real browser."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from fedray.tracking.store import search
from fedray.tracking.tracker import Tracker
from tests.analysis.browser import browser, opened
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write

pytestmark = pytest.mark.slow  # a server to start, and a page that is a program of megabytes


@pytest.fixture
def server(store: Tracker, tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on this store, on the loopback interface only."""
    browser()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_BACKEND_STORE_URI": os.environ["MLFLOW_TRACKING_URI"]}
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                with urlopen(f"{address}/health", timeout=5):  # noqa: S310
                    break
            except OSError:
                assert process.poll() is None, "MLflow's server ended"
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def test_runs_are_grouped_and_readable(store: Tracker, server: str, tmp_path: Path) -> None:
    """The experiment's page: one row, the sweep, with its four cells folded below it. A cell's page: its readable name,
    its parameters, finished. Two cells compared: both by name, with the parameter in which they differ.
    """
    cells = [cell(a, alpha, 0) for a in (FEDAVG, SMALL) for alpha in (0.1, 0.5)]
    for one in cells:
        one["label"] = f"{one['config']['algorithm']['name']} dirichlet({one['config']['partition']['alpha']}) s0"
    write(store, cells, [history(50 + k, 60 + k) for k in range(len(cells))])
    (parent,) = search(store.client, store.experiment, "tags.`fedray.kind` = 'sweep'")
    store.close_sweep(parent.info.run_id, {"finished": 4})
    flags = ("--virtual-time-budget=60000",)
    dom, _ = opened(f"{server}/#/experiments/{store.experiment}/runs", tmp_path / "profile", *flags)
    text = re.sub(r"<[^>]+>", "\n", dom)
    assert re.search(r"^\s*sweep\s*$", text, re.M), "the parent's row"
    assert "fedavg dirichlet(0.1) s0" not in text, "a sweep's runs are folded below it"
    assert re.search(r"^\s*5\s*matching runs", text, re.M), "the sweep and its four cells"
    one, other, *_ = [run for run in search(store.client, store.experiment, "tags.`fedray.kind` = 'cell'")]
    dom, _ = opened(f"{server}/#/experiments/{store.experiment}/runs/{one.info.run_id}", tmp_path / "profile", *flags)
    text = re.sub(r"<[^>]+>", "\n", dom)
    assert one.info.run_name in text
    assert "partition.alpha" in text
    assert "Finished" in text
    both = f'["{one.info.run_id}","{other.info.run_id}"]'
    dom, _ = opened(
        f"{server}/#/compare-runs?runs={both}&experiments=[%22{store.experiment}%22]", tmp_path / "profile", *flags
    )
    text = re.sub(r"<[^>]+>", "\n", dom)
    assert one.info.run_name in text
    assert other.info.run_name in text
    assert "partition.alpha" in text
    assert not any(run.info.status == "RUNNING" for run in search(store.client, store.experiment, ""))
