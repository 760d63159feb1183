"""A store with thousands of other people's runs, written by SQL: through MLflow that takes minutes."""

import sqlite3
from pathlib import Path

from fedray.cells.cell import Cell
from fedray.cells.record import CellRun, Record
from fedray.cells.status import Ending, Status
from fedray.tracking.tracker import Tracker

TABLES = ("tags", "params", "metrics", "latest_metrics")


def fill(store: Path, count: int) -> None:
    """Add `count` finished cells of other sweeps to a SQLite store (MLFLOW_TRACKING_URI must name it).

    One is written by the tracker; the others are its copies with other ids and hashes.
    """
    tracker = Tracker()
    config = {"algorithm": {"name": "fedavg"}, "training": {"lr": 0.1, "rounds": 2}, "runtime": {"actors": 1}}
    run = CellRun(Cell("f" * 16, "foreign", config), {"fedray.sweep": "foreign"})
    tracker.open_cell(run, again=False)
    rows = [{"round": t, "test_accuracy": 50.0, "test_loss": 1.0, "lr": 0.1} for t in (1, 2)]
    tracker.close_cell(run, Record(Ending(Status.FINISHED), rows, {"seconds_per_round": 1.0}))
    tracker.close()
    with sqlite3.connect(store) as db:
        db.execute("CREATE TEMP TABLE copies (id TEXT)")
        db.executemany("INSERT INTO copies VALUES (?)", ((f"{i:032x}",) for i in range(1, count + 1)))
        _copy(db, "runs", "run_uuid", run.id)
        for table in TABLES:
            _copy(db, table, "run_uuid", run.id)
        db.execute(
            "UPDATE tags SET value = substr(run_uuid, 17) WHERE key = 'fedray.cell' AND run_uuid IN"
            " (SELECT id FROM copies)"
        )


def _copy(db: sqlite3.Connection, table: str, key: str, source: str) -> None:
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    picked = ", ".join("copies.id" if name == key else f'"{name}"' for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    db.execute(f"INSERT INTO {table} ({names}) SELECT {picked} FROM {table}, copies WHERE {key} = ?", (source,))  # noqa: S608
