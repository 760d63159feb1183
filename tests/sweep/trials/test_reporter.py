"""Tune's reports reach the tracker in order, from a thread that Tune does not wait for."""

import io
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError
from rich.console import Console

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.common.entry import StderrHandler
from fedray.common.location import get_storage
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import make_rounds
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.reporter import Progress, TuneReporter
from fedray.sweep.storage import get_cell_dir, get_traceback_file
from fedray.sweep.sweep import Sweep
from fedray.tracking.outbox import CellRun, Outbox
from tests import small
from tests.conftest import each

BASE = small.sections(clients=(5, 2), model=4, training={"rounds": 2}, runtime={})
ROW = {"round": 1, "test_accuracy": 50.0, "train_loss": 1.0}
FINISHED = {"rows": [ROW], "made": 1, "done": True, "record": Record(Ending(Status.FINISHED), [ROW])}
pytestmark = pytest.mark.usefixtures("nowhere")


class Told:
    """A tracker that records its calls and their thread; opening a cell takes as long as `gate` is closed."""

    def __init__(self, refuses: bool = False, waits: bool = False) -> None:
        self.calls, self.opened, self.threads = list[str](), list[bool](), set[int]()
        self.gate, self.refuses = threading.Event(), refuses
        if not waits:
            self.gate.set()

    def open_cell(self, run: CellRun, known: bool) -> None:
        self.gate.wait(10)
        if self.refuses:
            raise ValueError("the store refuses")
        assert not known
        shards = np.load(io.BytesIO(run.files["partition.npz"]))
        assert run.files["partition.png"].startswith(b"\x89PNG")
        assert len(shards["train_offsets"]) == 6
        self.note("open with its split")

    def log_rows(self, run: Any, rows: Any) -> None:
        self.note(f"rows {len(rows)}")

    def close_cell(self, run: Any, record: Record, written: Callable[[], None]) -> None:
        self.note(f"close {record.ending.status} with {len(record.history)} rows")
        written()

    def note(self, what: str) -> None:
        self.calls.append(what)
        self.threads.add(threading.get_ident())


def made(told: Told, release: Callable[[str], None], **grid: list[Any]) -> tuple[TuneReporter, list[Any], list[Cell]]:
    """A reporter, and a trial per cell of a sweep."""
    sweep = Sweep.model_validate({"name": "small", "base": BASE, "grid": grid or {"seed": [0, 1]}})
    problems = Problems()
    sheet, _ = make_sheet(sweep, problems)
    listed = list(sheet.cells.values())
    session: Any = SimpleNamespace(tracker=told, outbox=Outbox(), parent="parent")
    session.plan = SimpleNamespace(sweep=sweep, problems=problems, sheet=sheet, folder=Path.cwd())
    session.locks = SimpleNamespace(release=release)
    session.open = lambda: told.opened.append(bool(told.calls))
    return TuneReporter(session, Progress(len(listed))), [trial(cell) for cell in listed], listed


def trial(cell: Cell) -> Any:
    """The parts of a Tune trial that the reporter reads."""
    metadata = SimpleNamespace(last_result={}, metric_analysis={}, metric_n_steps={})
    config = {"cell": SimpleNamespace(hash=cell.hash), "actors": 1}
    return SimpleNamespace(config=config, run_metadata=metadata, pickled_error_file=None, error_file=None)


def test_what_displays_and_pipes_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(3)

    def draw() -> list[str]:
        console = Console(width=80, file=io.StringIO())
        with console.capture() as captured:
            console.print(progress._draw())
        return [line.strip() for line in captured.get().splitlines()]

    assert draw() == ["0/3 done; the first processes start, 0 s so far"]
    progress.note_start("a", "fedavg s0")
    assert draw()[0] == "0/3 done"
    assert draw()[2].split() == ["fedavg", "s0", "starting,", "0", "s", "so", "far"]
    progress.note_round("a", 2, 5, [])
    assert draw()[2].split() == ["fedavg", "s0", "round", "2/5"]
    shown = Progress(2)
    shown.note_start("a", "fedavg s0")
    shown.note_round("a", 10, 150, [{"test_accuracy": 81.5}])
    monkeypatch.setattr("fedray.sweep.reporter.MINUTE", 0.0)
    shown.note_round("a", 75, 150, [])
    assert capsys.readouterr().out == "running: fedavg s0 round 75/150  81.50 %\n"


