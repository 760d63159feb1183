"""A sweep as MLflow's store holds it: its cells, the run of each that counts, and its file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedray.cells.spec import CellSpec
from fedray.common.errors import UserError, unknown
from fedray.tracking.environment import Environment, read_environment
from fedray.tracking.store import DESCRIPTION, find_best_runs, find_sweeps, open_reader, read_cells, read_sweep_file

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient, AnyRun

Points = dict[tuple[str, int], list[float]]
"""Name and step of a metric -> its values; honest runs have one."""


@dataclass(frozen=True)
class StoredSweep:
    """A sweep as the store knows it.

    Attributes:
        cells: in the sweep's order.
        runs: hash -> the run that counts, of the cells that have one.
        file: the sweep's file as text; empty if the store does not have it.
    """

    name: str
    description: str
    cells: list[CellSpec]
    runs: "dict[str, AnyRun]"
    client: "AnyClient"
    file: str
    experiment: str

    def read_environment(self, hash: str) -> Environment:
        """Return an environment that runs name. Raises UserError if it is missing."""
        try:
            return read_environment(self.client, self.experiment, hash)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    def read_points(self, cell: str) -> Points:
        """Return all values of all metrics of a cell's run."""
        run = self.runs[cell]
        found: Points = {}
        for name in run.data.metrics:
            for point in self.client.get_metric_history(run.info.run_id, name):
                found.setdefault((name, point.step), []).append(point.value)
        return found


def read_stored_sweep(name: str) -> StoredSweep:
    """A sweep of the store, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents:
        raise unknown("sweep", name, parents, "`fedray status`")
    parent = parents[name]
    cells = read_cells(client, parent)
    runs: dict[str, Any] = dict(find_best_runs(client, experiment, [cell.hash for cell in cells]))
    return StoredSweep(
        name, parent.data.tags.get(DESCRIPTION, ""), cells, runs, client, read_sweep_file(client, parent), experiment
    )
