"""A sweep as one file: its cells with settings, curves, artefacts and hashes, to be merged into another store.

The file is a zip: `sweep.json` (the sweep's name, description and cells), and for each cell that has a run
`runs/CELL/run.json` (status, tags, parameters, metrics with all their steps) and `runs/CELL/artifacts/...`.
"""

import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from fedray.common.errors import UserError, one_line, unknown
from fedray.tracking.store import RANK, best_runs, cells_of, open_store, status, sweeps_in
from fedray.tracking.tracker import BATCH, Tracker

FORMAT = 1
"""Raised when older versions of fedray could not read a new archive."""
PARAMS = 100
"""Parameters that MLflow takes in one request."""


@dataclass(frozen=True)
class StoredSweep:
    """A sweep as the store knows it.

    Attributes:
        cells: hash, label and configuration of each cell, in the sweep's order.
        runs: hash -> the run that counts, of the cells that have one.
    """

    name: str
    description: str
    cells: list[dict[str, Any]]
    runs: dict[str, Run]
    client: MlflowClient


def stored_sweep(name: str) -> StoredSweep:
    """A sweep of the store, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_store()
    parents = sweeps_in(client, experiment)
    if name not in parents:
        raise unknown("sweep", name, parents)
    parent = parents[name]
    cells = cells_of(client, parent)
    runs = best_runs(client, experiment, [cell["hash"] for cell in cells])
    return StoredSweep(name, parent.data.tags.get("mlflow.note.content", ""), cells, runs, client)


def export_sweep(name: str, file: Path) -> int:
    """Write a sweep into an archive.

    Args:
        name: of a sweep in the store.
        file: the archive; it appears whole or not at all.

    Returns:
        How many cells with a run it holds.

    Raises:
        UserError: there is no such sweep, or the file exists or cannot be written.
    """
    if file.exists():
        raise UserError(f"{file}: exists; remove it or choose another name")
    sweep = stored_sweep(name)
    try:
        with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".export-") as folder:
            made = Path(folder) / "archive"
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                about = {"format": FORMAT, "name": name, "description": sweep.description, "cells": sweep.cells}
                archive.writestr("sweep.json", json.dumps(about))
                for cell, run in sweep.runs.items():
                    _pack(sweep.client, run, archive, f"runs/{cell}")
            made.rename(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    return len(sweep.runs)


def _pack(client: MlflowClient, run: Run, archive: zipfile.ZipFile, folder: str) -> None:
    run_id = run.info.run_id
    about = {
        "name": run.info.run_name,
        "status": run.info.status,
        "start": run.info.start_time,
        "end": run.info.end_time,
        "tags": {key: value for key, value in run.data.tags.items() if key != MLFLOW_PARENT_RUN_ID},
        "params": run.data.params,
        "metrics": {
            key: [[point.value, point.timestamp, point.step] for point in client.get_metric_history(run_id, key)]
            for key in run.data.metrics
        },
    }
    archive.writestr(f"{folder}/run.json", json.dumps(about))
    with tempfile.TemporaryDirectory() as scratch:
        for artifact in client.list_artifacts(run_id):
            client.download_artifacts(run_id, artifact.path, scratch)
        for path in sorted(Path(scratch).rglob("*")):
            if path.is_file():
                archive.write(path, f"{folder}/artifacts/{path.relative_to(scratch).as_posix()}")


def import_sweep(file: Path) -> tuple[str, int, int]:
    """Merge an archive into the store: a cell whose run here is as good as the archive's keeps it.

    Importing the same archive again changes nothing.

    Returns:
        The sweep's name, how many cells were added, and how many were there already.

    Raises:
        UserError: the file is not an archive of fedray, or the store cannot be used.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            about = _read(archive, "sweep.json", {"format": int, "name": str, "description": str, "cells": list})
            if about["format"] > FORMAT:
                raise UserError(f"{file}: was made by a newer version of fedray (format {about['format']})")
            runs = {cell: _read(archive, f"runs/{cell}/run.json", RUN) for cell in _cells(archive)}
            return about["name"], *_merge(archive, about, runs)
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UserError(f"{file}: cannot be read as an archive of fedray: {reason}") from None


