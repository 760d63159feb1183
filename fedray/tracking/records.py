"""Record of a cell's run, and the rule for a sweep's name, independent of MLflow."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedray.cells.status import Status

SWEEP_NAME = r"^\w[\w.-]*(/\w[\w.-]*)*$"
"""Pattern of a sweep's name: words of letters, digits and `_ - .`, joined by `/`; no word begins with a dot."""

REMOVED = {"runtime": {"cuda_graph"}}
"""Section -> keys of older versions: stored configurations hold them, and no present number depends on them."""


@dataclass(frozen=True)
class Outcome:
    """A cell in MLflow: its status, the rule that stopped it early if one did, its last metrics."""

    status: Status
    stopper: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class CellRun:
    """A cell's run in MLflow.

    Attributes:
        cell: the cell's hash; empty before the tracker opens it.
        id: empty until the store has made or found it.
        start: milliseconds since 1970 at which it was made; rows are stamped from there.
        logged: the last round that the store has.
        began: when the cell was started here, by the monotonic clock in seconds.
        ended: when it ended, by the same clock; None: when the run is closed.
        new: whether this process has made the run.
        spent: seconds that earlier calls spent on it.
        untimed: number of earlier calls that were killed, so that their seconds are not known.
        shown: this call only shows the run, whose rounds are all made.
    """

    cell: str = ""
    id: str = ""
    start: int = 0
    logged: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    new: bool = False
    spent: float = 0.0
    untimed: int = 0
    shown: bool = False


def drop_removed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration or identity without the keys that this version no longer has."""
    return {
        section: {key: value for key, value in values.items() if key not in REMOVED[section]}
        if section in REMOVED and isinstance(values, Mapping)
        else values
        for section, values in stored.items()
    }


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a configuration to dotted names and strings; long values become digests (MLflow limits their length)."""
    result: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            result |= flatten(value, f"{prefix}{key}.")
        elif value is not None:
            text = str(value)
            result[prefix + key] = text if len(text) <= 500 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return result
