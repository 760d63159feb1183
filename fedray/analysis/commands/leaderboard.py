"""`fedray leaderboard SWEEP --out FILE.csv`: a row per cell of a tuned sweep, and the picture of its standings."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.output import write, write_or_print
from fedray.analysis.plots.leaderboard import draw_standings
from fedray.analysis.tables.leaderboard import Board, list_rows, list_standings, parse_csv, write_csv
from fedray.common.errors import UserError
from fedray.sweep.file.shipped import locate_sweep
from fedray.sweep.file.sweep import Sweep


def main(
    name: Annotated[str, typer.Argument(help="a tuned sweep: its file, or a name such as leaderboard/global")],
    out: Annotated[Path | None, typer.Option(help="the CSV file; else it is printed")] = None,
    picture: Annotated[Path | None, typer.Option(help="also draw the standings: a .png, .svg or .pdf file")] = None,
) -> None:
    """Write a row per cell of both stages: method, options, accuracy, hash, CPU, versions."""
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--picture: found {picture}; a file that ends in .png, .svg or .pdf is required")
    sweep = Sweep.load(locate_sweep(Path(name)))
    text = write_csv(list_rows(sweep))
    write_or_print(text, out)
    if picture is not None:
        write("", picture, "--picture")
        standings = list_standings(Board(sweep.name, sweep, parse_csv(text)))
        draw_standings(standings, sweep.name).savefig(picture, dpi=200)
        print(picture)
