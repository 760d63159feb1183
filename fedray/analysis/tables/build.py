"""The entries of a sweep's result table, its ranks and its notes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fedray.analysis.data.axes import labelled, labels, searched_rows, separating
from fedray.analysis.data.cell_config import configs_in
from fedray.analysis.data.collect import Collected, SweepTable
from fedray.analysis.data.metrics import (
    held_out,
    lower_is_better,
    rounds_between,
    selecting,
    title,
    values,
)
from fedray.analysis.tables import tuned
from fedray.analysis.tables.clients import accuracies
from fedray.analysis.tables.matching import match_published
from fedray.analysis.tables.result_table import BEST, Entry, ResultTable, averaged, entry, side_by_side, with_best
from fedray.common.errors import unknown
from fedray.runs.metric import DEFAULT, Metric


def build(
    sweep: SweepTable,
    metric: str = DEFAULT,
    rows: str = "",
    columns: str = "",
    reference: str = "",
    paper: str = "",
    average_over: str = "",
    best_except: str | None = None,
) -> ResultTable:
    """Group a sweep's cells.

    Args:
        sweep: whose cells.
        metric: of the runs; several with commas stand side by side.
        rows: default the method, of a search with every searched key, best first.
        columns: default partition and whatever else entries would mix.
        reference: a row to compare with.
        paper: the published table (`fedtoga/table1`) to put beside; none beside a smoke sweep of the same name.
        average_over: keys with commas that columns are averaged over.
        best_except: rows with commas that are no baselines; then there is a row of the best of the others.

    Raises:
        UserError: for a metric no finished run has, an unknown key, reference, row or published table.
    """
    rows = rows or searched_rows(sweep.cells, sweep.search.keys)
    if "," in metric:
        return side_by_side(
            {
                one: build(sweep, one, rows, columns, reference, paper, average_over, best_except)
                for one in dict.fromkeys(metric.split(","))
            }
        )
    cells = sweep.cells.assign(_value=values(sweep, metric), _row=labels(sweep.cells, rows, sweep.search.keys))
    columns = columns or separating(cells, cells["_row"])
    cells = cells.assign(_setting=labels(cells, columns))
    said: list[str] = []
    if best_except is not None:
        cells, said = with_best(cells, [row for row in best_except.split(",") if row], lower_is_better(metric, cells))
    cells = cells.assign(_column=averaged_over(cells, columns, average_over) if average_over else cells["_setting"])
    groups = {(str(row), str(column)): group for (row, column), group in cells.groupby(["_row", "_column"], sort=False)}
    settings = cells.groupby("_column")["_setting"].nunique()
    entries = {
        key: averaged(group, settings[key[1]]) if average_over else entry(group) for key, group in groups.items()
    }
    names = list(dict.fromkeys(cells["_row"])), list(dict.fromkeys(cells["_column"]))
    ratio, notes = Metric.parse(metric).target is not None, _notes(sweep, cells, metric, average_over) + said
    entries = _as_printed(entries, ratio)
    if sweep.search.keys:
        names = best_first(sweep, cells), names[1]
        notes.append(
            f"a search: best row first, by {selecting(sweep)}"
            + " (selected on the test set)" * Metric.parse(selecting(sweep)).is_on_test_set
        )
    notes += tuned.notes(sweep, cells)
    if reference:
        if reference not in names[0]:
            raise unknown("--reference", reference, names[0])
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
        configs = {key: list(configs_in(group)) for key, group in groups.items()}
        printed, said = match_published(paper, metric, configs, bool(average_over))
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
    """Every client of every finished run, as `fedray.analysis.tables.clients.accuracies`.

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
            raise unknown("--average-over", key, keys)
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
    if Metric.parse(metric).target is not None:
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
