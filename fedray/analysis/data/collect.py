"""From MLflow to a checked table of runs: one row per cell of a sweep, including missing ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedray.analysis.data.cell_config import CellConfig, PluginLabels
from fedray.analysis.data.stored import read_sweep
from fedray.cells.status import Status
from fedray.tracking.environment import Environment, describe_mixture, list_hashes, read_environment
from fedray.tracking.store import read_artefact, read_metrics

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient, AnyRun


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

    def describe_mixture(self) -> str:
        """Return a sentence if the cells come from different environments, else nothing."""
        return ""


@dataclass(frozen=True)
class Search:
    """keys: dotted, in the file's order. select: the metric that decides which draw is best."""

    keys: tuple[str, ...] = ()
    select: str = ""


@dataclass(frozen=True)
class Collected(SweepTable):
    """A sweep from MLflow. runs: run_id -> MLflow's run, for cells that have one. parent: the sweep's own run."""

    client: "AnyClient"
    runs: "dict[str, AnyRun]"
    parent: "AnyRun"
    read: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, kw_only=True, repr=False)
    """Histories read so far."""
    found: dict[str, Environment] = field(default_factory=dict, kw_only=True, repr=False)
    """Environments read so far, by hash."""

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        if (run_id, metric) not in self.read:
            points = self.client.get_metric_history(run_id, metric)
            self.read[run_id, metric] = dict(sorted((point.step, float(point.value)) for point in points))
        return self.read[run_id, metric]

    def read_artefact(self, run_id: str, name: str) -> bytes | None:
        """Return a file of a run, or None."""
        return read_artefact(self.client, run_id, name)

    def describe_mixture(self) -> str:
        return describe_mixture(self.environments, self.read_environment)

    @property
    def environments(self) -> dict[str, list[str]]:
        """Run -> hashes of the environments that it was computed in; none for a run of an older version."""
        return {run_id: list_hashes(run) for run_id, run in self.runs.items()}

    def read_environment(self, hash: str) -> Environment:
        """Return an environment, by its hash. Raises UserError if it is missing."""
        if hash not in self.found:
            self.found[hash] = read_environment(self.client, self.parent.info.experiment_id, hash)
        return self.found[hash]

    def get_start(self, run_id: str) -> int:
        return int(self.runs[run_id].info.start_time)


def collect(name: str) -> Collected:
    """Return all cells of a sweep, including those that another sweep ran.

    Args:
        name: name of the sweep.

    Raises:
        UnknownSweep: the store does not know it.
        UserError: as in `stored.read_sweep`.
    """
    found = read_sweep(name)
    rows = [_make_row(*one) for one in zip(found.cells, found.runs, found.statuses, strict=True)]
    return Collected(
        found.name,
        pd.DataFrame(rows),
        _find_search(found.cells),
        {cell["hash"]: cell["tuned"] for cell in found.cells if "tuned" in cell},
        found.client,
        {run.info.run_id: run for run in found.runs if run is not None},
        found.parent,
    )


def _find_search(cells: Sequence[Mapping[str, Any]]) -> Search:
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


def _make_row(cell: Mapping[str, Any], run: "AnyRun | None", status: Status) -> dict[str, Any]:
    config = CellConfig(cell["config"], PluginLabels(**cell.get("plugins", {})), cell.get("names", {}))
    row = make_cell_row(cell["hash"], cell["label"], config, cell.get("tuned", {}).get("values", ()))
    if run is not None:
        row |= {"status": status, "run_id": run.info.run_id}
        row |= {f"metrics.{name}": value for name, value in read_metrics(run).items()}
        row |= {"message": run.data.tags.get("fedray.message", "")}
    return row
