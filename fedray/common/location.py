"""The folder of checkpoints, the address of MLflow's store, and checks that it can be used: without MLflow, which takes
two seconds to import and retries for minutes."""

import contextlib
import math
import os
import re
import shlex
import socket
import sqlite3
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from fedray.common.errors import UserError, join_lines, redact, truncate_repr
from fedray.common.whole_files import open_file
from fedray.common.yaml_files import locate

T = TypeVar("T")

PATIENCE = 5.0
"""Timeout in seconds for a server's port to answer."""
OUTAGE = 300.0
"""Seconds that the end of a run or sweep waits for an unreachable store, unless $FEDRAY_STORE_PATIENCE is set."""
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
OTHERS = {"sqlite", "mssql", "databricks", "databricks-uc", "uc"}
"""Further beginnings of an address that MLflow knows; its plug-ins add some."""
FORMS = "sqlite:///FILE, http://HOST:PORT or a database's address is required"
UNUSABLE_STORE = "MLFLOW_TRACKING_URI: the store cannot be used"
"""Beginning of the message about a store that raises an error."""
ARTIFACTS = "mlartifacts"
"""Name of the folder of the runs' files, next to a SQLite store."""


def get_storage() -> Path:
    """Return the folder of checkpoints: $FEDRAY_STORAGE (shared by all nodes of a cluster), else .fedray here."""
    wanted = locate("FEDRAY_STORAGE", os.environ.get("FEDRAY_STORAGE") or ".fedray")
    return Path(os.path.realpath(wanted))  # Path.resolve() raises RuntimeError for a link that leads to itself


def find_local_file(uri: str) -> Path | None:
    """Return the file of a SQLite address, None for any other address."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def locate_artifacts(store: Path, address: str) -> Path | None:
    """Return the folder of an experiment's files: as the store has it, or next to the store if it has moved with it;
    None for an address of no folder."""
    parts = urllib.parse.urlsplit(address)
    there = Path(urllib.parse.unquote(parts.path))
    if parts.scheme not in ("", "file") or parts.netloc or not there.is_absolute():
        return None
    below = there.parts[-2:] if there.parent.name == "mlruns" else there.parts[-1:]  # mlruns/1: by MLflow's own tools
    here = store.resolve().parent.joinpath(*below)
    moved = here.exists() if below[0] == "mlruns" else below[0] == ARTIFACTS and (here.exists() or not there.exists())
    return here if moved else there


def refuse_unusable(uri: str) -> None:
    """Raise UserError if the address is invalid, its file is not a SQLite database, or no server answers there."""
    if not urllib.parse.unquote(uri).isprintable():
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncate_repr(redact(uri))}; {FORMS}")
    path = find_local_file(uri)
    if path is not None:
        _refuse_file(path)
        return
    if ("://" not in uri and not uri.startswith("databricks")) or uri.startswith(("file:", "sqlite:")):
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncate_repr(redact(uri))}; {FORMS}")
    try:
        parts = urllib.parse.urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may hold a part of a password
        raise UserError(
            f"MLFLOW_TRACKING_URI: found {truncate_repr(redact(uri))}, whose host or port cannot be read; "
            f"write / ? # of a password as %2F %3F %23; {FORMS}"
        ) from None
    scheme = parts.scheme.partition("+")[0]
    known = scheme in PORTS or scheme in OTHERS or scheme in entry_points(group="mlflow.tracking_store").names
    if not known or (scheme in ("http", "https") and not host):
        raise UserError(f"MLFLOW_TRACKING_URI: found {truncate_repr(redact(uri))}; {FORMS}")
    if (
        not host
        or scheme not in PORTS
        or (scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host))
    ):
        return  # MLflow or a proxy will find out
    try:
        socket.create_connection((host, port or PORTS[scheme]), PATIENCE).close()
    except OSError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: cannot connect to {redact(uri)}: {error}") from None


def start_call(call: Callable[[], T]) -> Future[T]:
    """Start a call to a server, which may never answer, in a thread that no process waits for at its end."""
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def _refuse_file(path: Path) -> None:
    try:
        with open_file(path, sys.maxsize) as file:
            start = file.read(16)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UserError(
                f"MLFLOW_TRACKING_URI: found {path}, but there is no folder {path.parent}; create it, or set sqlite:///FILE"
            ) from None
        return
    except OSError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: cannot read {path}: {error.strerror}") from None
    if start not in (b"", b"SQLite format 3\0"):
        raise UserError(f"MLFLOW_TRACKING_URI: {path} is not a SQLite database")


def refuse_other_tables(store: str, revision: str, upgrade: str) -> None:
    """Refuse a store with the tables of another version of MLflow, which upgrades older ones unasked.

    Each version has a file for each change of the tables; the last one names the revision that it expects. Raises
    UserError, with the command that upgrades them.
    """
    package = find_spec("mlflow")  # does not import it
    folder = Path(str(package and package.origin)).parent / "store" / "db_migrations" / "versions"
    changes = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    here, quoted = f"MLflow {version('mlflow')} here", f"['\"]{re.escape(revision)}['\"]"
    if re.search(rf"^down_revision\b.*{quoted}", changes, re.MULTILINE):
        raise UserError(
            f"MLFLOW_TRACKING_URI: {store} has the tables of an older MLflow than {here}; end what still runs with the "
            f"older one, which cannot open the store afterwards, copy the store, and `{upgrade}`"
        )
    if changes and not re.search(rf"^revision\b.*{quoted}", changes, re.MULTILINE):
        raise UserError(
            f"MLFLOW_TRACKING_URI: {store} was upgraded by a newer MLflow than {here}; `pip install -U mlflow` here "
            "helps, `mlflow db upgrade` does not; or use the copy from before the upgrade"
        )


@contextlib.contextmanager
def use_sqlite(path: Path) -> Iterator[None]:
    """Let an error of SQLite in the block be a UserError, which says so if another process holds the file."""
    try:
        yield
    except sqlite3.Error as error:
        why = f": another process holds {path}; wait for it, or end it" if "is locked" in str(error) else ""
        if "readonly" in str(error) and (journal := Path(f"{path.resolve()}-journal")).exists():
            why = f": a killed process left {journal}; one command by a user who may write the store mends it"
        raise UserError(f"{UNUSABLE_STORE}: {join_lines(error)}{why}") from None


def refuse_other_file(path: Path) -> None:
    """Refuse to write a SQLite file with tables of another program, or of another version of MLflow."""
    address = f"{path.resolve().as_uri()}?mode=rw"
    with use_sqlite(path), contextlib.closing(sqlite3.connect(address, uri=True)) as file:
        tables = [str(row[0]) for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        known = "alembic_version" in tables and file.execute("SELECT version_num FROM alembic_version").fetchone()
    if tables and "experiments" not in tables:
        raise UserError(
            f"MLFLOW_TRACKING_URI: {path} is the database of another program: it has a table {truncate_repr(tables[0])}"
            " and none of MLflow's"
        )
    if known:
        refuse_other_tables(str(path), str(known[0]), f"mlflow db upgrade {shlex.quote(f'sqlite:///{path}')}")


def store_uri() -> str:
    """Return the store's address: MLFLOW_TRACKING_URI, else a SQLite file in the working directory.

    Files are absolute, since Tune changes the working directory. Raises UserError if its name cannot be part of an
    address.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_get_directory() / 'mlflow.db'}"
    local, (_, mark, options) = find_local_file(uri), uri.partition("?")
    return uri if local is None or local.is_absolute() else f"sqlite:///{_get_directory() / local}{mark}{options}"


