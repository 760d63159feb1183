"""Result tables from MLflow: `fedray tables SWEEP [--format ...] [--metric ...] [--out FILE]`.

An entry is the mean ± the sample standard deviation (n - 1) over seeds. The best complete entry of a column is bold,
the second best underlined. An entry with a seed that is missing, failed, diverged, was stopped, never reached the
target or is still running says so and is not ranked. The rows of a search are sorted, best first. Several metrics,
separated by commas, are shown side by side. `--average-over partition` averages over settings for each seed;
`--best-except fedavg,fedgela` adds the best of the other rows. The formats `seeds` (CSV, a row per run) and `clients`
(CSV, a row per run and client) list the values behind the entries.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.data.collect import collect, find_cells
from fedray.analysis.output import write_or_print
from fedray.analysis.tables.build import build, list_clients, list_runs
from fedray.analysis.tables.formats import FORMATS, SUFFIXES, format_run_by_run
from fedray.cells.metric import DEFAULT
from fedray.common.entry import Overwrite, ShowPublished
from fedray.common.errors import UserError, unknown
from fedray.common.output import OutputFile
from fedray.sweep.file.shipped import list_papers

RUN_BY_RUN = ("seeds", "clients")
"""Formats other than tables of entries."""


def main(
    name: Annotated[list[str], typer.Argument(help="the sweep's name; of several the cells share a table")],
    format: Annotated[
        str,
        typer.Option(
            help="markdown | latex | csv | json | seeds (CSV, a row per run) | clients (CSV, a row per client); "
            "default: by the ending of --out, else markdown"
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="a metric of the runs, rounds_to:PERCENT, rounds_to:METHOD (its best accuracy); several with commas"
        ),
    ] = DEFAULT,
    rows: Annotated[
        str, typer.Option(help="sections or dotted keys, with commas; default algorithm and searched keys")
    ] = "",
    cols: Annotated[str, typer.Option(help="the same; default partition and all keys that entries would mix")] = "",
    reference: Annotated[str, typer.Option(help="a row: show differences from it, or speed-ups for rounds_to")] = "",
    average_over: Annotated[
        str, typer.Option(help="keys of the columns to average over, with commas, such as partition")
    ] = "",
    best_except: Annotated[
        str | None, typer.Option(help="add a row with the best of all except these, with commas")
    ] = None,
    published: ShowPublished = False,
    paper: Annotated[
        str, typer.Option(help="the paper's table if the sweep has another name, such as fedsol/table2")
    ] = "",
    label: Annotated[str, typer.Option(help="LaTeX label of the table: tab:main")] = "",
    caption: Annotated[str, typer.Option(help="its caption, as LaTeX reads it; default the metric and what ± is")] = "",
    out: Annotated[Path | None, typer.Option(help="write to this file instead of printing")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Print a sweep's result table, or write it to a file."""
    by_ending = {suffix: name for name, suffix in SUFFIXES.items()}
    if as_json:
        format = "json"
    elif not format and out is not None and out.suffix not in by_ending:
        raise UserError(f"--out: found {out}; a file that ends in {' or '.join(by_ending)} is required, or --format")
    elif not format:
        format = "markdown" if out is None else by_ending[out.suffix]
    if format not in (*FORMATS, *RUN_BY_RUN):
        raise unknown("--format", format, (*FORMATS, *RUN_BY_RUN))
    for option, given in (("label", label), ("caption", caption)):
        if given and format != "latex":
            raise UserError(f"--{option}: only LaTeX has {option}s; --format is {format}")
    file = None if out is None else OutputFile("--out", out, (SUFFIXES.get(format, ".csv"),), overwrite)
    if format in RUN_BY_RUN:
        runs = collect(*name)
        told = list_clients(runs) if format == "clients" else list_runs(runs, metric, rows, cols)
        write_or_print(format_run_by_run(told), file)
        return
    sweep = find_cells(*name) if (published or paper) and len(name) == 1 else collect(*name)
    if published and not paper and sweep.name.partition("/")[0] not in list_papers():
        raise UserError(
            f"--published: {sweep.name!r} does not belong to a paper; name the printed table with --paper, such as "
            "fedsam/table2"
        )
    paper = paper or (sweep.name if published else "")
    table = build(sweep, metric, rows, cols, reference, paper, average_over, best_except)
    caption = re.sub(r"(?<!\\)((?:\\\\)*)%", r"\1\%", " ".join(caption.split()))  # a bare % would end the line
    write_or_print(FORMATS[format](replace(table, label=label, caption=caption)), file)