def test_lines_of_the_log_leave_the_live_display_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A line goes to what `sys.stderr` is at that time: the display's, which prints it above itself, and ours again."""
    handler, progress, screen = StderrHandler(), Progress(1), io.StringIO()
    progress.console = progress._live.console = Console(force_terminal=True, file=screen)
    before = sys.stderr
    with progress:
        assert sys.stderr is not before
        handler.emit(logging.makeLogRecord({"msg": "making the store"}))
        assert handler.stream is sys.stderr
    assert "making the store" in screen.getvalue()
    handler.emit(logging.makeLogRecord({"msg": "afterwards"}))
    assert handler.stream is sys.stderr is before
    assert capsys.readouterr().err == "afterwards\n"


def test_the_store_is_opened_for_the_first_trial_and_not_before() -> None:
    """MLflow and a new store take seconds of a core, which Ray's processes use until then to import torch."""
    told = Told(waits=True)
    sink, (first, _), listed = made(told, lambda _: None)
    sink.on_step_end(0, [])
    assert told.opened == []
    sink.on_trial_start(0, [], first)
    assert told.opened[0] is False, "nothing has been written yet"
    assert get_cell_dir(listed[0].hash).is_dir(), "if it is killed now, `fedray status` knows that it is"
    told.gate.set()
    sink.close_rest()


def test_a_cell_that_goes_on_says_from_which_round(capsys: pytest.CaptureFixture[str]) -> None:
    """The cell has two rounds; one is in its checkpoint. Only the first report after a start tells it."""
    sink, (trial, _), (cell, _) = made(Told(), lambda cell: None)
    sink.on_trial_start(0, [], trial)
    sink.on_trial_result(1, [], trial, {"rows": [ROW], "made": 1, "resumed": 1, "done": False})
    sink.on_trial_result(1, [], trial, {"rows": [], "made": 1, "done": False})
    assert capsys.readouterr().out == f"{cell.label}: resumed, goes on with round 2 of 2\n"


def test_tune_does_not_wait_and_the_order_is_kept() -> None:
    told, released = Told(waits=True), list[str]()
    sink, (first, second), listed = made(told, lambda cell: (released.append(cell), told.note("release"))[0])
    began = time.monotonic()
    sink.on_trial_start(0, [], first)
    sink.on_trial_start(0, [], second)
    sink.on_trial_result(1, [], first, FINISHED)
    sink.on_trial_result(1, [], second, {"rows": [ROW], "made": 1, "done": False})
    sink.on_step_end(1, [])
    assert time.monotonic() - began < 5, "the store is still busy with the first cell"
    assert told.calls == []
    assert sink._runs[listed[0].hash].ended is not None, "its end is now, not when the store has answered"
    told.gate.set()
    sink.close_rest()
    assert told.calls == [
        *("open with its split", "open with its split", "close finished with 1 rows", "release"),
        *("rows 1", "close interrupted with 1 rows", "release"),
    ]
    assert released == [cell.hash for cell in listed], "only once the outcome is written"
    assert threading.get_ident() not in told.threads


def test_a_trial_whose_process_never_came_up_fails_alone() -> None:
    """Tune then reports its error without having reported its start. The other trial continues to its end."""
    told, released = Told(), list[str]()
    sink, (first, second), listed = made(told, released.append)
    sink.on_trial_start(0, [], second)
    sink.on_trial_error(1, [], first)
    sink.on_trial_result(1, [], second, FINISHED)
    sink.close_rest()
    assert told.calls == ["open with its split"] * 2 + ["close failed with 0 rows", "close finished with 1 rows"]
    assert sink.progress.outcomes == {listed[0].hash: "failed", listed[1].hash: "finished"}
    assert get_traceback_file(listed[0].hash).exists()
    again, (first, _), _ = made(Told(), released.append)
    again.on_trial_start(0, [], first)
    assert not get_traceback_file(listed[0].hash).exists(), "it is not that of the next failure"
    again.close_rest()


GONE = "died again and again; if memory ran out, take a smaller --max-concurrent"
ERRORS = [(RayActorError(error_msg="it is gone"), GONE), ("", "s0: the trial's process died (traceback: ")]


