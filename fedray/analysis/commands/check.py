"""Check a paper's numbers: `fedray check paper.tex NAME...`.

Every table that `fedray tables --format latex` wrote and every macro of `fedray tables --macros` is compared with what
the store gives now, in the source and in all files that it inputs. Each states its command in a comment. Exit code 0 if
all agree, 1 if an entry differs, 2 if the source cannot be checked.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.output import write_or_print
from fedray.analysis.tables.paper import compare_with_store, describe, read_paper, refuse_unusable


def main(
    paper: Annotated[Path, typer.Argument(help="the LaTeX source")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="the sweeps whose numbers it holds")],
) -> None:
    """Compare a paper's tables and macros with the store."""
    source = read_paper(paper)
    sweeps: dict[str, SweepTable] = {}
    for name in names:
        sweep = collect(name)
        sweeps |= {name: sweep, sweep.name: sweep}  # only the smoke version may have been run
    refuse_unusable(source, list(sweeps))
    agreement = compare_with_store(source, sweeps)
    write_or_print("\n".join(describe(source, agreement)) + "\n", None)
    if agreement.disagreements:
        raise typer.Exit(1)
