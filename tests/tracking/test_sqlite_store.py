"""The reader of MLflow's SQLite file against MLflow's own client, on one store."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.tracking import store
from fedray.tracking.sqlite_store import SqliteClient
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, sheet, write_run

CELLS = [cell(method, alpha, 0) for method in (FEDAVG, SMALL) for alpha in (0.1, 0.5)]
HASHES = [one["hash"] for one in CELLS]


@pytest.fixture
def tracker(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """A sweep of four cells: finished, failed, finished after a superseded run, and deleted."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    made = Tracker()
    parent = made.open_sweep(sheet("sweep", CELLS, description="it's a description", file=FILE))
    run = write_run(made, CELLS[0], history(50, 60), parent=parent, files={"partition.png": b"png"})
    made.client.log_metric(run, "odd", float("nan"), step=1)
    made.client.log_metric(run, "large", float("inf"), step=1)
    write_run(made, CELLS[1], history(50), Ending(Status.FAILED, "it's why"), parent=parent)
    write_run(made, CELLS[2], history(40), parent=parent)
    made.supersede([HASHES[2]])
    write_run(made, CELLS[2], history(70), parent=parent, again=False)
    gone = write_run(made, CELLS[3], history(80), parent=parent)
    made.client.delete_run(gone)
    made.close_sweep(parent, {Status.FINISHED: 2, Status.FAILED: 1, Status.MISSING: 1})
    made.close()
    return made


def describe(run: Any) -> tuple[object, ...]:
    """All that fedray reads of a run; NaN as text, which equals itself."""
    info = run.info
    times = info.start_time, info.end_time
    return (
        (info.run_id, info.run_name, info.status, *times, info.artifact_uri, info.experiment_id),
        run.data.tags,
        {name: str(value) for name, value in run.data.metrics.items()},
    )


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    "filter",
    [
        "tags.`fedray.kind` = 'sweep'",
        "tags.`fedray.kind` = 'cell'",
        "tags.`fedray.kind` = 'cell' AND tags.`fedray.status` != 'superseded'",
        f"tags.`fedray.cell` = '{HASHES[2]}'",
        "tags.`fedray.cell` = 'none'",
    ],
)
def test_the_same_runs_as_mlflow(tracker: Tracker, filter: str, deleted: bool) -> None:
    """The same runs in the same order, with the same times, tags and metrics."""
    client, experiment = store.open_reader()
    assert isinstance(client, SqliteClient)
    assert experiment == tracker.experiment
    ours = [describe(run) for run in store.search(client, experiment, filter, deleted)]
    assert ours == [describe(run) for run in store.search(tracker.client, experiment, filter, deleted)]
    assert bool(ours) == ("none" not in filter and (not deleted or "= 'cell'" in filter))


def test_the_same_histories_and_files_as_mlflow(tracker: Tracker, tmp_path: Path) -> None:
    client, experiment = store.open_reader()
    best = store.pick_best(store.find_runs(client, experiment, HASHES))
    assert list(best) == HASHES[:3]
    run = best[HASHES[0]].info.run_id
    for name in ("test_accuracy", "odd", "large", "unknown"):
        points = [
            [(point.step, point.timestamp, str(point.value)) for point in reader.get_metric_history(run, name)]
            for reader in (client, tracker.client)
        ]
        assert points[0] == points[1]
    assert best[HASHES[2]].data.metrics["test_accuracy"] == 70
    files = [[file.path for file in reader.list_artifacts(run)] for reader in (client, tracker.client)]
    assert files[0] == files[1] == ["config.yaml", "partition.png"]
    assert store.read_artefact(client, run, "partition.png") == b"png"
    assert store.read_artefact(tracker.client, run, "partition.png") == b"png"
    assert store.read_artefact(client, run, "none") is store.read_artefact(tracker.client, run, "none") is None
    (sweep,) = store.find_sweeps(client, experiment).values()
    assert [cell.to_json() for cell in store.read_cells(client, sweep).values()] == CELLS
    assert store.read_sweep_file(client, sweep) == store.read_sweep_file(tracker.client, sweep) == FILE


FILE = "name: sweep  # α\n"
COUNTS = {Status.FINISHED: 2, Status.FAILED: 1, Status.MISSING: 1}


@pytest.mark.parametrize(
    ("name", "cells", "file", "counts", "same"),
    [
        ("sweep", CELLS, FILE, COUNTS, True),
        ("sweep", CELLS[:3], FILE, COUNTS, False),
        ("sweep", [{**CELLS[0], "names": {"fedavg": "FedAvg"}}, *CELLS[1:]], FILE, COUNTS, False),
        ("sweep", CELLS, "name: sweep\n", COUNTS, False),
        ("sweep", CELLS, FILE, {Status.FINISHED: 4}, False),
        ("other", CELLS, FILE, COUNTS, False),
    ],
)
def test_a_sweep_is_recorded_if_nothing_would_change(
    tracker: Tracker, name: str, cells: list[dict[str, Any]], file: str, counts: Mapping[Status, int], same: bool
) -> None:
    listed = sheet(name, cells, file=file)
    statuses = [status for status, count in counts.items() for _ in range(count)]
    listed.records.update({hash: Record(Ending(one)) for hash, one in zip(listed.cells, statuses, strict=False)})
    assert store.is_recorded(listed) == same


def test_a_sweep_that_is_running_is_not_recorded(tracker: Tracker) -> None:
    """Its driver may have been killed: the next call ends it."""
    tracker.open_sweep(sheet("sweep", CELLS, file=FILE))
    assert not store.is_recorded(sheet("sweep", CELLS, file=FILE))


def test_artefacts_elsewhere_are_left_to_mlflow(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment of a SQLite store can have its artefacts on a server: there are no files to read here."""
    tracker.client.create_experiment("elsewhere", "mlflow-artifacts:/elsewhere")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    client, _ = store.open_reader()
    assert not isinstance(client, SqliteClient)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nowhere")
    with pytest.raises(store.NotStored, match="no experiment named 'nowhere'"):
        store.open_reader()