@pytest.mark.parametrize(("error", "said"), ERRORS)
def test_what_is_said_of_a_trial_that_failed(
    error: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedray.sweep.reporter.read_error", lambda trial: error)
    sink, (first, _), _ = made(Told(), lambda _: None)
    sink.on_trial_error(1, [], first)
    sink.close_rest()
    assert said in capsys.readouterr().out


def test_a_traceback_that_cannot_be_written_ends_no_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    get_storage().mkdir()
    (get_storage() / "cells").touch()  # a file in the folder's place
    sink, (first, second), listed = made(Told(), lambda _: None)
    sink.on_trial_error(1, [], first)
    sink.on_trial_start(0, [], second)
    sink.on_trial_result(1, [], second, FINISHED)
    sink.close_rest()
    assert sink.progress.outcomes == {listed[0].hash: "failed", listed[1].hash: "finished"}
    assert "(traceback: in MLflow; " in capsys.readouterr().out


def test_what_the_store_refuses_is_raised_in_tunes_loop() -> None:
    sink, (first, _), _ = made(Told(refuses=True), lambda cell: None)
    sink.on_trial_start(0, [], first)
    sink.session.outbox._pool.shutdown()
    with pytest.raises(ValueError, match="the store refuses"):
        sink.on_step_end(1, [])


def test_runs_with_the_same_partition_share_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    told, drawn, path = Told(), list[int](), "fedray.engine.problem.Problem.draw_picture"
    monkeypatch.setattr(path, lambda problem: drawn.append(problem.config.seed) or b"\x89PNG")
    monkeypatch.setattr("fedray.sweep.reporter.KEPT_SPLITS", 1)
    sink, trials, _ = made(told, lambda cell: None, **{"seed": [0, 1], "training.lr": [0.1, 0.2]})
    for trial in trials:
        sink.on_trial_start(0, [], trial)
    sink.close_rest()
    assert told.calls.count("open with its split") == 4
    assert len(drawn) == len(set(drawn)) == 2
    assert len(sink._splits) == 1, "of those that have ended none"


@pytest.mark.parametrize(("accuracy", "status"), [(50.0, Status.STOPPED), (49.9, Status.PRUNED)])
def test_what_the_file_stops_is_not_what_a_scheduler_prunes(accuracy: float, status: Status) -> None:
    """`stop: {test_accuracy: 50}`: Tune ends both, the first at its goal, the second because it lags behind others."""
    told = Told()
    sink, (trial, _), _ = made(told, lambda cell: None)
    sink.session.plan.sweep = sink.session.plan.sweep.model_copy(update={"stop": {"test_accuracy": 50.0}})
    sink.on_trial_start(0, [], trial)
    sink.on_trial_result(1, [], trial, {"rows": [ROW | {"test_accuracy": accuracy}], "made": 1, "done": False})
    sink.on_trial_complete(2, [], trial)
    sink.close_rest()
    assert f"close {status} with 1 rows" in told.calls


@each(
    ("scaffold", None, True, False), ("scaffold", None, False, True), ("scaffold", True, True, True),
    ("fedrep", None, True, True), ("local-only", None, True, True),
)  # fmt: skip
def test_a_finished_cell_drops_its_clients_states(algorithm: str, keep: bool | None, arrives: bool, left: bool) -> None:
    """Once the store has its outcome; not if the run keeps them, nor if they hold the personal models. Only then may
    another sweep take the cell."""
    told, released, grid = Told(), list[str](), {"algorithm": [algorithm], "runtime.keep_states": [keep]}
    told.close_cell = lambda run, record, written: arrives and written()  # type: ignore[method-assign]
    sink, (trial, *_), (cell, *_) = made(told, released.append, **grid)
    simulation = Simulation(sink.session.plan.problems.get_problem(cell), InlineBackend())
    for state in make_rounds(simulation, Checkpoints(get_cell_dir(cell.hash))):
        last = state
    sink.on_trial_start(0, [], trial)
    sink.on_trial_result(1, [], trial, FINISHED)
    sink.close_rest()
    assert bool(list(get_cell_dir(cell.hash).glob("client-*"))) == left
    assert released == ([cell.hash] if arrives else [])
    found = Checkpoints(get_cell_dir(cell.hash)).load()
    assert found is not None
    assert found.digest() == last.digest()
