"""A sweep as one file: its cells with settings, curves, artefacts and hashes, to be merged into another store.

The file is a zip: `sweep.json` (the sweep's name, description and cells), and for each cell that has a run
`runs/CELL/run.json` (status, tags, parameters, metrics with all their steps) and `runs/CELL/artifacts/...`. A run's
split (`partition.npz` and its picture) is `splits/SHA256` instead, once for all runs that share it, and so is its
environment, `environments/HASH.json`. A sweep that tunes takes its tune stage along (`tune` in `sweep.json`).
`sweep.yaml` is the sweep's file. A deposit also has members for readers (`fedray.analysis.deposit`), which an import
passes over.
"""

import hashlib
import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from fedray.common.errors import UserError, escape, join_lines, redact, unknown
from fedray.runs.status import Status
from fedray.tracking.archive_check import FORMAT, SPLITS, CheckedArchive, open_checked
from fedray.tracking.archive_models import ArchivedRun, ArchivedStage, is_exported_tag
from fedray.tracking.environment import Environment, keep_environment, list_hashes, read_environment
from fedray.tracking.store import (
    DESCRIPTION,
    SWEEP_FILE,
    best_runs,
    cells_of,
    file_of,
    open_store,
    read_status,
    sweeps_in,
)
from fedray.tracking.tracker import BATCH, Tracker

Points = dict[tuple[str, int], list[float]]
"""Name and step of a metric -> its values; honest runs have one."""
Agree = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
PARAMS = 100
"""Parameters that MLflow takes in one request."""


@dataclass(frozen=True)
class StoredSweep:
    """A sweep as the store knows it.

    Attributes:
        cells: hash, label and configuration of each cell, in the sweep's order.
        runs: hash -> the run that counts, of the cells that have one.
        file: the sweep's file as text; empty if the store does not have it.
    """

    name: str
    description: str
    cells: list[dict[str, Any]]
    runs: dict[str, Run]
    client: MlflowClient
    file: str
    experiment: str

    def environment(self, hash: str) -> Environment:
        """Return an environment that runs name. Raises UserError if it is missing."""
        try:
            return read_environment(self.client, self.experiment, hash)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    def read_points(self, cell: str) -> Points:
        """Return all values of all metrics of a cell's run."""
        run = self.runs[cell]
        found: Points = {}
        for name in run.data.metrics:
            for point in self.client.get_metric_history(run.info.run_id, name):
                found.setdefault((name, point.step), []).append(point.value)
        return found


def stored_sweep(name: str) -> StoredSweep:
    """A sweep of the store, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_store()
    parents = sweeps_in(client, experiment)
    if name not in parents:
        raise unknown("sweep", name, parents, "`fedray status`")
    parent = parents[name]
    cells = cells_of(client, parent)
    runs: dict[str, Any] = dict(best_runs(client, experiment, [cell["hash"] for cell in cells]))
    return StoredSweep(
        name, parent.data.tags.get(DESCRIPTION, ""), cells, runs, client, file_of(client, parent), experiment
    )


def export_sweep(name: str, file: Path, more: Mapping[str, bytes] = MappingProxyType({})) -> int:
    """Write a sweep into an archive: its cells, and the runs that have ended.

    Args:
        name: of a sweep in the store.
        file: the archive; it appears whole or not at all.
        more: members of a deposit: name -> content.

    Returns:
        How many cells with a run it holds.

    Raises:
        UserError: there is no such sweep, the file exists or cannot be written, the environment of a run is missing, or
            `import_sweep` would refuse it.
    """
    if file.exists():
        raise UserError(f"{file}: exists; remove it or choose another name")
    sweep, tune = stored_sweep(name), _find_tune_stage(name)
    runs = (tune.runs if tune else {}) | sweep.runs
    runs = {cell: run for cell, run in runs.items() if read_status(run) is not Status.RUNNING}
    try:
        with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".export-") as folder:
            made = Path(folder) / file.name
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                about = {"format": FORMAT, **_describe(sweep)} | ({"tune": _describe(tune)} if tune else {})
                archive.writestr("sweep.json", json.dumps(about))
                texts = {SWEEP_FILE: sweep.file.encode()} if sweep.file else {}
                for member, content in {**more, **texts}.items():
                    archive.writestr(member, content)
                for cell, run in runs.items():
                    _pack(sweep.client, run, archive, f"runs/{cell}")
                for hash in dict.fromkeys(hash for run in runs.values() for hash in list_hashes(run)):
                    archive.writestr(f"environments/{hash}.json", json.dumps(sweep.environment(hash)))
            with open_checked(made, f"{name}: cannot be exported"):
                made.rename(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    return len(runs)


def _find_tune_stage(name: str) -> StoredSweep | None:
    """Return the tune stage of a sweep; None if it has none."""
    client, experiment = open_store()
    stage = f"{name}/tune"
    return stored_sweep(stage) if stage in sweeps_in(client, experiment) else None


def _describe(sweep: StoredSweep) -> dict[str, Any]:
    return {"name": sweep.name, "description": sweep.description, "cells": sweep.cells}


def _pack(client: MlflowClient, run: Run, archive: zipfile.ZipFile, folder: str) -> None:
    run_id = run.info.run_id
    about = {
        "name": run.info.run_name,
        "status": read_status(run),
        "start": run.info.start_time,
        "end": run.info.end_time,
        "tags": {key: value for key, value in run.data.tags.items() if is_exported_tag(key)},
        "params": run.data.params,
        "metrics": {
            key: [[point.value, point.timestamp, point.step] for point in client.get_metric_history(run_id, key)]
            for key in run.data.metrics
        },
    }
    with tempfile.TemporaryDirectory() as scratch:
        for artifact in client.list_artifacts(run_id):
            client.download_artifacts(run_id, artifact.path, scratch)
        splits = {name: path for name in SPLITS if (path := Path(scratch) / name).is_file()}
        about["splits"] = {name: _pack_split(archive, path.read_bytes()) for name, path in splits.items()}
        for path in splits.values():
            path.unlink()
        archive.writestr(f"{folder}/run.json", json.dumps(about))
        for path in sorted(Path(scratch).rglob("*")):
            if path.is_file():
                archive.write(path, f"{folder}/artifacts/{path.relative_to(scratch).as_posix()}")


def _pack_split(archive: zipfile.ZipFile, content: bytes) -> str:
    """Write a split unless the archive holds it, and return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    if f"splits/{digest}" not in archive.NameToInfo:
        archive.writestr(f"splits/{digest}", content)
    return digest


