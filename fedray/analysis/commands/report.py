"""A sweep as one HTML page: `fedray report SWEEP [--metric ...] [--reference fedavg] [--published] [--out FILE]`.

`--checklist neurips|acl` writes another page: what the store knows about the questions of that checklist, and a list
of what is for you to say.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.checklist.page import make_page as make_checklist
from fedray.analysis.data.collect import collect
from fedray.analysis.output import write_or_print
from fedray.analysis.report import make_page
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    metric: Annotated[str, typer.Option(help="metric of the tables; several with commas")] = DEFAULT,
    published: Annotated[bool, typer.Option("--published", help="show the paper's values next to ours")] = False,
    reference: Annotated[str, typer.Option(help="the row to compare with; default fedavg if it is a row")] = "",
    checklist: Annotated[
        str, typer.Option(help="neurips | acl: what the store knows about the checklist's questions, instead")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="default: NAME.html or NAME-CHECKLIST.html here, / as -")] = None,
) -> None:
    """Write a sweep's report, or what the store knows for a checklist."""
    if published and checklist:
        raise UserError("--published: a checklist has no table; leave one of the two out")
    path = out or Path("-".join([*name.split("/"), *([checklist] if checklist else [])]) + ".html")
    sweep = collect(name)
    if checklist:
        write_or_print(make_checklist(sweep, checklist, metric.split(","), reference), path)
        return
    write_or_print(make_page(sweep, metric.split(","), sweep.name if published else "", reference), path)
