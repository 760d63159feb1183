"""`fedray export | import | verify`."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.cli.listing import complete
from fedray.cli.runs import OF_STORE
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, escape, format_count

Name = Annotated[str, typer.Argument(help="the `name` of a sweep that has been run", **OF_STORE)]


def export(
    name: Name,
    file: Annotated[Path | None, typer.Argument(help="the archive; default NAME.zip here, / as -")] = None,
    deposit: Annotated[
        bool, typer.Option("--deposit", help="for a repository: also a README, tables, figures, citations")
    ] = False,
    licence: Annotated[str, typer.Option(help="with --deposit: its licence, such as CC-BY-4.0")] = "",
    author: Annotated[list[str] | None, typer.Option(help="with --deposit: a name; can be repeated")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="with --deposit: of a table, as in `tables`; can be repeated",
            autocompletion=lambda incomplete: complete("metrics", incomplete),
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a sweep's cells, with curves and artefacts, into one file.

    It is for another store or, with --deposit, for readers.
    """
    from fedray.common.output import OutputFile

    path = OutputFile("FILE", file or Path(f"{name.replace('/', '-')}.zip"), (".zip",), overwrite).path
    if deposit:
        from fedray.analysis.deposit.export import export_deposit

        more = {"metrics": metric} if metric else {}
        count = export_deposit(name, path, licence, author or (), **more)
    else:
        if licence or author or metric:
            raise UserError("--licence, --author, --metric: go with --deposit")
        from fedray.tracking.archive.pack import export_sweep

        count = export_sweep(name, path)
    print(f"{name}: {format_count(count, 'cell')} in {path}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="archives, e.g. quickstart.zip")],
) -> None:
    """Merge exported sweeps into this store. Cells that have got as far here stay as they are."""
    from fedray.sweep.plan.agreement import refuse_disagreement
    from fedray.tracking.archive.merge import import_sweep

    for file in files:
        name, added, there = import_sweep(file, refuse_disagreement)
        print(f"{name}: {format_count(added, 'cell')} added, {there} already present", flush=True)


def verify(
    name: Name,
    cells: Annotated[int, typer.Option(min=1, help="how many finished cells to run again")] = 3,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="import this module if a cell names a class in it; can be repeated"),
    ] = None,
) -> None:
    """Run some finished cells of a sweep again and compare every number. Exit code 1 unless all are the same.

    On another type of CPU bits may differ; then the accuracies have to agree within the spread of the seeds. First come
    the environments of the cells that differ from this one.
    """
    from fedray.sweep.driver.verify import GOOD, describe_environments
    from fedray.sweep.driver.verify import verify as verdicts

    for line in describe_environments(name):
        print(escape(line))
    good = True
    for verdict in verdicts(name, cells, trust or ()):
        good &= verdict.word in GOOD
        print(escape(str(verdict)), flush=True)
    raise typer.Exit(0 if good else 1)