def import_sweep(file: Path, agree: Agree = lambda config, identity: None) -> tuple[str, int, int]:
    """Merge an archive into the store: a cell whose run here is as good as the archive's keeps it.

    Importing the same archive again changes nothing. The store is not touched before the whole archive is checked.

    Args:
        file: the archive, which may come from a stranger.
        agree: called with each cell's configuration and identity; raises UserError if they disagree.

    Returns:
        The sweep's name, how many cells were added, and how many were there already.

    Raises:
        UserError: the file is not an archive of fedray, or the store cannot be used.
    """
    with open_checked(file, f"{file}: cannot be read as an archive of fedray") as archive:
        for cell in (cell for stage in archive.sweep.stages for cell in stage.cells):
            try:
                agree(cell.config, cell.identity)
            except UserError as error:
                raise UserError(f"{file}: cell {cell.hash}: {escape(str(error))}") from None
        try:
            counts = [_merge(archive, stage) for stage in archive.sweep.stages]
            return archive.sweep.name, sum(one for one, _ in counts), sum(one for _, one in counts)
        except MlflowException as error:
            raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {redact(join_lines(error))}") from None


def _merge(archive: CheckedArchive, sweep: ArchivedStage) -> tuple[int, int]:
    """Merge one stage; return how many cells were added, and how many were there already."""
    tracker, listed = Tracker(), {cell.hash for cell in sweep.cells}
    held = [cell for cell in archive.cells if cell in listed]
    known = best_runs(tracker.client, tracker.experiment, held)
    cells = [cell.model_dump(exclude_unset=True, by_alias=True) for cell in sweep.cells]
    cells, file = _union(sweep.name, cells, archive.file)
    parent = tracker.open_sweep(sweep.name, sweep.description, cells, file=file)
    for environment in archive.environments.values():
        keep_environment(tracker.client, tracker.experiment, environment)
    added = 0
    for cell in held:
        run = archive.run(cell)
        if cell not in known or run.status.rank < read_status(known[cell]).rank:
            _unpack(tracker, archive, cell, run, parent)
            added += 1
    outcomes = best_runs(tracker.client, tracker.experiment, [cell.hash for cell in sweep.cells])
    counts = Counter(read_status(run) for run in outcomes.values())
    counts[Status.MISSING] = len(sweep.cells) - len(outcomes)
    tracker.close_sweep(parent, counts)
    tracker.close()
    return added, len(held) - added


def _union(name: str, cells: list[dict[str, Any]], file: str) -> tuple[list[dict[str, Any]], str]:
    """Return the cells of the store's sweep of this name, if it has one, and these; its file, or this one."""
    try:
        there = stored_sweep(name)
    except UserError:
        return cells, file
    return list({cell["hash"]: cell for cell in [*there.cells, *cells]}.values()), there.file or file


def _unpack(tracker: Tracker, archive: CheckedArchive, cell: str, run: ArchivedRun, parent: str) -> None:
    """Make a run of the store; one that could not be made whole is deleted again."""
    client = tracker.client
    tags = run.tags | {"fedray.kind": "cell", "fedray.cell": cell, "fedray.status": str(Status.RUNNING)}
    tags |= {MLFLOW_PARENT_RUN_ID: parent}
    made = client.create_run(tracker.experiment, run.start, tags, run.name).info.run_id
    try:
        for some in _batches([Param(key, value) for key, value in run.params.items()], PARAMS):
            client.log_batch(made, params=some)
        metrics = [Metric(key, *point) for key, points in run.metrics.items() for point in points]
        for some in _batches(metrics, BATCH):
            client.log_batch(made, metrics=some)
        with tempfile.TemporaryDirectory() as scratch:
            archive.unpack(cell, Path(scratch))
            client.log_artifacts(made, scratch)
        client.log_batch(made, tags=[RunTag("fedray.status", run.status)])
        client.set_terminated(made, "FINISHED" if run.status.is_success else "FAILED", run.end)
    except BaseException:
        client.delete_run(made)
        raise


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
