"""Result tables: `fedray tables SWEEP [--format ...] [--metric ...] [--out FILE]`; entries, their ranks and notes.

An entry is the mean ± the sample standard deviation (n - 1) over seeds. The best complete entry of a column is bold,
the second best underlined. An entry with a seed that is missing, failed, diverged, was stopped, never reached the
target or is still running says so and is not ranked. The rows of a search are sorted, best first. Several metrics,
separated by commas, are shown side by side. `--average-over partition` averages over settings for each seed;
`--best-except fedavg,fedgela` adds the best of the other rows. The formats `seeds` (CSV, a row per run) and `clients`
(CSV, a row per run and client) list the values behind the entries.
"""

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from fedray.analysis.data.axes import (
    choose_search_rows,
    find_columns,
    find_keys,
    find_label,
    find_symbol,
    label_cells,
    label_finished,
    list_dotted,
    list_unlike,
    unknown_row,
)
from fedray.analysis.data.collect import SweepTable, collect, find_cells
from fedray.analysis.data.metrics import (
    count_digits,
    describe_doubts,
    describe_target,
    find_selection_metric,
    is_ranked,
    is_smaller_better,
    make_title,
    read_values,
)
from fedray.analysis.data.stored import read_sweep
from fedray.analysis.tables.clients import read_accuracies
from fedray.analysis.tables.formats import FORMATS, SUFFIXES, format_run_by_run
from fedray.analysis.tables.published import BEST, match_published
from fedray.analysis.tables.result_table import (
    LEGEND,
    UNPAIRED,
    Entry,
    Key,
    ResultTable,
    add_best,
    average,
    join_tables,
    list_alike,
    make_entry,
)
from fedray.cells.metric import DEFAULT, ROUNDS_TO, Metric
from fedray.cells.status import Status
from fedray.common.entry import Overwrite, ShowPublished
from fedray.common.errors import UserError, format_count, unknown
from fedray.common.output import OutputFile, write_or_print
from fedray.components.base import format_value
from fedray.sweep.document import list_papers, list_sweeps
from fedray.sweep.storage import is_sweep_running
from fedray.tracking.store import NotStored


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
    """Group a sweep's cells; the arguments are the options of `fedray tables`.

    A published table `paper` is not used for a smoke sweep of the same name. Raises UserError if no finished run has
    the metric, or a key, reference, row or published table is unknown.
    """
    rows = find_keys(rows, sweep.cells) or choose_search_rows(sweep.cells, sweep.searched)
    columns = find_keys(columns, sweep.cells)
    if "," in metric:
        options = rows, columns, reference, paper, average_over, best_except
        return join_tables({name: build(sweep, name, *options) for name in dict.fromkeys(metric.split(","))})
    cells = sweep.cells.assign(_value=read_values(sweep, metric), _row=label_cells(sweep.cells, rows, sweep.searched))
    if Metric.parse(metric).target is None:  # a finished run without a value: the metric is undefined there
        undefined = (cells["status"] == Status.FINISHED) & cells["_value"].isna()
        cells = cells.assign(status=cells["status"].mask(undefined, "undefined"))
    columns = columns or find_columns(cells, cells["_row"])
    cells = cells.assign(_setting=label_cells(cells, columns))
    captioned = list[str]()
    reference = reference and find_label(cells, reference, rows, sweep.searched)
    if best_except is not None:
        rows_of = cells.groupby("algorithm.name", sort=False)["_row"].unique()
        named = [find_label(cells, row, rows, sweep.searched) for row in best_except.split(",") if row]
        known = {*cells["_row"]}
        others = [row for name in named for row in ([name] if name in known else rows_of.get(name, [name]))]
        cells, best = add_best(cells, others, is_smaller_better(metric, cells))
        but = f" but {', '.join(named)}" if named else ""
        captioned.append(f"{BEST}: of all ranked rows{but}, chosen by the numbers shown; {best}")
    cells = cells.assign(_column=drop_keys(cells, columns, average_over) if average_over else cells["_setting"])
    groups = {(str(row), str(column)): group for (row, column), group in cells.groupby(["_row", "_column"], sort=False)}
    settings = cells.groupby("_column")["_setting"].nunique()

    def summarise(group: pd.DataFrame, column: str) -> Entry:
        return average(group, settings[column]) if average_over else make_entry(group)

    entries = {(row, column): summarise(group, column) for (row, column), group in groups.items()}
    names = list(dict.fromkeys(cells["_row"])), list(dict.fromkeys(cells["_column"]))
    rivals = _list_rivals(cells, entries, rows, columns, average_over)
    for keys in rivals:
        alike = list_alike({key: groups[key]["seed"] for key in keys if key[0] != BEST})
        apart = {key: groups[key]["seed"].nunique() for key in keys if key not in alike and key[0] != BEST}
        entries |= {key: replace(entries[key], apart=count) for key, count in apart.items()}
    notes = _list_notes(sweep, cells, metric, {key for key, one in entries.items() if one.apart})
    captioned = [*_list_captioned(sweep, cells, metric, average_over, entries), *captioned]
    captioned += list_unlike(cells[cells["_row"] != BEST], rows, columns, average_over)
    ratio = Metric.parse(metric).plain == ROUNDS_TO
    digits = 1 if ratio else count_digits(one.mean for one in entries.values() if one.mean is not None)
    entries = {key: replace(one, digits=digits, is_round=ratio) for key, one in entries.items()}
    if sweep.searched:
        names = sort_best_first(sweep, cells), names[1]
        notes.append(
            f"a search: best row first, by {find_selection_metric(sweep)}"
            + " (selected on the test set)" * Metric.parse(find_selection_metric(sweep)).is_on_test_set
        )
    notes += list_tuning_notes(sweep, cells[cells["_row"] != BEST])
    if reference:
        if reference not in names[0]:
            raise unknown_row("--reference", reference, names[0])
        for (row, column), one in list(entries.items()):
            pairs = _pair(groups[row, column], groups.get((reference, column)))
            ours, theirs = (summarise(each, column) for each in pairs)
            if ours.whole and theirs.whole and ours.mean is not None and theirs.mean is not None:
                change = theirs.mean / ours.mean if ratio else round(ours.mean - theirs.mean, 9) + 0.0  # never -0
                entries[row, column] = replace(one, change=change)
        shared = ", of the seeds that both have" if any(one.apart for one in entries.values()) else ""
        lacking = any(one.change is None and one.mean is not None for one in entries.values())
        without = "; none where one of the two lacks a seed or never arrives" if lacking else ""
        if any(one.change is not None for one in entries.values()):
            quotient = f"(×): {reference}'s mean rounds divided by the method's{shared}{without}"
            captioned.append(quotient if ratio else f"in parentheses: difference to {reference}{shared}")
    if paper == sweep.name and paper.endswith("-smoke"):
        notes.append(
            "a smoke sweep, whose numbers cannot be compared with a paper's; "
            f"--paper {paper.removesuffix('-smoke')} compares them anyway"
        )
    elif paper:
        configs = {key: list(group["spec"]) for key, group in groups.items()}
        printed, said = match_published(paper, metric, configs, bool(average_over))
        entries = {key: replace(one, printed=printed.get(key)) for key, one in entries.items()}
        notes += said
    on_test_set = any(Metric.parse(one["select"]).is_on_test_set for one in sweep.tuned.values())
    return ResultTable(
        f"{sweep.name.replace(' ', ' and ')}: {make_title(metric, cells)}"
        + " (selected on the test set)" * on_test_set,
        *names,
        entries,
        _rank(entries, rivals, is_smaller_better(metric, cells)) if is_ranked(metric, cells) else {},
        [notes[0], *captioned, *notes[1:]],
        reference,
        paper,
        captioned=captioned,
    )


