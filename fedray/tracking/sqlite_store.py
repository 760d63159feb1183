"""Reads MLflow's SQLite file, for commands that only read, as MLflow takes two seconds to import, and for the tracker.

It has the methods of MlflowClient that `store` reads with, and returns the same values; tests compare both. It uses
the tables experiments, runs, tags, params, latest_metrics and metrics. All else goes through MLflow, and every write,
but for the addresses of a store that has moved.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from fedray.common.errors import UserError, redact, truncate_repr
from fedray.common.location import UNUSABLE_STORE, locate_artifacts, use_sqlite

CONDITION = re.compile(r"tags\.`([^`]+)` (=|!=|IN) (.*)", re.DOTALL)
"""One condition of a filter; several are joined by AND. MLflow's own language has no `IN` for tags."""
AT_ONCE = 500
"""Maximum number of runs, or of values, in one query."""
PATIENCE = 20.0
"""Seconds to wait for a process that is writing."""
RUN = re.compile("[0-9a-f]{32}")
"""Id of a run."""
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of the addresses of files; versions of MLflow lack some of the tables."""


@dataclass(frozen=True)
class StoredRun:
    """As MLflow's Run, both of whose parts, `info` and `data`, are this object. Times are milliseconds since 1970.

    metrics: the latest value of each; by_round: those with the time that fedray gives a round, the run's start plus its
    number; params: of a run that was asked for by its id.
    """

    run_id: str
    run_name: str
    status: str
    start_time: int
    """0 if it is not known."""
    end_time: int | None
    artifact_uri: str
    experiment_id: str
    lifecycle_stage: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    by_round: Set[str]
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def info(self) -> Self:
        return self

    data = info


@dataclass(frozen=True)
class Point:
    """A logged value of a metric, as MLflow's Metric."""

    value: float
    timestamp: int
    step: int


