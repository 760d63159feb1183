"""MLflow's store, and what it knows."""

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

from fedray.common.errors import UserError, one_line, redacted
from fedray.tracking.location import is_there, local_file, refuse_unusable, store_uri
from fedray.tracking.records import Outcome

EXPERIMENT = "fedray"
UI = "http://127.0.0.1:5000"
"""Where `fedray ui` listens unless it is told otherwise."""
TRAINING = "?workflowType=machine_learning"
"""Of the two ways in which MLflow shows an experiment, the one for training; the other is for language models."""
SUMMARY = "summary/"
"""Stands before metrics that a run has once, so that MLflow's pages show them as a section of their own."""
IS_CELL = "tags.`fedray.kind` = 'cell'"
RANK = ("finished", "diverged", "stopped", "pruned", "failed", "interrupted", "running")
"""Where a cell has several runs, the one whose status comes first counts."""


class StoreNotFound(UserError):
    """There is no store, or no experiment in it, yet."""


def open_store(create: bool = False) -> tuple[MlflowClient, str]:
    """Open the store.

    Args:
        create: make the store and the experiment where they are missing.

    Returns:
        The client and the id of the experiment.

    Raises:
        UserError: the store cannot be used.
        StoreNotFound: there is none, and `create` is false.
    """
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # the address can hold a password
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the outbox repeats, and does not block meanwhile
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uri = store_uri()
    local = local_file(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    if not create and not is_there():
        raise StoreNotFound(f"MLFLOW_TRACKING_URI: there is no store at {local}; run a sweep first, or name its store")
    refuse_unusable(uri)
    try:
        with _one_at_a_time(local):
            if local is not None and not is_there():
                _make(local.resolve(), name)
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(name)
            if found is not None:
                return client, found.experiment_id
            if not create:
                raise StoreNotFound(f"MLflow has no experiment named {name!r} in this store; run a sweep first")
            return client, client.create_experiment(name, artifact_location=_artifacts(local))
    except UserError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, or that of a database's driver which is not installed
        raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {redacted(one_line(error))}") from None


def _make(store: Path, experiment: str) -> None:
    """Make a SQLite store with the experiment in a file beside it, which takes the store's name once it is whole.

    MLflow makes the tables one by one, and cannot go on with some of them: a process that is killed meanwhile would
    leave a store that nobody can open.
    """
    new = store.with_name(f"{store.name}.new")
    for left in (new, new.with_name(f"{new.name}-journal")):
        left.unlink(missing_ok=True)
    MlflowClient(tracking_uri=f"sqlite:///{new}").create_experiment(experiment, artifact_location=_artifacts(store))
    new.replace(store)


def _artifacts(store: Path | None) -> str | None:
    """Where the artefacts of a SQLite store go; None for a server, which knows."""
    return None if store is None else (store.resolve().parent / "mlartifacts").as_uri()


def address(run: str = "", server: str = "") -> str:
    """Where MLflow's UI shows a run, or all of them, in its "model training" mode.

    Args:
        run: its id; empty: the experiment's runs.
        server: of the UI; empty: MLFLOW_TRACKING_URI where that is one, else the address of `fedray ui`.
    """
    uri = store_uri()
    server = server or (redacted(uri).rstrip("/") if uri.startswith(("http://", "https://")) else UI)
    _, experiment = open_store()
    return f"{server}/#/experiments/{experiment}/runs{f'/{run}' if run else ''}{TRAINING}"


@contextlib.contextmanager
def _one_at_a_time(store: Path | None) -> Iterator[None]:
    """Two processes that make the tables of one SQLite store leave it broken: the directory is locked meanwhile."""
    if store is None:
        yield
        return
    directory = os.open(store.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def search(client: MlflowClient, experiment: str, filter: str) -> Iterator[Run]:
    """All runs that match MLflow's filter string, newest first."""
    token = None
    while True:
        page = client.search_runs(
            [experiment], filter, max_results=1000, page_token=token, order_by=["attributes.start_time DESC"]
        )
        yield from page
        token = page.token
        if not token:
            return


def sweeps_in(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """Name -> the sweep's own run; of several of a name the newest, which `Tracker.open_sweep` goes on with."""
    found: dict[str, Run] = {}
    for run in search(client, experiment, "tags.`fedray.kind` = 'sweep'"):
        found.setdefault(run.data.tags["fedray.sweep"], run)
    return found


def cells_of(client: MlflowClient, sweep: Run) -> list[dict[str, Any]]:
    """What a sweep's own run lists: `hash`, `label`, `config` and more of each cell, in the sweep's order."""
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(sweep.info.run_id, "cells.json", folder)
        cells: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return cells


def runs_of(client: MlflowClient, experiment: str, cells: Iterable[str]) -> Iterator[Run]:
    """All runs of these cells, superseded ones too: a query for each, whatever else the store holds."""
    for cell in cells:
        yield from search(client, experiment, f"tags.`fedray.cell` = '{cell}'")


def best_runs(client: MlflowClient, experiment: str, cells: Iterable[str]) -> dict[str, Run]:
    """Cell hash -> the run that counts, across sweeps: the status first in RANK, the newest of those."""
    best: dict[str, Run] = {}
    for run in runs_of(client, experiment, cells):
        cell = run.data.tags["fedray.cell"]
        if run.data.tags.get("fedray.status") == "superseded":
            continue
        if cell not in best or RANK.index(status(run)) < RANK.index(status(best[cell])):
            best[cell] = run
    return best


def delete_runs(runs: Iterable[str]) -> None:
    """Delete runs by id, as MLflow's UI does: they are no longer found, and `mlflow gc` frees their space."""
    client, _ = open_store()
    for run in runs:
        client.delete_run(run)


def metrics(run: Run) -> dict[str, float]:
    """A run's latest metrics under the names that tables use, without the prefix of those that it has once."""
    return {name.removeprefix(SUMMARY): value for name, value in run.data.metrics.items()}


def status(run: Run) -> str:
    """A cell's `fedray.status`."""
    found = run.data.tags.get("fedray.status", "running")
    return found if found in RANK else "running"


def outcomes_in(client: MlflowClient, experiment: str, cells: Iterable[str]) -> dict[str, Outcome]:
    """Cell hash -> outcome, of those of the cells that have one."""
    return {
        cell: Outcome(status(run), run.data.tags.get("fedray.stopper", ""), metrics(run))
        for cell, run in best_runs(client, experiment, cells).items()
    }


def outcomes(cells: Iterable[str]) -> dict[str, Outcome]:
    """As `outcomes_in`, before anything is written; empty where there is no store yet. Raises UserError."""
    try:
        client, experiment = open_store()
    except StoreNotFound:
        return {}
    try:
        return outcomes_in(client, experiment, cells)
    except MlflowException as error:
        raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {redacted(one_line(error))}") from None


def is_transient(error: Exception) -> bool:
    """Whether another attempt may succeed, at a store that has accepted this process before.

    It may if the store cannot be reached, is overloaded or locked, or if what stands before it (a proxy, a login
    service) answers 401, 403 or 404 for a while. If MLflow itself says that a run or an experiment is gone, that stays
    true.

    Args:
        error: what the attempt raised.
    """
    if isinstance(error, MlflowException):
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return False
        status = error.get_http_status_code()
        return bool(status >= 500 or status in (401, 403, 404, 429))
    return isinstance(error, OSError)  # of requests, which MLflow leaves as they are for artefacts


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What the store refuses for good becomes a UserError; what `is_transient` is raised as it is."""
    try:
        yield
    except MlflowException as error:
        if is_transient(error):
            raise
        raise UserError(f"MLFLOW_TRACKING_URI: the store refuses a request: {redacted(one_line(error))}") from None
