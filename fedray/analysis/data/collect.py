"""From MLflow to a checked table of runs: one row per cell of a sweep, including missing ones."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedray.analysis.data.stored import list_cells, read_sweep
from fedray.cells.metric import FINAL
from fedray.cells.record import UNSUMMARISED, parse_table
from fedray.cells.spec import CellSpec, Search, flatten
from fedray.cells.status import Status
from fedray.common.errors import UserError, name_place
from fedray.components.base import Component
from fedray.config import COMPONENTS, RunConfig
from fedray.partitions import PARTITIONS
from fedray.sweep.plan.cells import Cell
from fedray.tracking.environment import describe_mixture
from fedray.tracking.store import SUMMARY, bound, find_blocks, read_artefact, read_metrics
from fedray.tracking.stored_sweep import StoredSweep

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient, AnyRun

OF_CELL = ("cell", "label", "status", "run_id", "spec", "message", "sweep")
"""Columns of `SweepTable.cells` that are neither settings nor metrics."""


@dataclass(frozen=True)
class SweepTable:
    """Cells of a sweep, run or not.

    Attributes:
        cells: a row per cell, as `make_frame` makes it.
        search: the search that draws its cells; empty for a grid.
        tuned: for a final stage, `cell` -> how it was chosen (`driver.stages.describe_choices`); the chosen values are
            under `chosen.KEY` in `cells`, so that they do not separate rows or columns.
        note: on cells of the sweep's name that are not among these; empty for none.
    """

    name: str
    cells: pd.DataFrame
    search: "Search"
    tuned: dict[str, dict[str, Any]]
    note: str = field(default="", kw_only=True)

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        """Return evaluated round -> value, in order; empty if the run has not logged the metric."""
        return {}

    def get_start(self, run_id: str) -> int:
        """Return the start of a run, ms since 1970."""
        return 0

    def describe_mixture(self) -> str:
        """Return a sentence if the cells come from different environments, else nothing."""
        return ""


@dataclass(frozen=True)
class Collected(SweepTable):
    """A sweep from MLflow. runs: run_id -> MLflow's run, for cells that have one. parent: the sweep's own run."""

    client: "AnyClient"
    runs: "dict[str, AnyRun]"
    parent: "AnyRun"
    read: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, kw_only=True, repr=False)
    """Histories read so far."""

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        if (run_id, metric) not in self.read:
            points = self.client.get_metric_history(run_id, metric)
            rows = sorted((point.step, bound(run_id, metric, float(point.value))) for point in points)
            self.read[run_id, metric] = dict(rows)
        return self.read[run_id, metric]

    def read_artefact(self, run_id: str, name: str) -> bytes | None:
        """Return a file of a run, or None."""
        return read_artefact(self.client, run_id, name)

    def read_table(self, run_id: str, name: str) -> dict[str, np.ndarray] | None:
        """Return the columns of a run's table `clients` or `confusion`, or None. Raises UserError if it is none."""
        content = self.read_artefact(run_id, f"{name}.csv")
        with name_place(f"{self.name}: {name}.csv of run {run_id}"):
            return None if content is None else parse_table(name, content)

    def describe_mixture(self) -> str:
        return describe_mixture(run.data.tags for run in self.runs.values())

    def get_start(self, run_id: str) -> int:
        return int(self.runs[run_id].info.start_time)


def collect(name: str, *others: str) -> Collected:
    """Return all cells of a sweep, including cells that another sweep ran.

    Args:
        name: name of the sweep, or of one with `tune.blocks`, for its blocks NAME/0, NAME/1, ...
        others: further sweeps, whose cells follow; one of several sweeps is there once.

    Raises:
        UnknownSweep: the store does not know it.
        UserError: as in `stored.read_sweep`.
    """
    blocks = find_blocks(dict.fromkeys((name, *others)))
    most = max((numbers[-1] for numbers in blocks.values() if numbers), default=0)
    found, rows, lacking = list[StoredSweep](), dict[str, dict[str, Any]](), list[str]()
    names = dict[str, None]()
    for given, numbers in blocks.items():
        for one in [read_sweep(f"{given}/{k}") for k in numbers] or [read_sweep(given)]:
            names[of := given if numbers else one.name] = None
            found.append(one)
            for cell, run, status in list_cells(one):
                rows.setdefault(cell.hash, make_row(cell, run, status) | {"sweep": of})
        lacking += [f"{given}/{k} is not in this store" for k in range(most + 1) if numbers and k not in numbers]
    cells = [row["spec"] for row in rows.values()]
    return Collected(
        " ".join(names),
        make_frame(rows.values()),
        next((cell.search for cell in cells if cell.search.keys), Search()),
        {cell.hash: dict(cell.tuned) for cell in cells if cell.tuned},
        found[0].client,
        {run.info.run_id: run for one in found for run in one.runs.values()},
        found[0].parent,
        note="; ".join(filter(None, [*lacking, *(one.unlisted for one in found)])),
    )


