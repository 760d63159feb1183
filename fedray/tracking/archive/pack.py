"""Pack a sweep of the store into an archive."""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedray.cells.status import Status
from fedray.common.errors import UserError
from fedray.tracking.archive.check import FORMAT, SPLITS, open_checked
from fedray.tracking.archive.members import is_exported_tag
from fedray.tracking.environment import list_hashes
from fedray.tracking.store import SWEEP_FILE, find_sweeps, open_reader, read_draws, read_status
from fedray.tracking.stored_sweep import StoredSweep, read_stored_sweep

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient


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