RUN: dict[str, type] = {"name": str, "status": str, "start": int, "tags": dict, "params": dict, "metrics": dict}


def _read(archive: zipfile.ZipFile, name: str, fields: Mapping[str, type]) -> dict[str, Any]:
    """A JSON object of the archive that has these fields. Raises KeyError, TypeError or ValueError."""
    found = json.loads(archive.read(name))
    for field, kind in fields.items():
        if not isinstance(found[field], kind):
            raise TypeError(f"{name}: {field} is not of type {kind.__name__}")
    return dict(found)


def _cells(archive: zipfile.ZipFile) -> list[str]:
    """Hashes of the cells that have a run. Raises ValueError for a member that would lie elsewhere once unpacked."""
    for name in archive.namelist():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            raise ValueError(f"{name} lies outside of the archive")
    parts = (PurePosixPath(name).parts for name in archive.namelist())
    return [part[1] for part in parts if len(part) == 3 and (part[0], part[2]) == ("runs", "run.json")]


def _merge(archive: zipfile.ZipFile, about: Mapping[str, Any], runs: Mapping[str, dict[str, Any]]) -> tuple[int, int]:
    tracker = Tracker()
    known = best_runs(tracker.client, tracker.experiment, runs)
    parent = tracker.open_sweep(about["name"], about["description"], _union(tracker, about))
    added = 0
    for cell, run in runs.items():
        there = RANK.index(status(known[cell])) if cell in known else len(RANK)
        if RANK.index(run["tags"].get("fedray.status", "running")) < there:
            _unpack(tracker, archive, cell, run, parent)
            added += 1
    outcomes = best_runs(tracker.client, tracker.experiment, [cell["hash"] for cell in about["cells"]])
    counts = {name: sum(status(run) == name for run in outcomes.values()) for name in RANK}
    tracker.close_sweep(parent, counts | {"missing": len(about["cells"]) - len(outcomes)})
    tracker.close()
    return added, len(runs) - added


def _union(tracker: Tracker, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sweep's cells, with those that the store's sweep of the same name has beside."""
    try:
        there = stored_sweep(about["name"]).cells
    except UserError:
        there = []
    return list({cell["hash"]: cell for cell in [*there, *about["cells"]]}.values())


def _unpack(tracker: Tracker, archive: zipfile.ZipFile, cell: str, run: Mapping[str, Any], parent: str) -> None:
    """Make a run of the store; one that could not be made whole is deleted again."""
    client = tracker.client
    tags = {str(key): str(value) for key, value in run["tags"].items()}
    final = tags.pop("fedray.status", "running")
    tags |= {"fedray.kind": "cell", "fedray.cell": cell, "fedray.status": "running", MLFLOW_PARENT_RUN_ID: parent}
    made = client.create_run(tracker.experiment, run["start"], tags, run["name"]).info.run_id
    try:
        params = [Param(key, value) for key, value in run["params"].items()]
        for some in _batches(params, PARAMS):
            client.log_batch(made, params=some)
        metrics = [
            Metric(key, float(value), int(stamp), int(step))
            for key, points in run["metrics"].items()
            for value, stamp, step in points
        ]
        for some in _batches(metrics, BATCH):
            client.log_batch(made, metrics=some)
        prefix = f"runs/{cell}/artifacts/"
        with tempfile.TemporaryDirectory() as scratch:
            for name in archive.namelist():
                if name.startswith(prefix) and not name.endswith("/"):
                    path = Path(scratch) / name.removeprefix(prefix)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
            client.log_artifacts(made, scratch)
        client.log_batch(made, tags=[RunTag("fedray.status", final)])
        client.set_terminated(made, run["status"], run.get("end"))
    except BaseException:
        client.delete_run(made)
        raise


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