def make_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cells of `make_row` as a table.

    Returns:
        A row per cell: `cell` (hash), `label`, `status` (a `Status`), `run_id`, `spec` (the `CellSpec`), `sweep` (whose
        cell it is, as it was named; from a store), the configuration under dotted names (values as `flatten` gives
        them, so that a column may hold those of several types), metrics under `metrics.NAME` (floats).
    """
    cells = pd.DataFrame(list(rows), dtype=object)
    cells = cells.astype({name: float for name in cells if str(name).startswith("metrics.")})
    return cells.copy()  # in few blocks: pandas warns of each column that is added to hundreds


def list_settings(cells: pd.DataFrame) -> list[str]:
    """Return the columns of `make_frame` that are of the configuration."""
    return [key for key in map(str, cells) if key not in OF_CELL and not key.startswith("metrics.")]


def make_row(
    spec: CellSpec, run: "AnyRun | None" = None, status: Status = Status.MISSING, chosen: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the row of a cell.

    Args:
        spec: the cell.
        run: the run that counts; None without one.
        status: the run's.
        chosen: keys whose values a tune stage will choose, as those of `spec.tuned`; they are stored under
            `chosen.KEY`.
    """
    values = flatten({key: value for key, value in spec.config.items() if key != "runtime"})  # it changes no number
    moved = {f"chosen.{key}": values.pop(key, None) for key in (*chosen, *spec.tuned.get("values", ()))}
    run_id = None if run is None else run.info.run_id
    row: dict[str, Any] = {"cell": spec.hash, "label": spec.label, "status": status, "run_id": run_id, "spec": spec}
    row |= values | moved
    if run is not None:
        metrics = read_metrics(run)
        # MLflow's latest value of a metric by round may be of an earlier round than the last one, where it is undefined
        earlier = {name for name in run.data.metrics if status is Status.FINISHED and name not in UNSUMMARISED}
        earlier = {name for name in earlier if not name.startswith(SUMMARY) and f"{FINAL}{name}" not in metrics}
        row |= {f"metrics.{name}": math.nan if name in earlier else value for name, value in metrics.items()}
        row |= {"message": run.data.tags.get("fedray.message", "")}
    return row


def get_symbol(cell: CellSpec, section: str, option: str) -> str:
    """Return the letter for an option of the class that a section chooses; the option's name if it has none."""
    name = str(cell.get(f"{section}.name"))
    known: Mapping[str, type[Component]] = COMPONENTS[section][0] if section in COMPONENTS else {}
    return cell.plugins.symbols.get(name, {}).get(option) or known.get(name, Component).get_symbol(option)


def list_always_named(cell: CellSpec) -> set[str]:
    """Return the keys that are part of a name even if all cells share their value: the partition's required options."""
    kind = str(cell.get("partition.name"))
    options = PARTITIONS[kind].list_required() if kind in PARTITIONS else cell.plugins.required.get(kind, [])
    return {f"partition.{option}" for option in options}


def parse(cell: CellSpec, option: str) -> RunConfig:
    """Return a cell's parsed configuration.

    Args:
        cell: of a user's file, or of a store.
        option: beginning of the message.

    Raises:
        UserError: it comes from a store and names a plug-in, or this version refuses it.
    """
    if isinstance(cell, Cell):
        return cell.run
    refuse_plugins(option, cell.config)
    return RunConfig.parse(cell.config)


def list_plugins(values: Mapping[str, Any]) -> list[str]:
    """Classes outside of fedray that a configuration names, in its sections and its probes."""
    probes = values.get("evaluation", {}).get("probes", ())
    sections = [values[name] for name in COMPONENTS if name in values]
    named = [one["name"] if isinstance(one, Mapping) else str(one) for one in (*sections, *probes)]
    return [name for name in named if ":" in name]


def refuse_plugins(option: str, values: Mapping[str, Any]) -> None:
    """Raise UserError, which begins with `option`, if a configuration of a store names a class outside of fedray."""
    if names := list_plugins(values):
        raise UserError(f"{option}: {names[0]} is a plug-in; fedray imports no class that a store names")


def iter_specs(cells: pd.DataFrame) -> Iterator[CellSpec]:
    """Yield the configurations of cells, one per row."""
    yield from cells["spec"]


def list_titles(cells: pd.DataFrame) -> dict[str, str]:
    """Return metric -> title, for all plug-ins of the cells."""
    return {metric: title for spec in iter_specs(cells) for metric, title in spec.plugins.titles.items()}


def list_smaller_better(cells: pd.DataFrame) -> set[str]:
    """Return the metrics of the cells' plug-ins whose smallest value is the best."""
    return {metric for spec in iter_specs(cells) for metric in spec.plugins.lower}