def list_runs(sweep: SweepTable, metric: str = DEFAULT, rows: str = "", columns: str = "") -> pd.DataFrame:
    """Return the runs behind a table's entries: `row`, `column`, `seed`, `status`, `run_id` and the metrics of each
    cell.

    A metric is empty if the run has not finished, or never reached the target.
    """
    rows = find_keys(rows, sweep.cells) or choose_search_rows(sweep.cells, sweep.searched)
    named = label_cells(sweep.cells, rows, sweep.searched)
    settings = label_cells(sweep.cells, find_keys(columns, sweep.cells) or find_columns(sweep.cells, named))
    found = {one: read_values(sweep, one).replace(math.inf, math.nan) for one in dict.fromkeys(metric.split(","))}
    told = {"row": named, "column": settings, **{key: sweep.cells[key] for key in ("seed", "status", "run_id")}}
    return pd.DataFrame(told | found)


def sort_best_first(sweep: SweepTable, cells: pd.DataFrame) -> list[str]:
    """Return the rows of a search by their mean selection metric; rows with an unfinished run come last, in order."""
    by = find_selection_metric(sweep)
    value = cells[f"metrics.{by}"] if f"metrics.{by}" in cells else pd.Series(math.nan, cells.index)
    of_row = value.where(cells["status"] == Status.FINISHED).groupby(cells["_row"], sort=False)
    means = of_row.agg(lambda runs: runs.mean(skipna=False))
    return list(means.sort_values(ascending=is_smaller_better(by, cells), kind="stable").index)


