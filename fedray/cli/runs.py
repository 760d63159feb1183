"""`fedray status` and `fedray rm`: what the store knows of a sweep, and how to take it out again."""

from typing import Annotated

import typer

LISTED = 20
"""Cells that `fedray status` lists of each outcome that is not `finished`."""


def status(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    every: Annotated[bool, typer.Option("--all", help="list every cell that has not finished")] = False,
) -> None:
    """How far a sweep is, and what failed: why, and where the traceback is."""
    from analysis.collect import collect
    from fedray.sweep.storage import storage

    sweep = collect(name)
    counts = sweep.cells["status"].value_counts()
    print(f"{sweep.name}: {len(sweep.cells)} cells, " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    for outcome in ("failed", "diverged", "interrupted", "stopped", "running", "missing"):
        cells = sweep.cells[sweep.cells["status"] == outcome]
        shown = cells if every else cells[:LISTED]
        for cell in shown.to_dict("records"):
            reason = cell.get("message")
            print(f"{outcome:<11} {cell['label']}" + (f": {reason}" if isinstance(reason, str) and reason else ""))
            traceback = storage() / "cells" / str(cell["cell"]) / "traceback.txt"
            if outcome == "failed" and traceback.exists():
                print(f"            {traceback}")
        if len(shown) < len(cells):
            print(f"{outcome:<11} and {len(cells) - len(shown)} more (--all)")


def rm(
    name: Annotated[str, typer.Argument(help="a sweep's name, or the id of one run")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete a sweep's runs, or one run, from MLflow. Runs that another sweep shares stay; so do checkpoints."""
    from analysis.deletion import deletable
    from fedray.tracking.store import delete_runs

    runs, kept = deletable(name)
    shared = f" ({kept} that another sweep shares stay)" if kept else ""
    if not yes:
        typer.confirm(f"delete {len(runs)} runs of {name} from MLflow{shared}?", abort=True)
    delete_runs(runs)
    print(f"{name}: {len(runs)} runs deleted{shared}")
