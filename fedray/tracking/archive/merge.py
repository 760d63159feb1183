"""Merge an archive, which may come from a stranger, into the store."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from fedray.cells.status import Status
from fedray.common.errors import UserError, escape, join_lines, redact
from fedray.common.location import refuse_unwritable_store
from fedray.tracking.archive.check import CheckedArchive, open_checked
from fedray.tracking.archive.members import ArchivedRun, ArchivedStage
from fedray.tracking.environment import keep_environment
from fedray.tracking.store import find_best_runs, read_draws, read_status
from fedray.tracking.stored_sweep import read_stored_sweep
from fedray.tracking.tracker import BATCH, Tracker

Agree = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
PARAMS = 100
"""Parameters that MLflow takes in one request."""


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
