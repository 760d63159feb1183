"""Result tables from MLflow: `fedray tables SWEEP [--format ...] [--metric ...] [--out FILE]`.

An entry is the mean ± the sample standard deviation (n - 1) over seeds. The best complete entry of a column is bold,
the second best underlined. An entry of which any seed is missing, failed, diverged, was stopped, never reached the
target or is still running says so and takes no part in the ranking. The rows of a search stand best first. Several
metrics with commas stand side by side. `--average-over partition` averages over settings, seed by seed; `--best-except
fedavg,fedgela` adds the best of the other rows. The formats `seeds` (CSV, a row per
run) and `clients` (CSV, a row per run and client) give what entries are made of.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.data.collect import collect
from fedray.analysis.output import write_or_print
from fedray.analysis.tables.build import build, list_clients, list_runs
from fedray.analysis.tables.formats import FORMATS, format_run_by_run
from fedray.common.errors import UserError, unknown
from fedray.runs.metric import DEFAULT

RUN_BY_RUN = ("seeds", "clients")
"""Formats that are not of entries."""


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    format: Annotated[
        str, typer.Option(help="markdown | latex | csv | seeds (CSV, a row per run) | clients (CSV, a row per client)")
    ] = "markdown",
    metric: Annotated[
        str,
        typer.Option(help="of the runs, rounds_to:PERCENT, rounds_to:METHOD (its best accuracy); several with commas"),
    ] = DEFAULT,
    rows: Annotated[
        str, typer.Option(help="sections or dotted keys, with commas; default algorithm and what is searched")
    ] = "",
    cols: Annotated[str, typer.Option(help="the same; default partition and whatever entries would mix")] = "",
    reference: Annotated[str, typer.Option(help="a row: differences, or for rounds_to speed-ups, to it")] = "",
    average_over: Annotated[str, typer.Option(help="keys of the columns to average over, with commas; partition")] = "",
    best_except: Annotated[str | None, typer.Option(help="a row of the best of all but these, with commas")] = None,
    published: Annotated[bool, typer.Option("--published", help="the paper's values beside ours")] = False,
    paper: Annotated[str, typer.Option(help="the paper's table where the sweep has another name; fedsol/table2")] = "",
    label: Annotated[str, typer.Option(help="what LaTeX refers to the table by: tab:main")] = "",
    out: Annotated[Path | None, typer.Option(help="write to this file instead of printing")] = None,
) -> None:
    """Print a sweep's result table, or write it to a file."""
    if format not in (*FORMATS, *RUN_BY_RUN):
        raise unknown("--format", format, (*FORMATS, *RUN_BY_RUN))
    if label and format != "latex":
        raise UserError(f"--label: only LaTeX has labels; --format is {format}")
    if format in RUN_BY_RUN:
        sweep = collect(name)
        told = list_clients(sweep) if format == "clients" else list_runs(sweep, metric, rows, cols)
        write_or_print(format_run_by_run(told), out)
        return
    sweep = collect(name)
    paper = paper or (sweep.name if published else "")
    table = build(sweep, metric, rows, cols, reference, paper, average_over, best_except)
    write_or_print(FORMATS[format](replace(table, label=label)), out)
