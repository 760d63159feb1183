"""Copies for TensorBoard and Weights & Biases, read back with their own readers; none can disturb MLflow."""

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.tracking import mirrors
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import open_store
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import history
from tests.bad_input.case import BASE
from tests.conftest import Call, Hide

HASHES = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return project


def copy(*kinds: str, cells: tuple[str, ...] = HASHES[:1]) -> list[CellRun]:
    """Write cells of three rounds, of which the second and the third are sent twice, and wait."""
    tracker, rows, runs = Tracker(), history(60, 70, 75), []
    for cell in cells:
        config = {"seed": 0, "algorithm": {"name": "fedavg"}, "runtime": {"mirror": list(kinds)}}
        runs.append(CellRun(Cell(cell, "fedavg α=1/2 s0", config), {"fedray.sweep": "some/sweep"}))
        tracker.open_cell(runs[-1])
        tracker.log_rows(runs[-1], rows[:1])
        tracker.log_rows(runs[-1], rows)  # a trial that starts again sends all rows so far
        tracker.close_cell(runs[-1], Record(Ending(Status.FINISHED), rows))
    tracker.close()
    return runs


def logged(run: CellRun) -> list[float]:
    """The accuracies that MLflow has of a finished run."""
    client, _ = open_store()
    assert client.get_run(run.id).info.status == "FINISHED"
    return [point.value for point in client.get_metric_history(run.id, "test_accuracy")]


def test_tensorboard_shows_each_round_once_also_after_a_second_call(here: Path) -> None:
    """Summaries of rounds with 60, 70 and 75 %: of so short a run the last round alone counts (a fifth of 3)."""
    for _ in range(2):
        copy("tensorboard")
    (file,) = here.glob(".fedray/tensorboard/**/events*")
    assert file.parent == here / ".fedray/tensorboard/some/sweep" / f"fedavg α=1_2 s0 {HASHES[0]}"
    found = EventAccumulator(str(file.parent))
    found.Reload()
    accuracies = [(event.step, event.value) for event in found.Scalars("test_accuracy")]
    assert accuracies == [(1, 60), (2, 70), (3, 75)]
    assert [event.value for event in found.Scalars("summary/last10_test_accuracy")] == [75]
    assert b"name: fedavg" in found.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0]


def test_wandb_works_offline_and_keeps_one_run_per_cell(here: Path) -> None:
    """Its own reader, `wandb leet inspect`, prints a line of JSON per record."""
    for _ in range(2):
        copy("wandb")
    (folder,) = here.glob(".fedray/wandb/offline-run-*")
    read = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    lines = subprocess.run(read, capture_output=True, check=True, text=True).stdout.splitlines()
    rows = [one["history"]["item"] for one in map(json.loads, lines) if one["type"] == "history"]
    assert [(row["_step"], row["test_accuracy"]) for row in rows] == [(1, 60), (2, 70), (3, 75)]
    found = json.loads(subprocess.run([*read, "--summary"], capture_output=True, check=True, text=True).stdout)
    assert (found["project"], found["run_id"], found["exit_code"]) == ("fedray", HASHES[0], 0)
    assert found["config"]["algorithm"]["name"] == "fedavg"
    assert (found["summary"]["last10_test_accuracy"], found["summary"]["status"]) == (75, "finished")


def test_one_that_fails_says_so_once_and_mlflow_has_everything(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first cell's first row fails; the second cell is not tried again. The other viewer goes on."""
    calls = []

    def fail(self: mirrors.TensorboardCopy, rows: Any) -> None:
        calls.append(rows)
        raise OSError(28, "No space left on device")

    class Other:
        def __init__(self, cell: Cell, sweep: str, storage: Path) -> None:
            calls.append(cell.hash)

        def write(self, rows: Any) -> None: ...

        def close(self, record: Record) -> None: ...

    monkeypatch.setattr(mirrors.TensorboardCopy, "write", fail)
    monkeypatch.setitem(mirrors.COPIES, "wandb", Other)
    with caplog.at_level(logging.WARNING, "fedray"):
        runs = copy("tensorboard", "wandb", cells=HASHES)
    assert [logged(run) for run in runs] == [[60, 70, 75]] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "runtime.mirror: tensorboard failed (OSError: [Errno 28] No space left on device); its copy ends here, "
        "MLflow has everything"
    ]
    assert calls.count(HASHES[1]) == 1
    assert len(calls) == 3, "one write that failed, and both cells of the other viewer"


def test_one_that_hangs_delays_nothing_but_the_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(mirrors.TensorboardCopy, "write", lambda self, rows: release.wait(60) and None)
    monkeypatch.setattr(mirrors, "PATIENCE", 0.1)
    (run,) = copy("tensorboard")
    assert logged(run) == [60, 70, 75]
    assert caplog.messages == ["runtime.mirror: tensorboard takes longer than 0 s; its copy is incomplete"]
    release.set()


def test_an_extra_that_is_not_installed(here: Path, empty_store: Path, call: Call, hide_package: Hide) -> None:
    """One line and exit code 2 before anything starts: the store is untouched, no lock or folder comes into being."""
    base = BASE | {"runtime": {"mirror": ["wandb"]}}
    (here / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base}))
    before = sorted(here.rglob("*"))
    hide_package("wandb")
    code, _, err = call("sweep", "sweep.yaml")
    assert code == 2
    assert err == "fedray: runtime.mirror: wandb is not installed; pip install 'fedray[wandb]' adds it\n"
    assert sorted(here.rglob("*")) == before
    assert (here / "mlflow.db").read_bytes() == empty_store.read_bytes()
