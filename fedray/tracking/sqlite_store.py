"""Reads MLflow's SQLite file, for commands that only read: MLflow takes two seconds to import.

It has the methods of MlflowClient that `store` reads with, and returns the same values; tests compare both. It uses
the tables experiments, runs, tags, latest_metrics and metrics. All else, and every write, goes through MLflow.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

CONDITION = re.compile(r"tags\.`([^`]+)` (=|!=) '([^']*)'")
"""One condition of a filter; several are joined by AND."""
AT_ONCE = 500
"""Maximum number of runs in one query."""
PATIENCE = 20.0
"""Seconds to wait for a process that is writing."""


@dataclass(frozen=True)
class RunInfo:
    """As MLflow's. Times are milliseconds since 1970."""

    run_id: str
    run_name: str
    status: str
    start_time: int
    end_time: int | None
    artifact_uri: str
    experiment_id: str


@dataclass(frozen=True)
class RunData:
    """As MLflow's, without parameters. metrics: the latest value of each."""

    tags: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class StoredRun:
    """As MLflow's Run."""

    info: RunInfo
    data: RunData


@dataclass(frozen=True)
class Point:
    """A logged value of a metric, as MLflow's Metric."""

    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Artifact:
    """A file of a run. path: below the run's folder."""

    path: str


class SqliteClient:
    """Reads one file. Raises sqlite3.Error if it is not MLflow's."""

    def __init__(self, file: Path) -> None:
        # Not read-only: a killed writer can have left a transaction that the next reader has to undo.
        self._file = sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=PATIENCE)

    def get_experiment(self, name: str) -> str | None:
        """Return the id of an experiment; None if there is none, it is deleted, or its artefacts are not files."""
        query = "SELECT experiment_id, artifact_location FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
        found = self._file.execute(query, [name]).fetchone()
        return str(found[0]) if found is not None and str(found[1]).startswith("file:///") else None

    def find_runs(self, experiment: str, filter: str, deleted: bool = False) -> Iterator[StoredRun]:
        """Yield the runs that match a filter of `store.search`, the newest first."""
        given: list[str] = [experiment, "deleted" if deleted else "active"]
        query = "SELECT run_uuid FROM runs WHERE experiment_id = ? AND lifecycle_stage = ?"
        for condition in filter.split(" AND "):
            key, sign, value = CONDITION.fullmatch(condition).groups()  # type: ignore[union-attr]
            query += f" AND run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value {sign} ?)"  # noqa: S608
            given += [key, value]
        query += " ORDER BY start_time DESC, run_uuid"
        ids = [str(row[0]) for row in self._file.execute(query, given)]
        for start in range(0, len(ids), AT_ONCE):
            yield from self._load(ids[start : start + AT_ONCE])

    def get_metric_history(self, run_id: str, key: str) -> list[Point]:
        """Return all values of a run's metric by time."""
        query = "SELECT value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? AND key = ? "
        rows = self._file.execute(f"{query} ORDER BY timestamp, step, value", [run_id, key])
        return [Point(_read_value(value, is_nan), time, step) for value, time, step, is_nan in rows]

    def download_artifacts(self, run_id: str, path: str, folder: str) -> str:
        """Return the path of a run's file, where it is; `folder` stays empty. Raises OSError if it is missing."""
        file = self._folder(run_id) / path
        file.stat()
        return str(file)

    def list_artifacts(self, run_id: str) -> list[Artifact]:
        """Return the files and folders of a run."""
        folder = self._folder(run_id)
        return [Artifact(one.name) for one in sorted(folder.iterdir())] if folder.is_dir() else []

    def _folder(self, run_id: str) -> Path:
        (address,) = self._file.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", [run_id]).fetchone()
        return Path(unquote(urlsplit(address).path))

    def _load(self, ids: Sequence[str]) -> list[StoredRun]:
        marks = ",".join("?" * len(ids))
        tags: dict[str, dict[str, str]] = {run: {} for run in ids}
        metrics: dict[str, dict[str, float]] = {run: {} for run in ids}
        for run, key, value in self._select("run_uuid, key, value FROM tags", marks, ids):
            tags[run][key] = value
        for run, key, value, is_nan in self._select("run_uuid, key, value, is_nan FROM latest_metrics", marks, ids):
            metrics[run][key] = _read_value(value, is_nan)
        columns = "run_uuid, name, status, start_time, end_time, artifact_uri, experiment_id FROM runs"
        infos = {
            run: RunInfo(run, name, status, start, end, address, str(experiment))
            for run, name, status, start, end, address, experiment in self._select(columns, marks, ids)
        }
        return [StoredRun(infos[run], RunData(tags[run], metrics[run])) for run in ids]

    def _select(self, what: str, marks: str, ids: Sequence[str]) -> sqlite3.Cursor:
        return self._file.execute(f"SELECT {what} WHERE run_uuid IN ({marks})", ids)


def _read_value(value: float, is_nan: bool) -> float:
    """Return a metric's value; SQLite has no NaN, so that MLflow marks it."""
    return float("nan") if is_nan else float(value)