class SqliteClient:
    """Reads one file. Raises UserError if it is damaged or not MLflow's.

    Files of runs are looked for where the store is now, even if it has moved since their addresses were written.
    Threads must take turns.
    """

    def __init__(self, file: Path) -> None:
        # Not read-only: a killed writer can have left a transaction that the next reader has to undo.
        with use_sqlite(file):
            self._file = sqlite3.connect(
                f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=PATIENCE, check_same_thread=False
            )
        self._path = file

    def get_experiment(self, name: str) -> str | None:
        """Return the id of an experiment; None if there is none, it is deleted, or its artefacts are not files."""
        query = "SELECT experiment_id, artifact_location FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
        rows = self._ask(query, [name])
        return str(rows[0][0]) if rows and locate_artifacts(self._path, str(rows[0][1])) else None

    def get_run(self, run_id: str) -> StoredRun:
        """Return one run, with its parameters. Raises LookupError if there is none."""
        if not (found := self._load([run_id])):
            raise LookupError(run_id)
        (run,) = found
        rows = self._ask("SELECT key, value FROM params WHERE run_uuid = ?", [run_id])
        return replace(run, params={str(key): str(value) for key, value in rows})

    def find_runs(self, experiment: str, filter: str, deleted: bool = False) -> Iterator[StoredRun]:
        """Yield the runs that match a filter of `store.search`, the newest first."""
        given: list[str] = [experiment, "deleted" if deleted else "active"]
        query = "SELECT run_uuid FROM runs WHERE experiment_id = ? AND lifecycle_stage = ?"
        for condition in filter.split(" AND "):
            key, sign, quoted = CONDITION.fullmatch(condition).groups()  # type: ignore[union-attr]
            values = re.findall("'([^']*)'", quoted)
            marks = ",".join("?" * len(values))
            query += f" AND run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value {sign} ({marks}))"  # noqa: S608
            given += [key, *values]
        query += " ORDER BY start_time DESC, run_uuid"
        ids = [str(row[0]) for row in self._ask(query, given)]
        for start in range(0, len(ids), AT_ONCE):
            yield from self._load(ids[start : start + AT_ONCE])

    def get_metric_history(self, run_id: str, key: str) -> list[Point]:
        """Return all values of a run's metric by time."""
        query = "SELECT value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? AND key = ? "
        rows = self._ask(f"{query} ORDER BY timestamp, step, value", [run_id, key])
        return [
            Point(
                _read_value(run_id, key, value, is_nan),
                _require(run_id, f"a time of {key!r}", time, int),
                _require(run_id, f"a step of {key!r}", step, int),
            )
            for value, time, step, is_nan in rows
        ]

    def download_artifacts(self, run_id: str, path: str, folder: str) -> str:
        """Return the path of a run's file, or of all for an empty one, where it is; `folder` stays empty.

        Raises OSError if it is missing, UserError if its address is none of this store's, or it is a link to a file
        elsewhere, or a pipe.
        """
        root, below = self._locate(run_id)
        file = root / below / path
        for one in (file, *file.rglob("*")):
            real = one.resolve(strict=True)
            if not real.is_relative_to(root.resolve()) or not (real.is_file() or real.is_dir()):
                raise UserError(f"run {run_id}: {one} is a link out of the store's files, or no regular file")
            if real.is_dir():
                next(real.iterdir(), None)  # raises PermissionError, which `rglob` passes over
        return str(file)

    def follow_move(self) -> str:
        """Rewrite the addresses of files that moved with the store, in one transaction: MLflow goes by them.

        Return the folder in which they were; empty if the store has not moved.
        """
        moved = {}
        for (address,) in self._ask("SELECT artifact_location FROM experiments"):
            folder = locate_artifacts(self._path, str(address))
            if folder is not None and folder != Path(unquote(urlsplit(str(address)).path)):
                moved[address.rstrip("/")] = folder.as_uri() if address.startswith("file:") else str(folder)
        with self._file:  # all or nothing
            for (old, new), (table, column) in product(moved.items(), ADDRESSES):
                if self._file.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
                    self._file.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608
                        f"WHERE rtrim({column}, '/') = ? OR substr({column}, 1, ?) = ?",
                        [new, len(old) + 1, old, len(old) + 1, f"{old}/"],
                    )
        return next(iter(moved), "")

    def _locate(self, run_id: str) -> tuple[Path, Path]:
        """Return the folder of all runs' files, and in it that of one run."""
        query = "SELECT artifact_uri, artifact_location FROM runs JOIN experiments USING (experiment_id)"
        ((address, root),) = self._ask(f"{query} WHERE run_uuid = ?", [run_id])
        folder = locate_artifacts(self._path, str(root))
        if folder is None or not RUN.fullmatch(run_id) or address != f"{str(root).rstrip('/')}/{run_id}/artifacts":
            raise UserError(
                f"run {run_id}: its files are at {truncate_repr(redact(str(address)))}, not in this store's"
            )
        return folder, Path(run_id, "artifacts")

    def _load(self, ids: Sequence[str]) -> list[StoredRun]:
        tags: dict[str, dict[str, str]] = {run: {} for run in ids}
        metrics: dict[str, dict[str, float]] = {run: {} for run in ids}
        for run, key, value in self._select("run_uuid, key, value FROM tags", ids):
            tags[run][key] = _require(run, f"tag {key!r}", value, str)
        by_round: dict[str, set[str]] = {run: set() for run in ids}
        logged = (
            "run_uuid, key, value, is_nan, timestamp = start_time + step FROM latest_metrics JOIN runs USING (run_uuid)"
        )
        for run, key, value, is_nan, is_by_round in self._select(logged, ids):
            metrics[run][key] = _read_value(run, key, value, is_nan)
            by_round[run] |= {key} if is_by_round else set()
        columns = "run_uuid, name, status, start_time, end_time, artifact_uri, experiment_id, lifecycle_stage FROM runs"
        runs = {}
        for run, name, status, start, end, address, experiment, stage in self._select(columns, ids):
            began, ended = (_require(run, "a time", time or 0, int) for time in (start, end))
            texts, found = (str(address), str(experiment), str(stage)), (tags[run], metrics[run], by_round[run])
            runs[run] = StoredRun(run, str(name or ""), str(status), began, ended or None, *texts, *found)
        return [runs[run] for run in ids if run in runs]

    def _select(self, what: str, ids: Sequence[str]) -> list[Any]:
        return self._ask(f"SELECT {what} WHERE run_uuid IN ({','.join('?' * len(ids))})", ids)

    def _ask(self, query: str, values: Sequence[str] = ()) -> list[Any]:
        """Return the rows that a query finds."""
        with use_sqlite(self._path):
            return self._file.execute(query, values).fetchall()


def _require(run: str, what: str, value: Any, kind: Any) -> Any:
    """Return a value of the type that MLflow writes; SQLite holds any type in any column. Raises UserError."""
    if not isinstance(value, kind):
        wanted = {str: "a text", int: "a whole number"}.get(kind, "a number")
        raise UserError(f"{UNUSABLE_STORE}: run {run}: {what} is {truncate_repr(value)}; {wanted} is required")
    return value


def _read_value(run: str, key: str, value: Any, is_nan: Any) -> float:
    """Return a metric's value; SQLite has no NaN, so that MLflow marks it."""
    return float("nan") if is_nan else float(_require(run, f"metric {key!r}", value, int | float))
