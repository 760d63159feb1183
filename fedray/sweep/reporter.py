"""Passes Tune's reports on to MLflow and to the display: a live table on a terminal, plain lines into a pipe."""

import logging
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayActorError
from ray.tune.experiment import Trial
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedray.cells.cell import Cell
from fedray.cells.metric import describe_accuracy
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.cluster.ray_private import drop_results, read_error
from fedray.common.errors import UserError, escape, format_duration, redact, shorten
from fedray.common.explain import LESS_MEMORY
from fedray.common.process import INTERRUPTED
from fedray.common.progress import describe_resumption
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.problem import resolve_with
from fedray.sweep.session import OfThisCall, Session
from fedray.sweep.storage import (
    describe_kept,
    get_cell_dir,
    get_traceback_file,
    make_cell_dir,
    note_first_cell,
    refuse_moved,
)
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import ACTORS

log = logging.getLogger("fedray")
STYLE = {
    Status.FINISHED: "green",
    Status.DIVERGED: "yellow",
    Status.FAILED: "red",
    Status.STOPPED: "cyan",
    Status.PRUNED: "cyan",
    Status.RUNNING: "bold",
}


KEPT_SPLITS = 500
"""Splits whose files are kept, of some 50 kB each: drawing one takes as long as logging five cells."""
MINUTE = 60.0
"""Seconds between lines about running cells, where no table can be drawn."""


