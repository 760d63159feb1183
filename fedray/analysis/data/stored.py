"""Sweeps of the store as `fedray status`, tables and figures take them, with the statuses that this machine knows.

It imports neither pandas nor PyTorch, so that `fedray status` is quick.
"""

import sys
from dataclasses import replace

from fedray.cells.record import Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError, unknown
from fedray.sweep.document import list_sweeps
from fedray.sweep.storage import find_killed, is_trained
from fedray.tracking.store import NotStored, find_sweeps, open_reader, read_sheet


def read_sweep(name: str) -> Sheet:
    """Return a sweep; if only its smoke version was run, that one, with a message.

    Raises NotStored if the store does not know it, UserError if the store cannot be used, or the sweep has no cells.
    """
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents and f"{name}-smoke" in parents:
        print(f"{name}: only its smoke version has been run; this is {name}-smoke", file=sys.stderr)
        name += "-smoke"
    if name not in parents:
        if name.endswith((".yaml", ".yml")):
            here = ", ".join(sorted(parents))
            raise NotStored(f"sweep: found {name}, a file; the `name` in it is required; here are {here}")
        if changed := ", ".join(sorted(one for one in parents if one.startswith(f"{name}-"))):
            raise NotStored(f"sweep: {name!r} has no run in this store; it has {changed}")
        if name in list_sweeps():
            raise NotStored(f"sweep: {name!r} has no run in this store; `fedray sweep {name}` runs it")
        if not parents:
            raise NotStored(f"sweep: {name!r} is not in this store, which holds no sweep at all")
        raise NotStored(str(unknown("sweep", name, parents, "`fedray status`")))
    sheet = read_sheet(client, name, parents[name])
    if not sheet.cells:
        raise UserError(f"sweep: {name!r} lists no cells; run it again")
    return correct_statuses(sheet)


def correct_statuses(sheet: Sheet) -> Sheet:
    """Return a sheet in which a running cell whose process is gone is interrupted.

    One that is interrupted or missing is unlogged if its last checkpoint is here.
    """
    killed = find_killed(cell for cell in sheet.cells if sheet.get_status(cell) is Status.RUNNING)
    records = dict(sheet.records)
    for hash, cell in sheet.cells.items():
        status = Status.INTERRUPTED if hash in killed else sheet.get_status(hash)
        if status in (Status.INTERRUPTED, Status.MISSING) and is_trained(cell):
            status = Status.UNLOGGED
        if status is not sheet.get_status(hash):
            record = records.get(hash, Record(Ending(status)))
            records[hash] = replace(record, ending=replace(record.ending, status=status))
    return replace(sheet, records=records)
