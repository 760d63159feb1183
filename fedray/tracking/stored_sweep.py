"""A sweep as MLflow's store holds it: its cells, the run of each that counts, and its file; runs of one sweep only."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedray.cells.spec import CellSpec, select_cells
from fedray.common.errors import UserError, unknown
from fedray.tracking.store import (
    DESCRIPTION,
    count_unlisted,
    describe_unlisted,
    find_best_runs,
    find_run,
    find_runs,
    find_sweeps,
    find_unlisted,
    get_label,
    open_reader,
    open_store,
    read_cells,
    read_sweep_file,
)

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient, AnyRun


@dataclass(frozen=True)
class StoredSweep:
    """A sweep as the store knows it.

    Attributes:
        name: the sweep's, or that of its smoke version.
        client: reads the store.
        parent: the sweep's own run.
        cells: in the sweep's order.
        runs: hash -> the run that counts, of the cells that have one.
    """

    name: str
    client: "AnyClient"
    parent: "AnyRun"
    cells: list[CellSpec]
    runs: "dict[str, AnyRun]"

    @classmethod
    def of(cls, client: "AnyClient", name: str, parent: "AnyRun") -> "StoredSweep":
        """Read a sweep, given its own run."""
        cells = read_cells(client, parent)
        runs: dict[str, Any] = dict(find_best_runs(client, parent.info.experiment_id, [cell.hash for cell in cells]))
        return cls(name, client, parent, cells, runs)

    @property
    def description(self) -> str:
        return str(self.parent.data.tags.get(DESCRIPTION, ""))

    @property
    def unlisted(self) -> str:
        """A line about finished cells of its name that are not among its cells; empty for none."""
        return describe_unlisted(self.name, count_unlisted(self.name, {cell.hash for cell in self.cells}))

    @cached_property
    def file(self) -> str:
        """The sweep's file as text; empty if the store does not have it."""
        return read_sweep_file(self.client, self.parent)


def read_stored_sweep(name: str) -> StoredSweep:
    """A sweep of the store, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents:
        raise unknown("sweep", name, parents, "`fedray status`")
    return StoredSweep.of(client, name, parents[name])


def find_deletable_runs(name: str, cell: str | None = None, unlisted: bool = False) -> tuple[dict[str, str], int]:
    """Return the runs that `fedray rm` deletes, and how many cells that another sweep shares have been run.

    Id of a run -> what it is, `HASH  LABEL` or the sweep's own run: those of its cells, superseded ones and cells that
    its file no longer lists included, without the cells that another sweep lists.
    """
    client, experiment = open_store()
    sweeps = find_sweeps(client, experiment)
    if name not in sweeps:
        if (found := find_run(client, name)) is None:
            raise UserError(f"rm: {name!r} is neither a sweep nor the id of a run in this store")
        if found.data.tags.get("fedray.kind") != "cell" or found.info.lifecycle_stage != "active":
            raise UserError(f"rm: {name} is not the id of a run that can be deleted")
        if cell is not None or unlisted:
            raise UserError(f"rm: --{'cell' if cell is not None else 'unlisted'}: {name} is a run, not a sweep")
        return {name: f"{found.data.tags.get('fedray.cell', '')}  {get_label(found)}"}, 0
    shared = {
        cell.hash: other for other in sorted(sweeps.keys() - {name}) for cell in read_cells(client, sweeps[other])
    }
    labels = {cell.hash: cell.label for cell in read_cells(client, sweeps[name])}
    earlier = {one: get_label(run) for one, run in find_unlisted(client, experiment, name, labels).items()}
    labels = earlier if unlisted else labels | earlier
    if cell is not None:
        chosen = select_cells(labels, cell, "rm: --cell")
        if both := next((one for one in chosen if one in shared), None):
            raise UserError(f"rm: --cell: {labels[both]} ({both}) is a cell of {shared[both]}, too, and stays for it")
        labels = {one: labels[one] for one in chosen}
    runs = {one: [run.info.run_id for run in find_runs(client, experiment, [one])] for one in labels}
    own = {run: f"{one}  {labels[one]}" for one in labels if one not in shared for run in runs[one]}
    whole = {} if unlisted or cell is not None else {sweeps[name].info.run_id: "the sweep's own run"}
    return whole | own, sum(bool(runs[one]) for one in labels if one in shared)
