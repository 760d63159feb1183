"""Cells of a sweep as the store lists them, with their runs and statuses; without their configurations.

It imports neither pandas nor PyTorch, so that `fedray status` is quick.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fedray.cells.spec import CellSpec
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count, unknown
from fedray.sweep.file.shipped import list_sweeps
from fedray.sweep.plan.storage import find_killed, is_trained
from fedray.tracking.store import find_sweeps, open_reader, read_status
from fedray.tracking.stored_sweep import StoredSweep

if TYPE_CHECKING:
    from fedray.tracking.store import AnyRun


class UnknownSweep(UserError):
    """Raised if the store knows no sweep of that name."""


def read_sweep(name: str) -> StoredSweep:
    """Return a sweep; if only its smoke version was run, that one, with a message.

    Raises:
        UnknownSweep: the store does not know it.
        UserError: the store cannot be used, or the sweep has no cells.
    """
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents and f"{name}-smoke" in parents:
        print(f"{name}: only its smoke version has been run; this is {name}-smoke", file=sys.stderr)
        name += "-smoke"
    if name not in parents:
        if name.endswith((".yaml", ".yml")):
            here = ", ".join(sorted(parents))
            raise UnknownSweep(f"sweep: found {name}, a file; the `name` in it is required; here are {here}")
        if name in list_sweeps():
            raise UnknownSweep(f"sweep: {name!r} has no run in this store; `fedray sweep {name}` runs it")
        if not parents:
            raise UnknownSweep(f"sweep: {name!r} is not in this store, which holds no sweep at all")
        raise UnknownSweep(str(unknown("sweep", name, parents, "`fedray status`")))
    sweep = StoredSweep.of(client, name, parents[name])
    if not sweep.cells:
        raise UserError(f"sweep: {name!r} lists no cells; run it again")
    return sweep


def read_statuses(cells: Iterable[CellSpec], runs: "Mapping[str, AnyRun]") -> dict[str, Status]:
    """Return the status of each cell; a running one whose process is gone is interrupted.

    One that is interrupted or missing is unlogged if its last checkpoint is here.
    """
    cells = list(cells)
    statuses = {cell.hash: read_status(runs[cell.hash]) for cell in cells if cell.hash in runs}
    killed = find_killed(cell for cell, status in statuses.items() if status is Status.RUNNING)
    statuses = dict.fromkeys((cell.hash for cell in cells), Status.MISSING) | statuses
    statuses |= dict.fromkeys(killed, Status.INTERRUPTED)
    begun = (cell for cell in cells if statuses[cell.hash] in (Status.INTERRUPTED, Status.MISSING))
    return statuses | {cell.hash: Status.UNLOGGED for cell in begun if is_trained(cell)}


def list_cells(sweep: StoredSweep) -> "list[tuple[CellSpec, AnyRun | None, Status]]":
    """Return each cell with the run that counts and its status."""
    statuses = read_statuses(sweep.cells, sweep.runs)
    return [(cell, sweep.runs.get(cell.hash), statuses[cell.hash]) for cell in sweep.cells]


def describe_left(sweep: str, statuses: Sequence[str]) -> Iterator[str]:
    """Yield a line about cells that nobody has run, and one about those whose end has not been logged."""
    command = f"`fedray sweep {sweep}`" if sweep in list_sweeps() else "`fedray sweep` with its file"
    for status, done in ((Status.MISSING, "runs"), (Status.UNLOGGED, "logs")):
        if count := statuses.count(status):
            what = "it" if count == 1 else "them"
            yield f"{count} of {format_count(len(statuses), 'cell')} {status}; {command} {done} {what}"
