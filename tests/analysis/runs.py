"""Runs written into a store by hand, and readers of a drawn axis."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import Ending, Status
from fedray.tracking.outbox import CellRun
from fedray.tracking.tracker import Tracker


def history(*accuracies: float) -> list[dict[str, float]]:
    return [
        {"round": t + 1, "test_accuracy": a, "test_loss": 1 - a / 100, "train_loss": 0.5}
        for t, a in enumerate(accuracies)
    ]


def rows(**metrics: tuple[float, ...]) -> list[dict[str, float]]:
    """Rounds 1, 2, ... of any metrics, in addition to every run's."""
    return [
        row | {name: values[t] for name, values in metrics.items()}
        for t, row in enumerate(history(*range(len(next(iter(metrics.values()))))))
    ]


def cell(algorithm: Mapping[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    name = "-".join(map(str, [*algorithm.values(), alpha, seed]))
    partition = {"name": "dirichlet", "alpha": alpha, "min_size": 1}
    config = {"seed": seed, "algorithm": dict(algorithm), "partition": partition, "runtime": {"actors": 1}}
    return {"hash": name, "label": name, "config": config}


FEDAVG, SMALL, LARGE = {"name": "fedavg"}, {"name": "fedsam", "rho": 0.1}, {"name": "fedsam", "rho": 0.5}
FINISHED = Ending(Status.FINISHED)
Rounds = float | list[dict[str, float]]
"""The accuracy of a run of one round, or the rows of a run."""
Outcome = Rounds | tuple[str, Rounds] | None
"""Of a finished run, or of one with another status; None for a cell without a run."""


def sheet(name: str, cells: Sequence[Mapping[str, Any]], description: str = "", file: str = "") -> Sheet:
    """A sweep of cells as `cells.json` lists them."""
    return Sheet(name, {one.hash: one for one in map(Cell.from_json, cells)}, description=description, file=file)


def write(store: Tracker, cells: list[dict[str, Any]], outcomes: Sequence[Outcome], name: str = "sweep") -> None:
    """Write a sweep; an outcome for each cell, the last ones may be left out."""
    parent = store.open_sweep(sheet(name, cells))
    for one, outcome in zip(cells, outcomes, strict=False):
        if outcome is None:
            continue
        status, found = outcome if isinstance(outcome, tuple) else ("finished", outcome)
        rows = found if isinstance(found, list) else history(found)
        ending = Ending(Status(status), "why" if status != "finished" else "")
        write_run(store, one, rows, ending, parent=parent, tags={"fedray.sweep": name})


def write_run(
    store: Tracker, one: Mapping[str, Any], rows: list[dict[str, float]] | None = None, ending: Ending = FINISHED,
    parent: str | None = None, again: bool = True, files: Mapping[str, bytes] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}), **more: Any,
) -> str:  # fmt: skip
    """Write the run of a cell with the other parts of its record; return its id. A running one is left open."""
    record = Record(ending, rows or [], **more)
    run = CellRun(Cell.from_json(one), tags, parent, files)
    store.open_cell(run, again)
    if ending.status is Status.RUNNING:
        store.log_rows(run, record.history)
    else:
        store.close_cell(run, record)
    return run.id


def ticks(axes: Axes) -> dict[float, str]:
    """Place -> label of the ticks across, from left to right."""
    places = [float(place) for place in axes.xaxis.get_major_locator()()]
    return dict(zip(places, axes.xaxis.get_major_formatter().format_ticks(places), strict=True))
