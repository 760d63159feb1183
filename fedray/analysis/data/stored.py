"""Cells of a sweep as the store lists them, with their runs and statuses; without their configurations.

It imports neither pandas nor PyTorch, so that `fedray status` is quick.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedray.cells.spec import CellSpec
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count, unknown
from fedray.sweep.file.shipped import list_sweeps
from fedray.sweep.plan.storage import find_killed
from fedray.tracking.store import count_unlisted, find_best_runs, find_sweeps, open_reader, read_cells, read_status

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient, AnyRun


class UnknownSweep(UserError):
    """Raised if the store knows no sweep of that name."""


@dataclass(frozen=True)
class SweepRuns:
    """A sweep of the store.

    Attributes:
        name: the sweep's, or that of its smoke version.
        client: reads the store.
        parent: the sweep's own run.
        cells: in the sweep's order.
        runs: for each cell the run that counts; None without one.
        statuses: for each cell; a running one whose process is gone is interrupted.
        note: says how many finished cells ran under the name and are not among `cells`; empty if there are none.
    """

    name: str
    client: "AnyClient"
    parent: "AnyRun"
    cells: Sequence[CellSpec]
    runs: "Sequence[AnyRun | None]"
    statuses: Sequence[Status]
    note: str


def read_sweep(name: str) -> SweepRuns:
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
    cells = read_cells(client, parents[name])
    if not cells:
        raise UserError(f"sweep: {name!r} lists no cells; run it again")
    best = find_best_runs(client, experiment, [cell.hash for cell in cells])
    runs = [best.get(cell.hash) for cell in cells]
    statuses = [Status.MISSING if run is None else read_status(run) for run in runs]
    running = [cell.hash for cell, status in zip(cells, statuses, strict=True) if status is Status.RUNNING]
    killed = set(find_killed(running))
    final = [
        Status.INTERRUPTED if cell.hash in killed else status for cell, status in zip(cells, statuses, strict=True)
    ]
    note, unlisted = "", count_unlisted(name, {cell.hash for cell in cells})
    if unlisted:
        note = (
            f"{format_count(unlisted, 'finished cell')} of this name not shown: run before the file changed, or from "
            f"another file; `fedray rm {name} --unlisted` deletes them"
        )
    return SweepRuns(name, client, parents[name], cells, runs, final, note)
