"""Pack a sweep of the store into an archive; merge an archive, which may come from a stranger, into the store."""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from fedray.cells.status import Status
from fedray.common.errors import UserError, escape, join_lines, redact
from fedray.common.location import refuse_unwritable_store
from fedray.tracking.archive.check import FORMAT, SPLITS, CheckedArchive, open_checked
from fedray.tracking.archive.members import ArchivedRun, ArchivedStage, is_exported_tag
from fedray.tracking.environment import keep_environment, list_hashes
from fedray.tracking.store import SWEEP_FILE, find_best_runs, find_sweeps, open_reader, read_draws, read_status
from fedray.tracking.stored_sweep import StoredSweep, read_stored_sweep
from fedray.tracking.tracker import BATCH, Tracker

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient

Agree = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
PARAMS = 100
"""Parameters that MLflow takes in one request."""


def export_sweep(name: str, file: Path, more: Mapping[str, bytes] = MappingProxyType({})) -> int:
    """Write a sweep into an archive: its cells, and the runs that have ended.

    Args:
        name: of a sweep in the store.
        file: the archive; it appears whole or not at all.
        more: members of a deposit: name -> content.

    Returns:
        How many cells with a run it holds.

    Raises:
        UserError: there is no such sweep, the file cannot be written, the environment of a run is missing, or
            `import_sweep` would refuse it.
    """
    client, experiment = open_reader()
    stage = f"{name}/tune"
    sweep = read_stored_sweep(name)
    tune = read_stored_sweep(stage) if stage in find_sweeps(client, experiment) else None
    runs = (tune.runs if tune else {}) | sweep.runs
    runs = {cell: run for cell, run in runs.items() if read_status(run) is not Status.RUNNING}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".export-") as folder:
            made = Path(folder) / file.name
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                about = {"format": FORMAT, **_describe(sweep)} | ({"tune": _describe(tune)} if tune else {})
                archive.writestr("sweep.json", json.dumps(about))
                texts = {SWEEP_FILE: sweep.file.encode()} if sweep.file else {}
                for member, content in {**more, **texts}.items():
                    archive.writestr(member, content)
                for cell, run in runs.items():
                    _pack(sweep.client, run.info.run_id, archive, f"runs/{cell}")
                for hash in dict.fromkeys(hash for run in runs.values() for hash in list_hashes(run)):
                    archive.writestr(f"environments/{hash}.json", json.dumps(sweep.read_environment(hash)))
            with open_checked(made, f"{name}: cannot be exported"):
                made.rename(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    return len(runs)


@contextlib.contextmanager
def log_into_archive(name: str, file: Path) -> Iterator[None]:
    """Let this process log to a store of its own for the duration of a block, and pack the sweep in it afterwards.

    Args:
        name: of the sweep that the block lists in the store.
        file: the archive; one is also written if the block ends with an error but has run a cell.
    """
    before = os.environ.get("MLFLOW_TRACKING_URI")
    with tempfile.TemporaryDirectory(prefix="fedray-") as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        try:
            yield
        finally:
            try:
                if (Path(folder) / "mlflow.db").exists() and name in find_sweeps(*open_reader()):
                    export_sweep(name, file)
            finally:
                del os.environ["MLFLOW_TRACKING_URI"]
                os.environ |= {} if before is None else {"MLFLOW_TRACKING_URI": before}


def _describe(sweep: StoredSweep) -> dict[str, Any]:
    drawn = read_draws(sweep.name)
    about = {"name": sweep.name, "description": sweep.description, "cells": [cell.to_json() for cell in sweep.cells]}
    return about | ({"drawn": drawn} if drawn else {})


def _pack(client: "AnyClient", run_id: str, archive: zipfile.ZipFile, folder: str) -> None:
    run = client.get_run(run_id)
    about = {
        "name": run.info.run_name,
        "status": read_status(run),
        "start": run.info.start_time,
        "end": run.info.end_time,
        "tags": {key: value for key, value in run.data.tags.items() if is_exported_tag(key)},
        "params": dict(run.data.params),
        "metrics": {
            key: [[point.value, point.timestamp, point.step] for point in client.get_metric_history(run_id, key)]
            for key, value in run.data.metrics.items()
            if not math.isnan(value)  # of 0.2, which logged an undefined `test_auc`; JSON has no NaN
        },
    }
    with tempfile.TemporaryDirectory() as scratch:
        tops = [Path(client.download_artifacts(run_id, one.path, scratch)) for one in client.list_artifacts(run_id)]
        files = {
            path.relative_to(top.parent).as_posix(): path
            for top in tops
            for path in (top, *top.rglob("*"))
            if path.is_file()
        }
        splits = {name: files.pop(name) for name in SPLITS if name in files}
        about["splits"] = {name: _pack_split(archive, path.read_bytes()) for name, path in splits.items()}
        archive.writestr(f"{folder}/run.json", json.dumps(about))
        for name, path in sorted(files.items()):
            archive.write(path, f"{folder}/artifacts/{name}")


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
    refuse_unwritable_store()
    with open_checked(file, f"{file}: cannot be read as an archive of fedray") as archive:
        for cell in (cell for stage in archive.sweep.stages for cell in stage.cells):
            try:
                agree(cell.config, cell.identity)
            except UserError as error:
                raise UserError(f"{file}: cell {cell.hash}: {escape(str(error))}") from None
        try:
            counts = [_merge(archive, stage) for stage in archive.sweep.stages]
            return archive.sweep.name, sum(one for one, _ in counts), sum(one for _, one in counts)
        except (MlflowException, OSError) as error:
            raise UserError(
                f"MLFLOW_TRACKING_URI: the store cannot take {file}: {redact(join_lines(error))}; what it has taken "
                "stays, and the same command completes it"
            ) from None


def _merge(archive: CheckedArchive, sweep: ArchivedStage) -> tuple[int, int]:
    """Merge one stage; return how many cells were added, and how many were there already."""
    tracker, listed = Tracker(), {cell.hash for cell in sweep.cells}
    held = [cell for cell in archive.cells if cell in listed]
    known = find_best_runs(tracker.client, tracker.experiment, held)
    cells = [cell.model_dump(exclude_unset=True, by_alias=True) for cell in sweep.cells]
    cells, file = _unite_cells(sweep.name, cells, archive.file)
    parent = tracker.open_sweep(sweep.name, sweep.description, cells, file=file)
    if sweep.drawn is not None:
        drawn, there = sweep.drawn.model_dump(), read_draws(sweep.name)
        tracker.keep_draws(parent, drawn | there | {"studies": drawn["studies"] | there.get("studies", {})})
    for environment in archive.environments.values():
        keep_environment(tracker.client, tracker.experiment, environment)
    added = 0
    for cell in held:
        run = archive.run(cell)
        if cell not in known or run.status.rank < read_status(known[cell]).rank:
            _unpack(tracker, archive, cell, run, parent)
            added += 1
    outcomes = find_best_runs(tracker.client, tracker.experiment, [cell.hash for cell in sweep.cells])
    counts = Counter(read_status(run) for run in outcomes.values())
    counts[Status.MISSING] = len(sweep.cells) - len(outcomes)
    tracker.close_sweep(parent, counts)
    tracker.close()
    return added, len(held) - added


def _unite_cells(name: str, cells: list[dict[str, Any]], file: str) -> tuple[list[dict[str, Any]], str]:
    """Return the cells of the store's sweep of this name, if it has one, and these; its file, or this one."""
    try:
        there = read_stored_sweep(name)
    except UserError:
        return cells, file
    listed = [*(cell.to_json() for cell in there.cells), *cells]
    return list({cell["hash"]: cell for cell in listed}.values()), there.file or file


def _unpack(tracker: Tracker, archive: CheckedArchive, cell: str, run: ArchivedRun, parent: str) -> None:
    """Make a run of the store; one that could not be made whole is deleted again."""
    client = tracker.client
    tags = run.tags | {"fedray.kind": "cell", "fedray.cell": cell, "fedray.status": str(Status.RUNNING)}
    tags |= {MLFLOW_PARENT_RUN_ID: parent}
    made = client.create_run(tracker.experiment, run.start, tags, run.name).info.run_id
    try:
        for some in _iter_batches([Param(key, value) for key, value in run.params.items()], PARAMS):
            client.log_batch(made, params=some)
        metrics = [Metric(key, *point) for key, points in run.metrics.items() for point in points]
        for some in _iter_batches(metrics, BATCH):
            client.log_batch(made, metrics=some)
        with tempfile.TemporaryDirectory() as scratch:
            archive.unpack(cell, Path(scratch))
            client.log_artifacts(made, scratch)
        client.log_batch(made, tags=[RunTag("fedray.status", run.status)])
        client.set_terminated(made, "FINISHED" if run.status.is_success else "FAILED", run.end)
    except BaseException:
        client.delete_run(made)
        raise


def _iter_batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
