"""`fedray status`, `rm`, `clean`, `export`, `import` and `verify`: commands on sweeps that have been run."""

import math
import shutil
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.cells.record import Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import Ending, Status
from fedray.cli.listing import complete
from fedray.common.entry import CELL, Json, Overwrite, format_json
from fedray.common.errors import UserError, escape, format_count, format_duration, shorten

OF_STORE: Any = {"autocompletion": lambda incomplete: complete("stored", incomplete)}
"""Completes a name of the store."""
LISTED_ORDER = (
    Status.FAILED,
    Status.DIVERGED,
    Status.INTERRUPTED,
    Status.STOPPED,
    Status.PRUNED,
    Status.RUNNING,
    Status.MISSING,
    Status.UNLOGGED,
    Status.FINISHED,
)
"""Order in which `fedray status` lists cells."""
LISTED = 20
"""Number of cells that `fedray status` lists per outcome other than `finished`, and `fedray rm`."""


def print_status(
    name: Annotated[
        str | None, typer.Argument(help="the sweep's name; without one all sweeps are listed", **OF_STORE)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="list every cell, finished ones too")] = False,
    as_json: Json = False,
) -> None:
    """Show how far a sweep is, and why cells failed.

    Each cell has its hash and run; a failed one also the traceback's file.
    """
    from fedray.analysis.data.stored import estimate_left, read_started_sweep, read_sweep
    from fedray.sweep.storage import count_kept_rounds, describe_kept, find_last_round, get_traceback_file, read_call
    from fedray.tracking.store import NotStored, count_unlisted, describe_unlisted

    if name is None:
        _print_sweeps(as_json)
        return
    try:
        sweep = read_sweep(name)
    except NotStored:
        sweep = read_started_sweep(name)
        if not sweep.cells:
            if now := read_call(name).describe():
                starting = f"{name} is {now}"
                print(format_json({"name": name, "cells": [], "note": starting}) if as_json else starting)
                return
            if _print_sweeps(as_json, f"{name}/"):  # the stages and blocks of a sweep whose final one has not begun
                return
            raise
    listed = [(cell, sweep.records.get(hash, Record(Ending(Status.MISSING)))) for hash, cell in sweep.cells.items()]
    note = describe_unlisted(sweep.name, count_unlisted(sweep))
    if as_json:
        told = [
            {"hash": cell.hash, "label": cell.label, "status": record.ending.status}
            | ({"run_id": record.run_id, "message": record.ending.message} if record.run_id else {})
            | (
                {"round": find_last_round(cell), "rounds": cell.get("training.rounds")}
                if record.ending.status is Status.RUNNING
                else {}
            )
            for cell, record in listed
        ]
        print(format_json({"name": sweep.name, "cells": told, "note": note}))
        return
    call = read_call(sweep.name)
    aside, seconds, running = 0, math.nan, call.describe()
    if running and call.to_run:
        aside = sum(record.ending.status is Status.MISSING and cell.hash not in call.to_run for cell, record in listed)
        seconds = estimate_left(sweep, call)
    said = _describe_counts(sweep.counts, running, aside)
    said += f", about {format_duration(seconds)} to go" if seconds > 0 else ""
    print(f"{sweep.name}: {format_count(len(listed), 'cell')}, {said}")
    if note:
        print(note)
    trained = {Status.UNLOGGED, Status.FINISHED}
    hidden = set[Status]() if every else trained | {Status.MISSING} if running else trained
    for outcome in (status for status in LISTED_ORDER if status not in hidden):
        cells = [(cell, record) for cell, record in listed if record.ending.status is outcome]
        shown = cells if every else cells[:LISTED]
        for cell, record in shown:
            reason = record.ending.message
            if outcome is Status.RUNNING and (last := find_last_round(cell)):
                reason = f"round {last} of {cell.get('training.rounds')}"
            elif outcome is Status.INTERRUPTED:
                reason = describe_kept(cell)
            print(shorten(escape(f"{outcome:<11} {cell.hash}  {cell.label}{f': {reason}' if reason else ''}")))
            if record.run_id:
                print(f"            run {record.run_id}")
            traceback = get_traceback_file(cell.hash)
            if outcome is Status.FAILED and traceback.exists():
                print(f"            {traceback}")
        if len(shown) < len(cells):
            print(f"{outcome:<11} and {len(cells) - len(shown)} more (--all)")
    left = [cell for cell, record in listed if record.ending.status.is_open or record.ending.status is Status.FAILED]
    if left and not running:
        unlogged = sweep.counts[Status.UNLOGGED]
        kept = sum(count_kept_rounds(cell) > 0 for cell in left) - unlogged
        rest = f"{format_count(len(left) - unlogged, 'cell')} to train"
        rest += f" ({kept} from a checkpoint)" if kept else ""
        tasks = [rest] if len(left) > unlogged else []
        tasks += [f"{format_count(unlogged, 'cell')} to log"] if unlogged else []
        said = f"the same `fedray sweep` command runs what is left: {', '.join(tasks)}"
        if any("sources" in cell.identity for cell, _ in listed):
            said += "; a class of yours that has changed since makes other cells, which begin at round 1"
        print(said)