class Progress:
    """Shows the outcome of each cell as it comes in.

    Attributes:
        shares: cell -> the part of its rounds that this call makes: less than 1 for a resumed one.
    """

    def __init__(self, total: int) -> None:
        self.console = Console(highlight=False)
        self.total = total
        self.outcomes: dict[str, Status] = {}
        self.shares: dict[str, float] = {}
        self._running: dict[str, tuple[str, float]] = {}
        self._rows: dict[str, str] = {}
        self._tests: dict[str, str] = {}
        self._told = time.monotonic()
        self._began: float | None = None
        self._left = ""
        self._live = Live(get_renderable=self._draw, console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note_start(self, cell: str, label: str) -> None:
        """Show that a trial of the cell begins."""
        now = time.monotonic()
        self._running[cell], self._began = (escape(label), now), self._began or now
        self._rows.pop(cell, None)

    def note_round(self, cell: str, made: int, rounds: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Show the rounds that a running cell has made, and the last of its newly evaluated ones.

        Into a pipe goes a line about all running cells, once a minute.
        """
        self._tests[cell] = f"  {rows[-1]['test_accuracy']:.2f} %" if rows else self._tests.get(cell, "")
        self._rows[cell] = f"round {made}/{rounds}{self._tests[cell]}"
        if not self.console.is_terminal and time.monotonic() > self._told + MINUTE:
            self._told = time.monotonic()
            self.note(
                "running: "
                + "; ".join(f"{label} {self._rows.get(c, 'starting')}" for c, (label, _) in self._running.items())
            )

    def note(self, text: str) -> None:
        """Print one line that is not an outcome."""
        self.console.print(shorten(escape(redact(text))), markup=False, soft_wrap=True)

    def note_end(self, cell: str, status: Status, text: str) -> None:
        """Show the outcome of a cell."""
        label, since = self._running.pop(cell, (cell, time.monotonic()))
        self._rows.pop(cell, None)
        self.outcomes[cell] = status
        mark = f"[{self._ended}/{self.total}]".rjust(2 * len(str(self.total)) + 3)
        self._left = "" if status.is_open else self._estimate_end()  # an interrupt ends the call
        left = "" if status.is_open or self.console.is_terminal else self._left  # a terminal's table has it
        took = f"({time.monotonic() - since:.1f} s{left})"
        line = f"{mark} {status:<9} {label}: {shorten(escape(redact(text)))} {took}"
        # A style of `print` would also be the table's, which is drawn with each line.
        self.console.print(Text(line, style=STYLE.get(status, "")), soft_wrap=True)
        if self._live.is_started:
            self._live.refresh()  # the table below still has the cell

    @property
    def _ended(self) -> int:
        return sum(not outcome.is_open for outcome in self.outcomes.values())

    def _estimate_end(self) -> str:
        left = self.total - len(self.outcomes)
        done = sum(self.shares.get(cell, 1) for cell in self.outcomes)
        if not left or not done or self._began is None:
            return ""
        begun = [share for cell, share in self.shares.items() if cell not in self.outcomes]
        seconds = (time.monotonic() - self._began) / done * (left - len(begun) + sum(begun))
        return f"; {left} to go, about {format_duration(seconds)}"

    def _draw(self) -> Group:
        """Return what stands below the lines: a summary, and a table of the running cells."""
        counts = {status: list(self.outcomes.values()).count(status) for status in STYLE}
        summary = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        now = time.monotonic()
        done = f"{self._ended}/{self.total} done{', ' + summary if summary else ''}{self._left}"
        if self._began is None:
            return Group(Text(f"{done}; the first processes start, {format_duration(round(now - self._told))} so far"))
        if not self._running:
            return Group(Text(done))
        table = Table(box=None)
        table.add_column("running", no_wrap=True)
        table.add_column("rounds, last test", no_wrap=True)
        for cell, (name, since) in self._running.items():
            starting = f"starting, {format_duration(round(now - since))} so far"
            table.add_row(Text(name), self._rows.get(cell, starting))
        return Group(Text(done), table)


class TuneReporter(OfThisCall, tune.Callback):
    """Passes Tune's reports on to the display and, in order, to MLflow, in the driver."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self.session, self.progress = session, progress
        self._runs: dict[str, CellRun] = {}
        self._histories: dict[str, list[dict[str, float]]] = {}
        self._splits: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._start(self._get_cell(trial), trial.config["actors"])

    def _start(self, cell: Cell, actors: int) -> None:
        if not self._runs:
            note_first_cell(self.session.plan.sheet.name)
        if cell.hash not in self._runs:
            config = resolve_with(cell.run, self.session.plan.problems.data[cell.data])
            tags = {"fedray.sweep": self.session.plan.sheet.name, ACTORS: str(actors), **cell.run.make_tags()}
            self._runs[cell.hash] = CellRun(replace(cell, config=config), tags)
            make_cell_dir(cell.hash)
            self._write(partial(self._open, cell, cell.hash in self.session.plan.sheet.records))
        self._histories[cell.hash] = []  # a trial's first report holds all rows so far
        self.progress.note_start(cell.hash, cell.label)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        cell = self._get_cell(trial)
        rows, resumed = result["rows"], result.get("resumed", 0)
        self.progress.shares.setdefault(cell.hash, 1 - resumed / cell.run.training.rounds)
        if line := describe_resumption(cell.label, resumed, cell.run.training.rounds):
            self.progress.note(line)
        self._histories[cell.hash] += rows
        self.progress.note_round(cell.hash, result["made"], cell.run.training.rounds, rows)
        if "record" in result:
            self._close(cell, result["record"])
        elif rows:
            self._write(lambda: self.session.tracker.log_rows(self._runs[cell.hash], rows))

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        cell = self._get_cell(trial)
        if cell.hash not in self.progress.outcomes:  # Tune ended it, by `stop` or a scheduler
            sweep, history = self.session.plan.sweep, self._histories[cell.hash]
            reached = history and any(history[-1].get(key, 0) >= value for key, value in sweep.stop.items())
            ending = Ending(Status.STOPPED if reached else Status.PRUNED, stopper=sweep.stopper)
            self._close(cell, Record(ending, history))
        drop_results(trial)  # Tune keeps the trial until the sweep ends

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self.progress.note(f"the process of {self._get_cell(trial).label} died; starting it again from its checkpoint")

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        cell = self._get_cell(trial)
        if cell.hash not in self._runs:  # none of its processes ever started
            self._start(cell, trial.config["actors"])
        error = read_error(trial)
        reason = str(error or "the trial's process died").strip()
        advice = f"if memory ran out, take a smaller --max-concurrent, {LESS_MEMORY}"
        message = f"its process died again and again; {advice}" if isinstance(error, RayActorError) else None
        ending = Ending(Status.FAILED, message or reason.splitlines()[-1], reason)
        self._close(cell, Record(ending, self._histories[cell.hash]))

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **_: Any) -> None:
        self.session.outbox.finish(wait=False)
        refuse_moved(self.session.plan.folder)

    def close_rest(self) -> None:
        """Close cells that are open when Tune returns as interrupted, and wait until the tracker has everything."""
        for cell in self.session.plan.sheet.cells.values():
            if cell.hash in self._runs and cell.hash not in self.progress.outcomes:
                self._close(cell, Record(Ending(Status.INTERRUPTED, INTERRUPTED), self._histories[cell.hash]))
        self.session.outbox.finish()

    def forget(self, cell: Cell) -> None:
        """Mark the earlier run of a cell that is run again as superseded, and delete its checkpoints.

        Cell by cell, so that a call that is interrupted has lost no result of a cell that it did not reach; marked
        first, so that no run that counts is without its model.
        """
        self.session.open()
        self.session.outbox.ask(lambda: self.session.tracker.supersede([cell.hash]))
        shutil.rmtree(get_cell_dir(cell.hash), ignore_errors=True)

    def _write(self, write: Callable[[], None]) -> None:
        """Let the outbox call a function; `session.tracker` exists by then."""
        self.session.open()
        self.session.outbox.send(write)

    def _open(self, cell: Cell, known: bool) -> None:
        run = self._runs[cell.hash]
        run.parent, run.files = self.session.parent, self._split(cell)
        self.session.tracker.open_cell(run, known=known)

    def _split(self, cell: Cell) -> dict[str, bytes]:
        problem = self.session.plan.problems.get_problem(cell)
        unseen = None if problem.split.unseen is None else problem.split.unseen.test
        parts = (problem.split.dealt, problem.split.test, problem.split.validation, unseen)
        key = " ".join(shards.digest for shards in parts if shards is not None)
        files = self._splits[key] = self._splits.pop(key, {}) or problem.make_artefacts()
        if len(self._splits) > KEPT_SPLITS:
            self._splits.popitem(last=False)
        return files

    def _close(self, cell: Cell, record: Record) -> None:
        ending, history, run = record.ending, record.history, self._runs[cell.hash]
        folder = get_cell_dir(cell.hash)

        def written() -> None:
            """Tidy up and release the cell once the store has its outcome; earlier, another sweep could run it."""
            if ending.status is Status.FINISHED and not cell.run.keeps_states:
                try:
                    Checkpoints(folder).drop_clients()
                except (OSError, UserError) as error:  # it only costs disk space
                    log.warning("%s: clients' states cannot be removed: %s", folder, error)
            self.session.locks.release(cell.hash)

        run.ended = time.monotonic()  # the outbox may lag far behind
        self._write(lambda: self.session.tracker.close_cell(run, record, written))
        del self._histories[cell.hash]  # so that the driver's memory does not grow with finished cells
        # Its rows are in the store, and would fill the memory.
        kept = replace(record, history=(), totals=record.summarise(), tables={}, profile=())
        self.session.plan.sheet.records[cell.hash] = kept
        text = ending.message or (describe_accuracy(history) if history else "no evaluation")
        if ending.status is Status.INTERRUPTED:  # the command's last line says what to do
            text = describe_kept(cell)
        if ending.traceback:
            text += f" (traceback: {self._keep(cell, ending.traceback)})"
        self.progress.note_end(cell.hash, ending.status, text)

    @staticmethod
    def _keep(cell: Cell, traceback: str) -> str:
        """Write a traceback next to the cell's checkpoints, and return how the line of its outcome names the file."""
        path = get_traceback_file(cell.hash)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(redact(traceback), encoding="utf-8")
        except OSError as error:  # the disk is full, say; the other cells continue
            return f"in MLflow; {path} cannot be written: {error.strerror}"
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)

    def _get_cell(self, trial: Trial) -> Cell:
        return self.session.plan.sheet.cells[trial.config["cell"].hash]