def _get_directory() -> Path:
    here = Path.cwd()
    if odd := re.search(r"\?|%[0-9A-Fa-f]{2}", str(here)):
        raise UserError(
            f"MLFLOW_TRACKING_URI: the working directory {here} has {odd[0]} in its name, which means something else "
            "in an address; set MLFLOW_TRACKING_URI, or work in another directory"
        )
    return here


def get_patience() -> float:
    """Return the seconds to wait at the end for a store that cannot be reached. Raises UserError if not a number."""
    text = os.environ.get("FEDRAY_STORE_PATIENCE") or str(OUTAGE)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise UserError(f"FEDRAY_STORE_PATIENCE: found {truncate_repr(text)}; expected a number of seconds, 0 or more")
    return seconds


def refuse_unwritable_store() -> None:
    """Refuse a store that could not be written at the end, before anything is computed.

    That is one which cannot be used, a SQLite file that cannot be written, or has the tables of another program or of
    another version of MLflow; and a FEDRAY_STORE_PATIENCE that is no number.
    """
    get_patience()
    uri = store_uri()
    refuse_unusable(uri)
    local = find_local_file(uri)
    if local is None:
        return
    try:
        with tempfile.TemporaryFile(dir=local.parent):
            pass
        if local.exists():
            local.open("ab").close()
    except OSError as error:
        raise UserError(
            f"MLFLOW_TRACKING_URI: cannot write {local}: {error.strerror}; set it to a store that can be written"
        ) from None
    if is_there():
        refuse_other_file(local)


def is_server(uri: str) -> bool:
    """Return True for the address of a server, not of a database or a file."""
    return uri.startswith(("http://", "https://"))


def locate_server(uri: str) -> str:
    """Return the address of a server as a browser takes it: it asks for the password itself."""
    parts = urllib.parse.urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def is_there() -> bool:
    """Return True if there is a store to query; a missing or empty SQLite file does not count."""
    local = find_local_file(store_uri())
    return local is None or (local.exists() and local.stat().st_size > 0)