def drop_keys(cells: pd.DataFrame, columns: str, over: str) -> pd.Series | str:
    """Return the columns' names without the keys that they are averaged over."""
    keys, left_out = columns.split(","), over.split(",")
    for key in left_out:
        if key not in keys:
            raise unknown("--average-over", key, keys)
    kept = ",".join(key for key in keys if key not in left_out)
    return label_cells(cells, kept) if kept else f"mean over {over}"


def _list_rivals(
    cells: pd.DataFrame, keys: Iterable[Key], rows: str, columns: str, average_over: str
) -> list[list[Key]]:
    """Return the entries that are ranked together, column by column.

    If the columns are methods: row by row, among columns that agree in what they name besides the method.
    """
    across, groups = dict[str, str](), defaultdict[Key, list[Key]](list)
    if "algorithm" in columns.split(",") and "algorithm" not in rows.split(","):
        placed = drop_keys(cells, columns, ",".join(filter(None, ("algorithm", average_over))))
        across = dict(zip(cells["_column"], cells.assign(_of=placed)["_of"], strict=True))
    for row, column in keys:
        groups[(row, across[column]) if across else ("", column)].append((row, column))
    return list(groups.values())


def _pair(ours: pd.DataFrame, theirs: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells of two entries, without those whose setting and seed the other one lacks."""
    theirs = ours[:0] if theirs is None else theirs
    places = [pd.MultiIndex.from_frame(cells[["_setting", "seed"]]) for cells in (ours, theirs)]
    return ours[places[0].isin(places[1])], theirs[places[1].isin(places[0])]


def _rank(entries: Mapping[Key, Entry], rivals: Iterable[Iterable[Key]], lower: bool) -> dict[Key, int]:
    """Return ranks of complete entries among their rivals; means with equal digits (at least two) share one."""
    ranks = dict[Key, int]()
    for group in rivals:
        whole = {
            key: round(one.mean, max(2, one.digits))
            for key in group
            if (one := entries[key]).ranked and key[0] != BEST and one.mean is not None
        }
        order = sorted(set(whole.values()), reverse=not lower)
        ranks |= {key: order.index(mean) + 1 for key, mean in whole.items() if mean in order[:2] and len(whole) > 1}
    return ranks


def _list_notes(sweep: SweepTable, cells: pd.DataFrame, metric: str, apart: Collection[Key]) -> list[str]:
    """List the notes; `apart`: entries that say their number of seeds themselves."""
    notes = []
    cells = cells[cells["_row"] != BEST]
    groups = cells.groupby(["_row", "_setting"])
    is_mixed = bool((groups.size() > groups["seed"].nunique()).any())
    counted = groups.size() if is_mixed else cells.groupby(["_row", "_column"])["seed"].nunique()
    usual = counted if is_mixed else counted[[key not in apart for key in counted.index]]
    number = "one" if usual.max() == 1 else " to ".join(map(str, sorted({usual.min(), usual.max()})))
    what = ("run" if is_mixed else "seed") + "s" * (number != "one")
    what += " unless said" if len(usual) < len(counted) else ""
    many = "one seed" if counted.max() == 1 else f"mean ± sample standard deviation over {number} {what}"
    notes.append(f"{many}; {LEGEND}" if is_ranked(metric, cells) else many)
    if is_mixed or (groups[list_dotted(cells)].nunique(dropna=False) > 1).any(axis=None):
        notes.append("runs of an entry differ by more than the seed; --cols, or --rows, can name by what")
    notes += describe_doubts(sweep, metric)
    if mixture := sweep.describe_mixture():
        notes.append(f"WARNING: {mixture}")
    command = f"`fedray sweep {sweep.name}`" if sweep.name in list_sweeps() else "`fedray sweep` with its file"
    for status, done in ((Status.MISSING, "runs"), (Status.INTERRUPTED, "resumes"), (Status.UNLOGGED, "logs")):
        lacking = cells[cells["status"] == status]
        if count := len(lacking):
            of = [name for name, whole in sweep.parts.items() if whole in {*lacking["sweep"]}] or [sweep.name]
            running = any(map(is_sweep_running, of))
            then = "a call of the sweep is running" if running else f"{command} {done} {'it' if count == 1 else 'them'}"
            notes.append(f"{count} of {format_count(len(cells), 'cell')} {status}; {then}")
    told = [Status.FINISHED, Status.MISSING, Status.INTERRUPTED, Status.UNLOGGED, Status.RUNNING]
    bad = cells[~cells["status"].isin(told) & cells["_value"].isna()]
    notes += [
        f"{cell['status']}: {cell['label']}" + (f": {cell['message']}" if cell["message"] else "")
        for _, cell in bad.iterrows()
    ]
    return notes


def _list_captioned(
    sweep: SweepTable, cells: pd.DataFrame, metric: str, over: str, entries: Mapping[Key, Entry]
) -> list[str]:
    """List the notes that a caption needs."""
    cells, notes = cells[cells["_row"] != BEST], list[str]()
    if over:
        counts = cells.groupby("_column")["_setting"].nunique()
        settings = list(dict.fromkeys(cells["_setting"]))
        few = " and ".join(settings) if len(counts) == 1 and len(settings) < 4 else ""
        many = ", ".join(f"{n} settings ({column})" for column, n in counts.items())
        notes.append(f"averaged over {few}, seed by seed" if few else f"averaged over {over}, seed by seed: {many}")
    if any(one.apart for one in entries.values()):
        unmarked = ", and so neither bold (best) nor underlined (second best)" * is_ranked(metric, cells)
        notes.append(f"(n seeds): other seeds than most have{unmarked}")
    notes += describe_target(sweep, metric, cells, never=False)
    lacking = [one for one in entries.values() if one.mean is not None and {*one.others} - {"never"}]
    if lacking and is_ranked(metric, cells):
        notes.append("entries that lack seeds, as they say, are not ranked")
    if any("never" in one.others for one in entries.values()):
        notes.append("never: runs that do not reach the target, in no mean; their entries are not ranked")
    if (reference := Metric.parse(metric).reference) and any(UNPAIRED in one.others for one in entries.values()):
        notes.append(f"{UNPAIRED}: {reference}'s run of that seed never reached the target, or has not finished")
    return notes


def list_tuning_notes(sweep: SweepTable, cells: pd.DataFrame) -> list[str]:
    """Return notes: how the rows were tuned, the chosen values and ranges, a warning for values on an edge."""
    chosen = defaultdict[tuple[str, str], dict[str, Mapping[str, Any]]](dict)
    for _, cell in cells.iterrows():
        if tuned := sweep.tuned.get(cell["cell"]):
            chosen[str(cell["_row"]), str(cell["_column"])][tuned["stage"]] = tuned
    ways = defaultdict[str, dict[str, Mapping[str, Any]]](dict)
    for stages in chosen.values():
        for stage, one in stages.items():
            how = [one[key] for key in ("select", "searcher", "held_out", "train_on", "scheduler")]
            ways[str([stage.rsplit("/", 2)[0], *how])][stage] = one
    said = [*(_describe_choice(list(of.values())) for of in ways.values()), *_list_left_out(sweep)]
    names = dict[tuple[str, str], dict[str, str]]()
    for entry, of in chosen.items():
        symbols = {key: find_symbol(key, cells) for key in next(iter(of.values()))["ranges"]}
        shared = Counter(symbols.values())  # such as the rates of FedAdam's two optimisers
        names[entry] = {key: symbol if shared[symbol] == 1 else key for key, symbol in symbols.items()}
    for (row, column), of in chosen.items():
        blocks = list(of.values())
        values = ", ".join(
            f"{names[row, column][key]}={', '.join(format_value(one['values'][key]) for one in blocks)} of "
            f"{_join_ranges(blocks, key)}"
            for key in blocks[0]["ranges"]
        )
        said.append(f"chosen for {row} ({column}): {values or 'nothing to draw'}; {_format_budget(blocks)}")
    for (row, column), of in chosen.items():
        for key in dict.fromkeys(key for one in of.values() for key in one["edges"]):
            on_edge = [one for one in of.values() if key in one["edges"]]
            values = ", ".join(dict.fromkeys(format_value(one["values"][key]) for one in on_edge))
            where = f" in {len(on_edge)} of {len(of)} blocks" if len(of) > 1 else ""
            said.append(
                f"WARNING: {names[row, column][key]}={values} of {row} ({column}) is on the edge of "
                f"{_join_ranges(on_edge, key)}{where}: nothing was tried beyond it"
            )
    return said


def _list_left_out(sweep: SweepTable) -> list[str]:
    """List the methods without a draw that finished with every seed of a tune stage, if the store has the stage."""
    kept, said = defaultdict[str, set[str]](set), list[str]()
    for hash, tuned in sweep.tuned.items() if sweep.store else ():
        kept[tuned["stage"]].add(sweep.sheet.cells[hash].get("algorithm.name"))
    for stage, names in kept.items():
        lost = defaultdict[str, dict[str, list[Status]]](dict)
        with suppress(NotStored):
            tune = read_sweep(stage)
            for hash, cell in tune.cells.items():
                if (name := cell.get("algorithm.name")) not in names:
                    shown = {**cell.plugins.names, **cell.names}.get(name, name)
                    lost[shown].setdefault(cell.setting, []).append(tune.get_status(hash))
        for name, draws in lost.items():
            if not any({*of} == {Status.FINISHED} or any(one.is_open for one in of) for of in draws.values()):
                said.append(f"{name}: no draw finished with every seed of {stage}; left out")
    return said


def _join_ranges(blocks: Iterable[Mapping[str, Any]], key: str) -> str:
    """Return the range of a key; several if blocks tried other values of it."""
    return " or ".join(dict.fromkeys(one["ranges"][key] for one in blocks))


def _describe_choice(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Say how the blocks of a sweep were tuned, or the whole of one without blocks, that differ in seeds alone."""
    one, held = blocks[0], blocks[0]["held_out"]
    stages = ", ".join(block["stage"] for block in blocks)
    seeds = "; ".join(", ".join(map(str, block["seeds"])) for block in blocks)
    how = f"tuned by {stages}: best {one['select']} of {one['searcher']} draws, mean over seeds {seeds}"
    if held is None:
        return f"{how}; SELECTED ON THE TEST SET, nothing was held out"
    whose = "every client's samples" if held["from"] == "clients" else "the training set"
    what = "all of them" if one["train_on"] == "all" else "the others alone"
    pruned = f"; cells ended early by {one['scheduler']}" if one["scheduler"] else ""
    return f"{how}, on {100 * held['fraction']:g} % of {whose}, held out; these runs train on {what}{pruned}"


def _format_budget(blocks: Sequence[Mapping[str, Any]]) -> str:
    draws, finished, rounds = (sum(one[key] for one in blocks) for key in ("draws", "finished", "rounds"))
    most = "at most " if blocks[0]["scheduler"] or finished < draws else ""  # cells that ended early are counted whole
    counts = [one["gradients"] for one in blocks]
    gradients = "" if None in counts else f", {most}{sum(counts):.3g} gradients of a batch"
    lost = "" if finished == draws else f" ({draws - finished} did not finish)"
    scores = ", ".join(f"{one['score']:.{count_digits([one['score']])}f}" for one in blocks)
    if (tied := max(one.get("tied", 1) for one in blocks)) > 1:  # older stores say nothing of it
        scores += f", as {tied} draws do; the first is taken"
    return f"{format_count(draws, 'draw')}{lost}, {most}{format_count(rounds, 'round')}{gradients}; scored {scores}"


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
        of_clients = format == "clients"
        told = read_accuracies(runs, label_finished(runs)) if of_clients else list_runs(runs, metric, rows, cols)
        write_or_print(format_run_by_run(told), file)
        return
    sweep = (find_cells if published or paper else collect)(*name)
    if published and not paper and sweep.name.partition("/")[0] not in list_papers():
        raise UserError(
            f"--published: {sweep.name!r} does not belong to a paper; name the printed table with --paper, such as "
            "fedsam/table2"
        )
    paper = paper or (sweep.name if published else "")
    table = build(sweep, metric, rows, cols, reference, paper, average_over, best_except)
    bare = "%&#" if {"$", "\\"} & {*caption} else "%&#_"  # would end the line, or LaTeX's run
    caption = re.sub(rf"(?<!\\)((?:\\\\)*)([{bare}])", r"\1\\\2", " ".join(caption.split()))
    write_or_print(FORMATS[format](replace(table, label=label, caption=caption)), file)
    if format == "latex":
        untold = "; ".join(table.captioned if caption else [LEGEND] * bool(table.ranks))
        left_out = f"; its caption leaves out: {untold}" if untold else ""
        print(f"LaTeX: the table needs \\usepackage{{booktabs}}{left_out}", file=sys.stderr)
