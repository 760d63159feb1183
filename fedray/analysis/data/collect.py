"""From MLflow to a checked table of runs: one row per cell of a sweep, including missing ones."""

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from fedray.analysis.data.cell_config import CellConfig, PluginLabels
from fedray.common.errors import UserError, unknown
from fedray.runs.status import Status
from fedray.sweep.plan.storage import find_killed
from fedray.tracking.store import best_runs, cells_of, metrics, open_store, read_status, sweeps_in


class UnknownSweep(UserError):
    """Raised if the store knows no sweep of that name."""


@dataclass(frozen=True)
class SweepTable:
    """Cells of a sweep, run or not.

    Attributes:
        cells: a row per cell: `cell` (hash), `label`, `status` (a `Status`), `run_id`, `config` (a `CellConfig`), the
            configuration under dotted names (strings), metrics under `metrics.NAME` (floats).
        search: the search that draws its cells; empty for a grid.
        tuned: for a final stage, `cell` -> how it was chosen (`driver.stages.describe_choices`); the chosen values are
            under `chosen.KEY` in `cells`, so that they do not separate rows or columns.
        after: `cell` -> configurations of a tune stage that has to run first, if no cell of either stage has run.
    """

    name: str
    cells: pd.DataFrame
    search: "Search"
    tuned: dict[str, dict[str, Any]]
    after: Mapping[str, Sequence[CellConfig]] = field(default_factory=dict, kw_only=True)

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        """Return evaluated round -> value, in order; empty if the run has not logged the metric."""
        return {}

    def get_start(self, run_id: str) -> int:
        """Return the start of a run, ms since 1970."""
        return 0


@dataclass(frozen=True)
class Search:
    """keys: dotted, in the file's order. select: the metric that decides which draw is best."""

    keys: tuple[str, ...] = ()
    select: str = ""


@dataclass(frozen=True)
class Collected(SweepTable):
    """A sweep from MLflow. runs: run_id -> MLflow's run, for cells that have one. parent: the sweep's own run."""

    client: MlflowClient
    runs: dict[str, Run]
    parent: Run
    read: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, kw_only=True, repr=False)
    """Histories read so far."""

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        if (run_id, metric) not in self.read:
            points = self.client.get_metric_history(run_id, metric)
            self.read[run_id, metric] = dict(sorted((point.step, float(point.value)) for point in points))
        return self.read[run_id, metric]

    def read_artefact(self, run_id: str, name: str) -> bytes | None:
        """Return a file of a run, or None."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                return Path(self.client.download_artifacts(run_id, name, folder)).read_bytes()
            except (MlflowException, OSError):
                return None

    def get_start(self, run_id: str) -> int:
        return int(self.runs[run_id].info.start_time)


def collect(name: str) -> Collected:
    """Return all cells of a sweep, including those that another sweep ran.

    If only the smoke version of the sweep was run, its cells are returned, and a message says so.

    Args:
        name: name of the sweep.

    Raises:
        UnknownSweep: the store does not know it.
        UserError: the store cannot be used, or the sweep has no cells.
    """
    client, experiment = open_store()
    parents = sweeps_in(client, experiment)
    if name not in parents and f"{name}-smoke" in parents:
        print(f"{name}: only its smoke version has been run; this is {name}-smoke", file=sys.stderr)
        name += "-smoke"
    if name not in parents:
        raise UnknownSweep(
            str(unknown("sweep", name, parents))
            if parents
            else f"sweep: {name!r} is not in this store, which holds no sweep at all"
        )
    cells = cells_of(client, parents[name])
    if not cells:
        raise UserError(f"sweep: {name!r} lists no cells; run it again")
    best = best_runs(client, experiment, [cell["hash"] for cell in cells])
    found = [best.get(cell["hash"]) for cell in cells]
    rows = [_make_row(cell, run) for cell, run in zip(cells, found, strict=True)]
    killed = find_killed(row["cell"] for row in rows if row["status"] is Status.RUNNING)
    rows = [row | {"status": Status.INTERRUPTED} if row["cell"] in killed else row for row in rows]
    return Collected(
        name,
        pd.DataFrame(rows),
        _find_search(cells),
        {cell["hash"]: cell["tuned"] for cell in cells if "tuned" in cell},
        client,
        {run.info.run_id: run for run in found if run is not None},
        parents[name],
    )


def _find_search(cells: list[dict[str, Any]]) -> Search:
    found = next((cell["search"] for cell in cells if "search" in cell), None)
    return Search() if found is None else Search(tuple(found["keys"]), found["select"])


def make_cell_row(cell: str, label: str, config: CellConfig, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """Return the row of a cell without a run.

    Args:
        cell: its hash.
        label: its name.
        config: its configuration.
        chosen: keys whose values a tune stage has chosen; they are stored under `chosen.KEY`.
    """
    texts = config.texts
    moved = {f"chosen.{key}": texts.pop(key, None) for key in chosen}
    return {"cell": cell, "label": label, "status": Status.MISSING, "run_id": None, "config": config, **texts, **moved}


def _make_row(cell: dict[str, Any], run: Run | None) -> dict[str, Any]:
    config = CellConfig(cell["config"], PluginLabels(**cell.get("plugins", {})), cell.get("names", {}))
    row = make_cell_row(cell["hash"], cell["label"], config, cell.get("tuned", {}).get("values", ()))
    if run is not None:
        row |= {"status": read_status(run), "run_id": run.info.run_id}
        row |= {f"metrics.{name}": value for name, value in metrics(run).items()}
        row |= {"message": run.data.tags.get("fedray.message", "")}
    return row
