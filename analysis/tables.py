"""Result tables from MLflow: `python -m analysis.tables SWEEP [--format ...] [--metric ...] [--out FILE]`.

An entry is the mean ± the sample standard deviation (n - 1) over seeds. The best complete entry of a column is bold,
the second best underlined. An entry of which any seed is missing, failed, diverged, was stopped, never reached the
target or is still running says so and takes no part in the ranking. The rows of a search stand best first. Several
metrics with commas stand side by side. `--over partition` averages over settings, seed by seed; `--best-but
fedavg,fedgela` adds the best of the other rows. The formats `seeds` (CSV, a row per
run) and `clients` (CSV, a row per run and client) give what entries are made of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from analysis.drawing.panels import labelled
from analysis.output import written
from analysis.reading.axes import labels, searched_rows, separating
from analysis.reading.collect import Collected, SweepTable, collect
from analysis.reading.metrics import (
    DEFAULT,
    evaluations,
    held_out,
    is_rounds,
    lower_is_better,
    rounds_between,
    selecting,
    title,
    values,
)
from analysis.tabling import tuned
from analysis.tabling.clients import accuracies
from analysis.tabling.formats import FORMATS, run_by_run
from analysis.tabling.published import beside
from analysis.tabling.result_table import BEST, Entry, ResultTable, averaged, entry, side_by_side, with_best
from fedray.common.errors import UserError, unknown
from fedray.sweep.file.sections import on_test_set


def build(
    sweep: SweepTable,
    metric: str = DEFAULT,
    rows: str = "",
    columns: str = "",
    reference: str = "",
    paper: str = "",
    over: str = "",
    best_but: str | None = None,
) -> ResultTable:
    """Group a sweep's cells.

    Args:
        sweep: whose cells.
        metric: of the runs; several with commas stand side by side.
        rows: default the method, of a search with every searched key, best first.
        columns: default partition and whatever else entries would mix.
        reference: a row to compare with.
        paper: the published table (`fedtoga/table1`) to put beside; none beside a smoke sweep of the same name.
        over: keys with commas that columns are averaged over.
        best_but: rows with commas that are no baselines; then there is a row of the best of the others.

    Raises:
        UserError: for a metric no finished run has, an unknown key, reference, row or published table.
    """
    rows = rows or searched_rows(sweep.cells, sweep.search.keys)
    if "," in metric:
        return side_by_side(
            {
                one: build(sweep, one, rows, columns, reference, paper, over, best_but)
                for one in dict.fromkeys(metric.split(","))
            }
        )
    cells = sweep.cells.assign(_value=values(sweep, metric), _row=labels(sweep.cells, rows, sweep.search.keys))
    columns = columns or separating(cells, cells["_row"])
    cells = cells.assign(_setting=labels(cells, columns))
    said: list[str] = []
    if best_but is not None:
        cells, said = with_best(cells, [row for row in best_but.split(",") if row], lower_is_better(metric, cells))
    cells = cells.assign(_column=averaged_over(cells, columns, over) if over else cells["_setting"])
    groups = {(str(row), str(column)): group for (row, column), group in cells.groupby(["_row", "_column"], sort=False)}
    settings = cells.groupby("_column")["_setting"].nunique()
    entries = {key: averaged(group, settings[key[1]]) if over else entry(group) for key, group in groups.items()}
    names = list(dict.fromkeys(cells["_row"])), list(dict.fromkeys(cells["_column"]))
    ratio, notes = is_rounds(metric), _notes(sweep, cells, metric, over) + said
    entries = _as_printed(entries, ratio)
    if sweep.search.keys:
        names = best_first(sweep, cells), names[1]
        notes.append(
            f"a search: best row first, by {selecting(sweep)}"
            + " (selected on the test set)" * on_test_set(selecting(sweep))
        )
    notes += tuned.notes(sweep, cells)
    if reference:
        if reference not in names[0]:
            raise unknown("--to", reference, names[0])
        entries = {
            key: replace(one, change=_change(one, entries.get((reference, key[1])), ratio))
            for key, one in entries.items()
        }
        notes.append(f"in parentheses: {f'rounds of {reference} / rounds' if ratio else f'difference to {reference}'}")
    if paper == sweep.name and paper.endswith("-smoke"):
        notes.append(
            "a smoke sweep, whose numbers mean nothing beside a paper's: nothing is compared; "
            f"--paper {paper.removesuffix('-smoke')} does it all the same"
        )
    elif paper:
        printed, said = beside(paper, metric, groups, bool(over))
        entries = {key: replace(one, printed=printed.get(key)) for key, one in entries.items()}
        notes += said
    return ResultTable(
        f"{sweep.name}: {title(metric, cells, held_out(sweep))}{tuned.mark(sweep)}",
        *names,
        entries,
        _ranks(entries, names[1], lower_is_better(metric, cells)),
        notes,
        reference,
        paper,
    )


def by_seed(sweep: SweepTable, metric: str = DEFAULT, rows: str = "", columns: str = "") -> pd.DataFrame:
    """The runs that a table's entries are made of.

    Args:
        sweep: whose cells.
        metric: of the runs; several with commas become a column each.
        rows: as for `build`.
        columns: as for `build`.

    Returns:
        A row per cell, in the sweep's order: `row`, `column`, `seed`, `status`, `run_id`, and the metrics; these are
        empty where the run has not finished, or never reached the target.
    """
    rows = rows or searched_rows(sweep.cells, sweep.search.keys)
    named = labels(sweep.cells, rows, sweep.search.keys)
    settings = labels(sweep.cells, columns or separating(sweep.cells, named))
    found = {one: values(sweep, one).replace(math.inf, math.nan) for one in dict.fromkeys(metric.split(","))}
    told = {"row": named, "column": settings, **{key: sweep.cells[key] for key in ("seed", "status", "run_id")}}
    return pd.DataFrame(told | found)


def by_client(sweep: Collected) -> pd.DataFrame:
    """Every client of every finished run, as `analysis.tabling.clients.accuracies`.

    Raises:
        UserError: no run has finished, or none has tested its clients.
    """
    return accuracies(sweep, labelled(sweep))


def best_first(sweep: SweepTable, cells: pd.DataFrame) -> list[str]:
    """The rows of a search by the mean of what selects; rows of which a run has not finished come last, as they are."""
    by = selecting(sweep)
    value = cells[f"metrics.{by}"] if f"metrics.{by}" in cells else pd.Series(math.nan, cells.index)
    of_row = value.where(cells["status"] == "finished").groupby(cells["_row"], sort=False)
    means = of_row.agg(lambda runs: runs.mean(skipna=False))
    return list(means.sort_values(ascending=lower_is_better(by, cells), kind="stable").index)


def averaged_over(cells: pd.DataFrame, columns: str, over: str) -> pd.Series | str:
    """How the columns are called without the keys that they are averaged over."""
    keys, left_out = columns.split(","), over.split(",")
    for key in left_out:
        if key not in keys:
            raise unknown("--over", key, keys)
    kept = ",".join(key for key in keys if key not in left_out)
    return labels(cells, kept) if kept else f"mean over {over}"


def _change(entry: Entry, reference: Entry | None, ratio: bool) -> float | None:
    if reference is None or not (entry.whole and reference.whole) or entry.mean is None or reference.mean is None:
        return None
    return reference.mean / entry.mean if ratio else entry.mean - reference.mean


def _as_printed(entries: Mapping[tuple[str, str], Entry], rounds: bool) -> dict[tuple[str, str], Entry]:
    """The entries with their digits: one for rounds; else two, or as many as show three figures of a column's largest.

    So a column of losses below 0.1 is not a column of 0.00.
    """
    digits = {}
    for column in {column for _, column in entries}:
        largest = max((abs(one.mean) for key, one in entries.items() if key[1] == column and one.mean), default=1.0)
        digits[column] = 1 if rounds else max(2, 2 - math.floor(math.log10(largest)))
    return {key: replace(one, digits=digits[key[1]], is_round=rounds) for key, one in entries.items()}


def _ranks(entries: dict[tuple[str, str], Entry], columns: Sequence[str], lower: bool) -> dict[tuple[str, str], int]:
    """Ranks of whole entries within their columns; means that are alike in their digits, at least two, share one."""
    ranks = dict[tuple[str, str], int]()
    for column in columns:
        whole = {
            key: round(one.mean, max(2, one.digits))
            for key, one in entries.items()
            if key[1] == column and one.whole and key[0] != BEST and one.mean is not None
        }
        order = sorted(set(whole.values()), reverse=not lower)
        ranks |= {key: order.index(mean) + 1 for key, mean in whole.items() if mean in order[:2] and len(whole) > 1}
    return ranks


def _notes(sweep: SweepTable, cells: pd.DataFrame, metric: str, over: str) -> list[str]:
    notes = []
    cells = cells[cells["_row"] != BEST]
    seeds = cells.groupby(["_row", "_column"])["seed"].nunique()
    if seeds.nunique() == 1:
        notes.append(
            f"mean ± sample standard deviation over {seeds.iloc[0]} seeds; best bold, second best underlined"
            if seeds.iloc[0] > 1
            else "one seed; best bold, second best underlined"
        )
    else:
        notes.append(f"mean ± sample standard deviation over {seeds.min()} to {seeds.max()} seeds")
    if over:
        counts = cells.groupby("_column")["_setting"].nunique()
        notes.append(
            f"averaged over {over}, seed by seed: "
            + ", ".join(f"{n} settings ({column})" for column, n in counts.items())
        )
    groups = cells.groupby(["_row", "_setting"])
    mixed = groups.size() > groups["seed"].nunique()
    if mixed.any():
        notes.append(f"{mixed.sum()} entries mix runs that differ by more than the seed; --cols can name what by")
    if metric.startswith("last10_") and "metrics.evaluations" in cells:
        counts = evaluations(cells, metric)
        few = counts[counts < 10]
        if len(few):
            notes.append(
                f"{len(few)} runs have fewer than 10 evaluated rounds (as few as {few.min():.0f}): the mean of those"
            )
    if is_rounds(metric):
        every = sorted({rounds_between(sweep, run) for run in cells.loc[cells["status"] == "finished", "run_id"]})
        if every and every != [1]:
            notes.append(
                f"evaluated every {' or '.join(map(str, every))} rounds, so the target may have been met earlier"
            )
    bad = cells[~cells["status"].isin(["finished", "missing", "running"])]
    notes += [
        f"{cell['status']}: {cell['label']}" + (f": {cell['message']}" if cell.get("message") else "")
        for _, cell in bad.iterrows()
    ]
    return notes


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
    to: Annotated[str, typer.Option(help="a row: differences, or for rounds_to speed-ups, to it")] = "",
    over: Annotated[str, typer.Option(help="keys of the columns to average over, with commas; partition")] = "",
    best_but: Annotated[str | None, typer.Option(help="a row of the best of all rows but these, with commas")] = None,
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
        told = by_client(sweep) if format == "clients" else by_seed(sweep, metric, rows, cols)
        written(run_by_run(told), out)
        return
    sweep = collect(name)
    paper = paper or (sweep.name if published else "")
    table = build(sweep, metric, rows, cols, to, paper, over, best_but)
    written(FORMATS[format](replace(table, label=label)), out)


if __name__ == "__main__":
    from fedray.common.entry import entry as run

    run(main)