def _describe_counts(counts: Mapping[Status, int], running: str, aside: int = 0) -> str:
    """Return the numbers of cells by status, and how far a process of theirs is; what it has not begun is `to run`, but
    for `aside`."""
    unlogged = counts.get(Status.UNLOGGED, 0)
    shown = Counter(counts) + Counter({Status.FINISHED: unlogged}) - Counter({Status.UNLOGGED: unlogged})
    words = {Status.FINISHED: f"finished ({unlogged} of them not yet in MLflow)" if unlogged else "finished"}
    shown -= Counter({Status.MISSING: aside})
    words |= {Status.MISSING: "to run"} if running else {}
    told = [f"{shown[status]} {words.get(status, status)}" for status in Status if shown[status]]
    told += [f"{aside} that this call leaves out"] if aside else []
    return "; ".join(filter(None, [", ".join(told), running]))


def _print_sweeps(as_json: bool, prefix: str = "") -> bool:
    """Print a line for each sweep of the store, its cells by status and its first call, and for each that starts.

    Returns False if no name begins with the prefix; nothing is printed then.
    """
    from fedray.analysis.data.stored import read_started_sweep
    from fedray.sweep.storage import correct_statuses, find_started_sweeps, read_call
    from fedray.tracking import store

    started = {name: runs for name, runs in find_started_sweeps().items() if name.startswith(prefix)}
    sweeps, every, unknown = dict[str, Any](), dict[str, Counter[Status]](), None
    try:
        client, experiment = store.open_reader()
        sweeps = {name: run for name, run in store.find_sweeps(client, experiment).items() if name.startswith(prefix)}
        best = store.pick_best(store.search(client, experiment, store.IS_CELL))
        for name, run in sweeps.items():
            cells = store.read_cells(client, run)
            records = {hash: store.read_record(best[hash]) for hash in cells if hash in best}
            every[name] = correct_statuses(Sheet(name, cells, records)).counts
    except store.NotStored as error:
        unknown = error
    begun = {name: read_started_sweep(name).counts for name in started if name not in sweeps}
    starting = {name: counts for name, counts in begun.items() if counts or started[name]}
    if unknown is not None and not (starting or prefix):
        ended = f"there is no store; {', '.join(started)}: ended before a cell began; run again"
        raise UserError(ended) if started else unknown
    if prefix and not (sweeps or starting):
        return False
    if as_json:
        counted = (every | starting).items()
        print(
            format_json(
                [{"name": name, "cells": counts, "running": started.get(name, False)} for name, counts in counted]
            )
        )
        return True
    widest = max(map(len, (*sweeps, *starting)), default=0)
    for name, run in sweeps.items():
        said = _describe_counts(every[name], read_call(name).describe())
        try:
            began = datetime.fromtimestamp(run.info.start_time / 1000).strftime("%Y-%m-%d %H:%M")
        except (TypeError, ValueError, OverflowError, OSError):  # missing, or of no calendar
            began = "at an unknown time"
        print(escape(f"{name:<{widest}}  {began:<16}  {said}"))
    for name, counts in starting.items():
        print(escape(f"{name:<{widest}}  {_describe_counts(counts, read_call(name).describe())}"))
    if not (sweeps or starting):
        print("this store holds no sweep")
    return True


