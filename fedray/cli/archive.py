"""`fedray export | import | verify`."""

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="the `name` of a sweep that has been run")]
File = Annotated[Path, typer.Argument(help="the archive, e.g. quickstart.zip")]


def export(name: Name, file: File) -> None:
    """Write a sweep's cells, curves, artefacts and hashes into one file, for another store."""
    from fedray.tracking.archive import export_sweep

    print(f"{name}: {export_sweep(name, file)} cells in {file}")


def import_(file: File) -> None:
    """Merge an exported sweep into this store. Cells that are as far here stay as they are."""
    from fedray.tracking.archive import import_sweep

    name, added, there = import_sweep(file)
    print(f"{name}: {added} cells added, {there} were there already")


def verify(
    name: Name, cells: Annotated[int, typer.Option(min=1, help="how many finished cells to run again")] = 3
) -> None:
    """Run some finished cells of a sweep again and compare their hashes. Exit code 1 unless all are the same."""
    from fedray.sweep.verify import verify as verdicts

    same = True
    for verdict in verdicts(name, cells):
        same &= verdict.word == "same"
        print(verdict, flush=True)
    raise typer.Exit(0 if same else 1)
