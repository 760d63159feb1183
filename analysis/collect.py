"""From MLflow to a checked table of runs: one row per cell of a sweep, the missing ones included."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run

from fedray.errors import UserError, unknown
from fedray.tracking import flat, open_store

RANK = ("finished", "diverged", "stopped", "failed", "interrupted", "running")
"""Where a cell has several runs, the one whose status comes first counts; the newest of those."""


@dataclass(frozen=True)
class Collected:
    """A sweep as MLflow knows it.

    cells: a row per cell: `cell` (hash), `label`, `status` (one of RANK or `missing`), `run_id`, the configuration
    under dotted names (strings), metrics under `metrics.NAME` (floats).
    """

    name: str
    cells: pd.DataFrame
    client: MlflowClient


def collect(name: str) -> Collected:
    """All cells of a sweep, wherever they ran. Raises UserError for an unknown sweep."""
    client, experiment = open_store()
    parents = {run.data.tags["fedray.sweep"]: run for run in _runs(client, experiment, "sweep")}
    if name not in parents:
        raise unknown("sweep", name, parents) if parents else UserError(f"sweep: {name!r} is not in this store, "
                                                                        "which holds no sweep at all")
    best: dict[str, Run] = {}
    for run in _runs(client, experiment, "cell"):  # newest first
        status = run.data.tags.get("fedray.status", "running")
        cell = run.data.tags["fedray.cell"]
        if status in RANK and (cell not in best or RANK.index(status) < RANK.index(_status(best[cell]))):
            best[cell] = run
    rows = [_row(cell, best.get(cell["hash"])) for cell in _expected(client, parents[name])]
    return Collected(name, pd.DataFrame(rows), client)


def _runs(client: MlflowClient, experiment: str, kind: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.`fedray.kind` = '{kind}'", max_results=1000, page_token=token,
                                  order_by=["attributes.start_time DESC"])
        yield from page
        token = page.token
        if not token:
            return


def _expected(client: MlflowClient, parent: Run) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(parent.info.run_id, "cells.json", folder)
        cells: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return cells


def _status(run: Run) -> str:
    return str(run.data.tags.get("fedray.status", "running"))


def _row(cell: dict[str, Any], run: Run | None) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell["hash"], "label": cell["label"], "status": "missing", "run_id": None}
    row |= flat({key: value for key, value in cell["config"].items() if key != "runtime"})
    if run is not None:
        row |= {"status": _status(run), "run_id": run.info.run_id}
        row |= {f"metrics.{name}": value for name, value in run.data.metrics.items()}
        row |= {"message": run.data.tags.get("fedray.message", "")}
    return row
