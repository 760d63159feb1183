"""Whether the address of MLflow's store can be used, found out at once: MLflow itself tries some for minutes."""

import socket
import urllib.parse
import urllib.request
from pathlib import Path

from fedray.errors import UserError, redacted, shown

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
        raise UserError(f"MLFLOW_TRACKING_URI: found {shown(redacted(uri))}; {FORMS}")
    try:
        parts = urllib.parse.urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"MLFLOW_TRACKING_URI: found {shown(redacted(uri))}, {error}; {FORMS}") from None
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("http", "https") and not host:
        raise UserError(f"MLFLOW_TRACKING_URI: found {shown(redacted(uri))}; {FORMS}")
    if not host or scheme not in PORTS or (scheme in urllib.request.getproxies()
                                           and not urllib.request.proxy_bypass(host)):
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
