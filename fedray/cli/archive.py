"""`fedray export | import | verify`."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.cli.runs import OF_STORE
from fedray.common.entry import Overwrite
from fedray.common.errors import escape, format_count

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
        for name, added, there in import_sweeps(file):
            print(f"{name}: {format_count(added, 'cell')} added, {there} already present", flush=True)


def verify(
    name: Name,
    cells: Annotated[int, typer.Option(min=1, help="how many finished cells to run again")] = 3,
) -> None:
    """Run some finished cells of a sweep again. Exit code 1 unless each has the same hash and last row.

    On another type of CPU bits may differ, which the line then says. Classes that the cells name are imported and run.
    """
    from fedray.sweep.driver.verify import verify as verdicts

    same = True
    for verdict in verdicts(name, cells):
        same &= verdict.word == "same"
        print(escape(str(verdict)), flush=True)
    raise typer.Exit(0 if same else 1)
