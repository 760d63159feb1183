"""Whether the address of MLflow's store can be used, found out at once: MLflow itself tries some for minutes."""

import contextlib
import fcntl
import logging
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from fedray.common.errors import UserError, one_line, redacted, truncated_repr

PATIENCE = 5.0
"""Seconds to wait for a server's port to answer."""
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
FORMS = "sqlite:///FILE, http://HOST:PORT or a database's address is required"


def local_file(uri: str) -> Path | None:
    """The file of a SQLite address, None for any other address."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def refuse_unusable(uri: str) -> None:
    """Raise UserError where the address is none, its file is no SQLite database or nobody answers there."""
    path = local_file(uri)
    if path is not None:
        return _refuse_file(path)
    if ("://" not in uri and not uri.startswith("databricks")) or uri.startswith(("file:", "sqlite:")):
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncated_repr(redacted(uri))}; {FORMS}")
    try:
        parts = urllib.parse.urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncated_repr(redacted(uri))}, {error}; {FORMS}") from None
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("http", "https") and not host:
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncated_repr(redacted(uri))}; {FORMS}")
    if (
        not host
        or scheme not in PORTS
        or (scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host))
    ):
        return None  # found out by MLflow, or by a proxy
    try:
        socket.create_connection((host, port or PORTS[scheme]), PATIENCE).close()
    except OSError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: nobody answers at {redacted(uri)}: {error}") from None
    return None


def _refuse_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: {path} cannot be read: {error.strerror}") from None
    if start not in (b"", b"SQLite format 3\0"):
        raise UserError(f"MLFLOW_TRACKING_URI: {path} is not a SQLite database")


EXPERIMENT = "fedray"
IS_CELL = "tags.`fedray.kind` = 'cell'"
RANK = ("finished", "diverged", "stopped", "failed", "interrupted", "running")
"""Where a cell has several runs, the one whose status comes first counts."""


class StoreNotFound(UserError):
    """There is no store, or no experiment in it, yet."""


def store_uri() -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file in the working directory (absolute: Tune changes directories)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_store(create: bool = False) -> tuple[MlflowClient, str]:
    """The client and the id of the experiment.

    Raises UserError where the store cannot be used, StoreNotFound where there is none and `create` is false.
    """
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the outbox repeats, and does not block meanwhile
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uri = store_uri()
    local = local_file(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    if local is not None and not create and not (local.exists() and local.stat().st_size):
        raise StoreNotFound(f"MLFLOW_TRACKING_URI: there is no store at {local}; run a sweep first, or name its store")
    refuse_unusable(uri)
    try:
        with _one_at_a_time(local):
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(name)
            if found is not None:
                return client, found.experiment_id
            if not create:
                raise StoreNotFound(f"MLflow has no experiment named {name!r} in this store; run a sweep first")
            root = (local.resolve().parent / "mlartifacts").as_uri() if local is not None else None
            return client, client.create_experiment(name, artifact_location=root)
    except UserError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, or that of a database's driver which is not installed
        raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {redacted(one_line(error))}") from None


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


@dataclass(frozen=True)
class Outcome:
    """What MLflow knows of a cell: `fedray.status`, and what stopped it where it was stopped early."""

    status: str
    stopper: str


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


def best_runs(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """Cell hash -> the run that counts, across sweeps: the status first in RANK, the newest of those."""
    best: dict[str, Run] = {}
    for run in search(client, experiment, f"{IS_CELL} AND tags.`fedray.status` != 'superseded'"):
        cell = run.data.tags["fedray.cell"]
        if cell not in best or RANK.index(status(run)) < RANK.index(status(best[cell])):
            best[cell] = run
    return best


def status(run: Run) -> str:
    """A cell's `fedray.status`."""
    found = run.data.tags.get("fedray.status", "running")
    return found if found in RANK else "running"


def outcomes() -> dict[str, Outcome]:
    """Cell hash -> outcome; empty where there is no store yet. Nothing is created."""
    try:
        client, experiment = open_store()
    except StoreNotFound:
        return {}
    return {
        cell: Outcome(status(run), run.data.tags.get("fedray.stopper", ""))
        for cell, run in best_runs(client, experiment).items()
    }


def is_transient(error: Exception) -> bool:
    """Whether an exception says that the store cannot be reached, is overloaded or locked: worth another attempt."""
    if isinstance(error, MlflowException):
        return bool(error.get_http_status_code() >= 500 or error.get_http_status_code() == 429)
    return isinstance(error, OSError)  # of requests, which MLflow leaves as they are for artefacts
