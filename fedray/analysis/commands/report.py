"""A sweep as one HTML page: `fedray report SWEEP [--metric ...] [--reference fedavg] [--published] [--out FILE]`."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.data.collect import collect
from fedray.analysis.output import write_or_print
from fedray.analysis.report import make_page
from fedray.cells.metric import DEFAULT
from fedray.common.entry import Overwrite, ShowPublished
from fedray.common.output import OutputFile


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    metric: Annotated[str, typer.Option(help="metric of the tables; several with commas")] = DEFAULT,
    published: ShowPublished = False,
    reference: Annotated[str, typer.Option(help="the row to compare with; default fedavg if it is a row")] = "",
    out: Annotated[Path | None, typer.Option(help="default: NAME.html here, / as -")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a sweep's report."""
    file = OutputFile("--out", out or Path(f"{name.replace('/', '-')}.html"), (".html",), overwrite)
    sweep = collect(name)
    page = make_page(sweep, metric.split(","), sweep.name if published else "", reference)
    write_or_print(page, file)
