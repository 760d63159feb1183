"""`fedray status`, `rm` and `clean`: how far a sweep is, and how to delete its runs or its files."""

from typing import Annotated

import typer

from fedray.common.errors import escape
from fedray.runs.status import Status

LISTED_ORDER = (
    Status.FAILED,
    Status.DIVERGED,
    Status.INTERRUPTED,
    Status.STOPPED,
    Status.PRUNED,
    Status.RUNNING,
    Status.MISSING,
)
"""Order in which `fedray status` lists the cells that have not finished."""
LISTED = 20
"""Number of cells that `fedray status` lists per outcome other than `finished`."""


def print_status(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    every: Annotated[bool, typer.Option("--all", help="list every cell that has not finished")] = False,
) -> None:
    """Show how far a sweep is, and for failed cells the reason and the traceback's file."""
    from fedray.analysis.data.collect import collect
    from fedray.sweep.plan.storage import get_storage

    sweep = collect(name)
    counts = sweep.cells["status"].value_counts()
    print(f"{sweep.name}: {len(sweep.cells)} cells, " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    for outcome in LISTED_ORDER:
        cells = sweep.cells[sweep.cells["status"] == outcome]
        shown = cells if every else cells[:LISTED]
        for cell in shown.to_dict("records"):
            reason = cell.get("message")
            why = f": {reason}" if isinstance(reason, str) and reason else ""
            print(escape(f"{outcome:<11} {cell['label']}{why}"))
            traceback = get_storage() / "cells" / str(cell["cell"]) / "traceback.txt"
            if outcome is Status.FAILED and traceback.exists():
                print(f"            {traceback}")
        if len(shown) < len(cells):
            print(f"{outcome:<11} and {len(cells) - len(shown)} more (--all)")


def remove_runs(
    name: Annotated[str, typer.Argument(help="a sweep's name, or the id of one run")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
) -> None:
    """Delete a sweep's runs, or one run, from MLflow. Runs that another sweep shares stay; so do checkpoints."""
    from fedray.tracking.deletion import deletable
    from fedray.tracking.store import delete_runs

    runs, kept = deletable(name)
    shared = f" ({kept} that another sweep shares stay)" if kept else ""
    if not yes:
        typer.confirm(f"delete {len(runs)} runs of {name} from MLflow{shared}?", abort=True)
    delete_runs(runs)
    print(f"{name}: {len(runs)} runs deleted{shared}")


def clean(
    name: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="only this sweep's cells; else all")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove the files; otherwise they are only listed")] = False,
) -> None:
    """Remove the files of finished cells: checkpoints, models, clients' states. Runs in MLflow stay (see `rm`)."""
    from fedray.sweep.driver.clean import find_removable, remove
    from fedray.sweep.plan.storage import get_storage

    if not get_storage().is_dir():
        print(f"{get_storage()}: nothing to remove")
        return
    with find_removable(name) as (goes, stays):
        for folder in goes:
            print(escape(f"{_format_bytes(folder.nbytes):>9} {folder.path} ({folder.why})"))
        for why in sorted({folder.why for folder in stays}):
            kept = [folder.nbytes for folder in stays if folder.why == why]
            print(f"{_format_bytes(sum(kept)):>9} stay: {len(kept)} cells ({why})")
        total = _format_bytes(sum(folder.nbytes for folder in goes))
        if yes:
            remove(goes)
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
