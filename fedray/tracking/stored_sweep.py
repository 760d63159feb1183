"""A sweep as MLflow's store holds it, as a `Sheet`; runs of one sweep only."""

from typing import TYPE_CHECKING

from fedray.cells.cell import Cell
from fedray.cells.sheet import Sheet
from fedray.common.errors import UserError, unknown
from fedray.tracking.store import (
    DESCRIPTION,
    find_records,
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


def read_sheet(client: "AnyClient", name: str, parent: "AnyRun", with_file: bool = False) -> Sheet:
    """Return a sweep, given its own run."""
    cells = read_cells(client, parent)
    records = find_records(client, parent.info.experiment_id, cells)
    file = read_sweep_file(client, parent) if with_file else ""
    return Sheet(name, cells, records, str(parent.data.tags.get(DESCRIPTION, "")), file, parent.info.run_id)


def read_stored_sweep(name: str) -> Sheet:
    """Return a sweep of the store with its file, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents:
        raise unknown("sweep", name, parents, "`fedray status`")
    return read_sheet(client, name, parents[name], with_file=True)


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
    shared = {hash: other for other in sorted(sweeps.keys() - {name}) for hash in read_cells(client, sweeps[other])}
    listed = Sheet(name, read_cells(client, sweeps[name]))
    earlier = find_unlisted(client, experiment, listed)
    cells = {} if unlisted else dict(listed.cells)
    cells |= {hash: Cell(hash, get_label(run), {}) for hash, run in earlier.items()}
    if cell is not None:
        chosen = Sheet(name, cells).select(cell, "rm: --cell")
        if both := next((one for one in chosen if one in shared), None):
            raise UserError(
                f"rm: --cell: {cells[both].label} ({both}) is a cell of {shared[both]}, too, and stays for it"
            )
        cells = {one: cells[one] for one in chosen}
    runs = {one: [run.info.run_id for run in find_runs(client, experiment, [one])] for one in cells}
    own = {run: f"{one}  {cells[one].label}" for one in cells if one not in shared for run in runs[one]}
    whole = {} if unlisted or cell is not None else {sweeps[name].info.run_id: "the sweep's own run"}
    return whole | own, sum(bool(runs[one]) for one in cells if one in shared)
