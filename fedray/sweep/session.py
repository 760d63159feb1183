"""State of a call of a sweep while it runs."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import stdev
from typing import TYPE_CHECKING, Any, Self

import yaml

from fedray.cells.cell import Cell
from fedray.cells.looks import choose_looks
from fedray.cells.metric import DEFAULT, describe_rounds, mean
from fedray.cells.record import Record
from fedray.cells.status import Status
from fedray.sweep.plan import Plan
from fedray.sweep.storage import CellLocks
from fedray.tracking.outbox import Outbox
from fedray.tracking.store import format_counts, is_transient, read_records

if TYPE_CHECKING:
    import pandas as pd
    import ray

    from fedray.datasets.dataset import Dataset
    from fedray.tracking.tracker import Tracker

LONGEST_TAG = 5000
"""Characters of a tag's value that MLflow takes."""
SHOWN = 25
"""Rows of a page's table."""


class OfThisCall:
    """State of this call: Tune copies its arguments, and pickles them for Tuner.restore, which is not used."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


@dataclass
class Session:
    """A running call of a sweep. The records of its plan's sheet grow as cells end.

    Attributes:
        locks: of the cells that this process runs.
        outbox: the thread that uses `tracker`, so that no trial waits for MLflow.
        tracker: MLflow; set by `open`.
        parent: id of the sweep's run in MLflow; empty before `open`.
        tried: hashes of the cells that this process has taken, or has found to be finished by another process.
        data: key -> data set, for data sets that the processes of Tune's trials have.
        trials: what Tune says of its trials, a table per run of it.
        stopped: True while Tune runs, and if it was interrupted: a cell that it was given has no outcome.
    """

    plan: Plan
    locks: CellLocks
    outbox: Outbox
    tracker: "Tracker" = field(init=False)
    parent: str = ""
    tried: set[str] = field(default_factory=set)
    data: "dict[str, ray.ObjectRef[Dataset]]" = field(default_factory=dict)
    trials: "list[pd.DataFrame]" = field(default_factory=list)
    stopped: bool = False
    _asked: bool = False

    @property
    def left(self) -> set[str]:
        """Hashes of the cells to run that this process has not taken."""
        return {cell.hash for cell in self.plan.to_run} - self.tried

    def open(self) -> None:
        """Let the outbox open the store and the sweep's run, creating them if needed, at the first call.

        That takes seconds of a core, so it waits until a trial has something to write: until then Ray's processes need
        the cores for their imports.
        """
        if not self._asked:
            self._asked = True
            self.outbox.send(self._open)

    def _open(self) -> None:
        from fedray.tracking.tracker import Tracker  # here: MLflow takes seconds to import

        self.tracker = Tracker(self.outbox, choose_looks(self.plan.sheet.cells))
        self.parent = self.tracker.open_sweep(self.plan.sheet)

    def close(self) -> None:
        """Let the outbox end the sweep's run, and wait until everything has arrived in the store."""
        self.open()
        self.outbox.ask(self._close)

    def _close(self) -> None:
        if not self.parent:
            return
        sheet = self.plan.sheet
        try:
            if others := [hash for hash in sheet.cells if sheet.get_status(hash).is_open and hash not in self.tried]:
                sheet.records.update(self.tracker.read_records(others))  # `fedray run --cell` leaves the counts to this
            self.tracker.keep_trials(self.parent, self.trials)
            self.tracker.close_sweep(self.parent, sheet.counts, describe_results(self.plan))
            are_shown = not self.stopped and self.tracker.has_means(self.plan.sweep.name)
        finally:
            self.tracker.close()
        if are_shown:  # MLflow's charts of the sweep have been looked at: they show all seeds from now on
            from fedray.tracking.view import save_view

            save_view(self.plan.sweep.name)

    def take(self) -> list[Cell]:
        """Lock the cells that are left and no other process runs; return the ones that no other has just finished."""
        locked = self.locks.take(self.left)
        self.tried |= locked

        # Read only now that no other process can run them, and that everything sent to the store has arrived: another
        # sweep may just have finished them.
        def read() -> dict[str, Record]:
            if self.parent:
                return self.tracker.read_records(locked)
            return self.outbox.deliver(lambda: read_records(locked), is_transient)

        self.plan.sheet.records.update(self.outbox.ask(read))
        cells = [cell for cell in self.plan.to_run if cell.hash in locked]
        for hash in locked - {cell.hash for cell in cells}:
            self.locks.release(hash)
        return cells


def describe_results(plan: Plan) -> str:
    """Return Markdown: the best of each split and model, a table, what has no number, and the parameters.

    It is empty until a cell finishes.
    """
    accuracies: dict[str, list[float]] = {}
    splits: dict[str, list[str]] = {}
    others: dict[str, Counter[Status]] = {}
    for hash, cell in plan.sheet.cells.items():
        status = plan.sheet.get_status(hash)
        if status is Status.FINISHED and DEFAULT in plan.sheet.records[hash].totals:
            accuracies.setdefault(cell.setting, []).append(plan.sheet.records[hash].totals[DEFAULT])
            of_split = splits.setdefault(str([cell.get(one) for one in ("data", "model", "partition", "clients")]), [])
            of_split += [cell.setting] * (cell.setting not in of_split)
        else:
            others.setdefault(cell.setting, Counter())[status] += 1
    if not accuracies:
        return ""
    means = {label: f"{mean(values):.2f}" for label, values in accuracies.items()}
    told, rows = list[str](), list[str]()
    for labels in splits.values():
        ranked = sorted(labels, key=lambda label: -mean(accuracies[label]))
        best = [label for label in ranked if means[label] == means[ranked[0]]]
        told.append(f"**Best: {' and '.join(best)}, test accuracy {means[best[0]]} %**\n")
        for label in ranked:
            seeds = accuracies[label]
            spread = f" ± {stdev(seeds):.2f}" if len(seeds) > 1 else ""  # of the sample
            rows.append(f"| {label} | {means[label]}{spread} | {len(seeds)} |")
    more = [f"| and {len(rows) - SHOWN} more: `fedray tables {plan.sweep.name}` | | |"] if rows[SHOWN:] else []
    head = [plan.sweep.description, "", *told]
    averaged = {cell.run.evaluation.list_averaged(cell.run.training.rounds) for cell in plan.sheet.cells.values()}
    number = f"test accuracy %, {describe_rounds(averaged)}"
    table = [f"| method and setting | {number} | seeds |", "|---|---:|---:|", *rows[:SHOWN], *more]
    without = [f"{label} ({format_counts(counts)})" for label, counts in others.items()]
    if without:
        left = f" and {len(without) - SHOWN} more" if without[SHOWN:] else ""
        table += ["", f"without a number: {', '.join(without[:SHOWN])}{left}"]
    given = plan.sweep.model_dump(
        mode="json", include={"base", "grid", "cases", "search", "changes"}, exclude_defaults=True
    )
    written = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
    text = "\n".join([*head, *table, ""])
    whole = f"{text}\n```yaml\n{written}```"
    return whole if len(whole) <= LONGEST_TAG else text[:LONGEST_TAG]
