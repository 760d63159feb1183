"""Sweeps of the store as `fedray status`, tables and figures take them, with the statuses that this machine knows.

It imports neither pandas nor PyTorch, so that `fedray status` is quick.
"""

import math
import sys
import time
from typing import TYPE_CHECKING

from fedray.cells.sheet import Sheet
from fedray.cells.status import Status
from fedray.common.errors import UserError
from fedray.sweep.document import list_sweeps
from fedray.sweep.storage import Call, correct_statuses, get_sweep_lock_file, read_call
from fedray.tracking.store import (
    NotStored,
    describe_unknown_sweep,
    find_deleted_sweep,
    find_sweeps,
    open_reader,
    read_sheet,
)

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient


def read_sweep(name: str) -> Sheet:
    """Return a sweep; if only its smoke version was run, that one, with a message.

    Raises NotStored if the store does not know it or it has no cells, UserError if the store cannot be used, or the
    sweep's own run has been deleted in MLflow.
    """
    client, experiment = open_store_of(name)
    parents = find_sweeps(client, experiment)
    gone = None if name in parents or read_call(name).is_running else find_deleted_sweep(client, experiment, name)
    if gone:
        raise UserError(
            f"sweep: the own run of {name!r} has been deleted in MLflow; the same `fedray sweep` command restores it, "
            f"training no finished cell again, and so does `mlflow runs restore --run-id {gone.info.run_id}`"
        )
    if name not in parents and f"{name}-smoke" in parents:
        print(f"{name}: only its smoke version has been run; this is {name}-smoke", file=sys.stderr)
        name += "-smoke"
    if name not in parents:
        refuse_started(name)
        if changed := ", ".join(sorted(one for one in parents if one.startswith(f"{name}-"))):
            raise NotStored(f"sweep: {name!r} has no run in this store; it has {changed}")
        if name in list_sweeps():
            raise NotStored(f"sweep: {name!r} has no run in this store; `fedray sweep {name}` runs it")
        raise NotStored(str(describe_unknown_sweep(name, parents)))
    sheet = read_sheet(client, name, parents[name])
    if not sheet.cells:
        raise NotStored(f"sweep: {name!r} lists no cells; run it again")
    return correct_statuses(sheet)


def open_store_of(name: str) -> "tuple[AnyClient, str]":
    """Return `open_reader`, or raise NotStored with what is known of a sweep that was started before it has a store."""
    try:
        return open_reader()
    except NotStored:
        refuse_started(name)
        raise


def refuse_started(name: str) -> None:
    """Raise NotStored for a sweep without a run in the store that was started here: it starts, or has been killed."""
    if get_sweep_lock_file(name).is_file():
        raise NotStored(
            f"sweep: {name!r} has nothing in this store; `fedray status` shows how far it is, and if its call was "
            "killed, the same `fedray sweep` command goes on"
        )


def read_started_sweep(name: str) -> Sheet:
    """Return a sweep that the store does not know, from its process's lock; without cells if none has begun."""
    sheet = correct_statuses(read_call(name).sheet)
    return sheet if sheet.records else Sheet(name)


def estimate_left(sheet: Sheet, call: Call) -> float:
    """Return about how many seconds a running call still takes, by how many of its cells have ended; NaN before one
    has."""
    left = (Status.RUNNING, Status.INTERRUPTED, Status.MISSING, Status.FAILED)  # an earlier call's failure is, too
    ended = 0 if call.is_starting else sum(sheet.get_status(hash) not in left for hash in call.to_run)
    return (time.time() - call.touched) / ended * (len(call.to_run) - ended) if ended else math.nan