def remove_runs(
    name: Annotated[str, typer.Argument(help="a sweep's name, or the id of one run", **OF_STORE)],
    cell: Annotated[str | None, typer.Option(metavar="CELL", help=f"only these cells' runs: {CELL}")] = None,
    unlisted: Annotated[
        bool, typer.Option("--unlisted", help="only cells of this name that the sweep's file no longer has")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
) -> None:
    """Delete a sweep's runs, or one run, from MLflow.

    Runs that another sweep shares stay; `clean` removes the files.
    """
    from fedray.sweep.storage import find_killed, get_cell_dir, is_sweep_running
    from fedray.tracking.store import find_deletable_runs, open_reader, open_store

    runs, kept = find_deletable_runs(name, cell, unlisted)
    sweep = open_reader()[0].get_run(name).data.tags.get("fedray.sweep", "") if name in runs else name
    if sweep and is_sweep_running(sweep):
        raise UserError(f"rm: the sweep {sweep} is running here; stop it first, its cells go on where they were")
    cells = {
        hash for hash in (what.partition(" ")[0] for what in runs.values()) if hash and get_cell_dir(hash).is_dir()
    }
    if held := cells - find_killed(cells):
        raise UserError(f"rm: the cell {min(held)} is running here; stop it first, it goes on where it was")
    shared = f" ({kept} that another sweep shares stay)" if kept else ""
    counted = format_count(len(runs), "run")
    of_cell = Counter(runs.values())
    for what, count in list(of_cell.items())[:LISTED]:
        print(shorten(escape(f"deletes {what}{f' ({count} runs)' if count > 1 else ''}")))
    if len(of_cell) > LISTED:
        print(f"deletes {len(of_cell) - LISTED} more")
    try:
        agreed = yes or typer.confirm(f"delete {counted} of {name} from MLflow{shared}?")
    except typer.Abort:  # no answer: the question's line is still open
        print()
        agreed = False
    if not agreed:
        print("nothing deleted")
        raise typer.Exit(1)
    client, _ = open_store()
    # As MLflow's UI does: they disappear from queries, and `mlflow gc` frees their space. The sweep's own run, which
    # finds the others, is the last.
    for run in reversed(runs):
        client.delete_run(run)
    print(f"{name}: {counted} deleted{shared}")


def clean(
    name: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="only this sweep's cells; else all", **OF_STORE)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove the files; otherwise they are only listed")] = False,
) -> None:
    """Remove the files of finished cells.

    They are checkpoints, models and clients' states. Runs in MLflow stay (see `rm`).
    """
    from fedray.common.location import get_storage
    from fedray.sweep.storage import find_removable

    if not get_storage().is_dir():
        print(f"{get_storage()}: nothing to remove")
        return
    with find_removable(name) as (goes, stays):
        for folder in goes:
            print(escape(f"{_format_bytes(folder.nbytes):>9} {folder.path} ({folder.why})"))
        for why in sorted({folder.why for folder in stays}):
            kept = [folder.nbytes for folder in stays if folder.why == why]
            print(f"{_format_bytes(sum(kept)):>9} stay: {format_count(len(kept), 'cell')} ({why})")
        total = _format_bytes(sum(folder.nbytes for folder in goes))
        if yes:
            for folder in goes:
                shutil.rmtree(folder.path)
            print(f"{total} removed in {len(goes)} folders")
        else:
            print(f"{total} in {len(goes)} folders would go, trained models with them; --yes removes them")


def _format_bytes(count: int) -> str:
    """Format a size: `512 B`, `1.5 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


Name = Annotated[str, typer.Argument(help="the `name` of a sweep that has been run", **OF_STORE)]


def export(
    name: Name,
    file: Annotated[Path | None, typer.Argument(help="the archive; default NAME.zip here, / as -")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a sweep's cells, curves and artefacts into one file."""
    from fedray.common.output import OutputFile
    from fedray.tracking.archive import export_sweep

    path = OutputFile("FILE", file or Path(f"{name.replace('/', '-')}.zip"), (".zip",), overwrite).path
    print(f"{name}: {format_count(export_sweep(name, path), 'cell')} in {path}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="archives, e.g. quickstart.zip")],
) -> None:
    """Merge exported sweeps into this store. Cells that have got as far here stay as they are."""
    from fedray.tracking.archive import import_sweeps

    for file in files:
        for name, added, there, other in import_sweeps(file):
            apart = f" ({other} with another model; `fedray verify` runs cells again)" if other else ""
            print(f"{name}: {format_count(added, 'cell')} added, {there} already present{apart}", flush=True)


def verify(
    name: Name, cells: Annotated[int, typer.Option(min=1, help="how many finished cells to run again")] = 3
) -> None:
    """Run some finished cells of a sweep again. Exit code 1 unless each has the same hash and last row.

    On another type of CPU bits may differ, which the line then says. Classes that the cells name are imported and run.
    """
    from fedray.sweep.single import verify as verdicts

    same = True
    for word, cell in verdicts(name, cells):
        same &= word == "same"
        print(escape(f"{word:<14} {cell}"), flush=True)
    raise typer.Exit(0 if same else 1)
