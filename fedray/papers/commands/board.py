"""`fedray board show | rank | tuned | write`: boards, and a method of yours on one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
import yaml
from matplotlib.figure import Figure

from fedray.algorithms import algorithm
from fedray.analysis.output import write_or_print
from fedray.analysis.plots.style import WIDTH, styled
from fedray.analysis.statistics import bound_mean
from fedray.cells.spec import get_dotted
from fedray.common.entry import HELP, Json, Overwrite, format_json
from fedray.common.errors import UserError, join_lines, truncate_repr
from fedray.common.output import PICTURES, OutputFile
from fedray.common.yaml_files import parse_yaml
from fedray.config import RunConfig, find_component
from fedray.engine.cost import find_input_shape, measure_cost
from fedray.papers.board import (
    REFERENCE,
    Board,
    Standing,
    describe_power,
    format_standings,
    format_table,
    list_columns,
    list_rows,
    list_standings,
    name_method,
    parse_csv,
    read_board,
    write_csv,
)
from fedray.sweep.driver.dry_run import describe_duration
from fedray.sweep.driver.stages import make_tune_stage, preview_final_stage, run_file
from fedray.sweep.file.entries import apply_draw
from fedray.sweep.file.shipped import locate_sweep
from fedray.sweep.file.space import Space, check_space
from fedray.sweep.file.sweep import Sweep, refuse_wide_range
from fedray.sweep.plan.estimate import list_distinct

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
    help="Boards: many methods, tuned and tested in one setting.",
)
NAMES = "leaderboard/global or leaderboard/personalised, for example"
On = Annotated[str, typer.Option(help=NAMES)]


@app.command()
def show(
    name: Annotated[str, typer.Argument(help=NAMES)],
    as_json: Json = False,
) -> None:
    """Print the standings of a board."""
    standings = list_standings(read_board(name, "name"))
    if as_json:
        keys = ("method", "rank", "reason", "values")
        print(format_json([{key: getattr(one, key) for key in keys} for one in standings]))
        return
    table = format_table(list_columns(standings), format_standings(standings))
    write_or_print("\n".join([f"**{name}**", "", *table, "", describe_power(standings), ""]), None)


@app.command()
def rank(
    method: Annotated[str, typer.Argument(help="your class, package.module:Class, or a method of fedray")],
    on: On,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=RANGE", help="'algorithm.mu={loguniform: [0.01, 1]}'; can be repeated"),
    ] = None,
) -> None:
    """Tune and test a method on a board; print the table with its row.

    Draws, seeds and setting are the board's. Called again after an interruption, it resumes.
    """
    board = read_board(on)
    sweep = make_sweep(board, method, parse_search(search or []))
    for line in (describe_gaps(board), f"{sweep.name}: {describe_work(sweep)}", describe_draws(sweep, method)):
        if line:
            print(line, flush=True)
    code, failure = 0, ""
    try:
        code = run_file(sweep, "rank")
    except UserError as error:
        if "no draw of" not in str(error):
            raise
        code, failure = 1, str(error)
    if code == 130:
        raise typer.Exit(code)
    own = parse_csv(write_csv(list_rows(sweep)))
    joined = join(board, sweep, method, own)
    standings = list_standings(joined)
    rows = format_standings(standings)
    marked = [[row[0], f"**{row[1]}** (yours)", *row[2:]] if row[1] == method else row for row in rows]
    lines = [*format_table(list_columns(standings), marked), "", describe_power(standings)]
    lines += [line for line in (describe_cpus(board.rows, own), failure) if line]
    write_or_print("\n".join([f"**{on} with {method}**", "", *lines, ""]), None)
    if code:
        raise typer.Exit(code)


@app.command()
def tuned(
    method: Annotated[str, typer.Argument(help="a method of the board, e.g. fedtoga")],
    on: On,
) -> None:
    """Print a method's chosen options as YAML for a run or a sweep.

    Of several blocks the one with the highest score on held-out samples counts.
    """
    board = read_board(on)
    values = board.get_options(method)
    case = next(config for config, _ in board.sweep.iter_combinations() if name_method(config) == method)
    config = apply_draw(case, values)
    chosen: dict[str, Any] = {"algorithm": get_dotted(config, "algorithm")}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        if section != "algorithm":
            chosen.setdefault(section, {})[rest] = value
    print(yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True), end="")


@app.command("write")
def write_board(
    name: Annotated[str, typer.Argument(help="a tuned sweep: its file, or a name such as leaderboard/global")],
    out: Annotated[Path | None, typer.Option(help="the CSV file; else it is printed")] = None,
    picture: Annotated[Path | None, typer.Option(help="also draw the standings: a .png, .svg or .pdf file")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a row per cell of both stages as CSV.

    It has method, options, accuracy, hash, CPU and versions.
    """
    if picture is not None and picture.suffix not in PICTURES:
        raise UserError(f"--picture: found {picture}; a file that ends in .png, .svg or .pdf is required")
    source = locate_sweep(Path(name))
    file = None if out is None else OutputFile("--out", out, (".csv",), overwrite, (source, picture or source))
    drawn = None if picture is None else OutputFile("--picture", picture, PICTURES, overwrite, (source,))
    sweep = Sweep.load(source)
    text = write_csv(list_rows(sweep))
    write_or_print(text, file)
    if drawn is not None:
        standings = list_standings(Board(sweep.name, sweep, parse_csv(text)))
        drawn.draw(draw_standings(standings, sweep.name), dpi=200)
        print(drawn.path)


def parse_search(given: list[str]) -> Space:
    """Return what `--search KEY=RANGE` gives. Raises UserError."""
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise UserError(f"--search: found {truncate_repr(one)}; KEY=RANGE is required")
        found[key] = parse_yaml(value, f"--search {key}")
    return check_space("--search", found)


def make_sweep(board: Board, method: str, space: Space) -> Sweep:
    """Return the board's sweep with one method instead of its own, under a name of its own.

    Raises:
        UserError: the method cannot be read, is on the board, is personalised on a board that is not, or has no range.
    """
    if method in board.spaces:
        raise UserError(
            f"rank: {method} is on {board.name}; `fedray board tuned {method} --on {board.name}` has its options"
        )
    if _try(board, method) and "personal" not in board.sweep.select:
        raise UserError(
            f"rank: {method} is personalised; {board.name} ranks global models; take leaderboard/personalised"
        )
    searched = {key for _, one in board.sweep.iter_combinations() for key in one}
    fixed = {f"training.{key}" for key in (*board.sweep.base["training"], "local_epochs", "local_steps")}
    for key in space:
        section = key.partition(".")[0]
        if key not in searched and (section not in ("algorithm", "training") or "." not in key or key in fixed):
            raise UserError(
                f"--search: found {key}; options of the method (algorithm.KEY), "
                f"{', '.join(sorted(key for key in searched if not key.startswith('algorithm.')))} and what the board "
                "leaves open of training can be searched"
            )
    refuse_wide_range("--search", board.sweep.base | {"algorithm": method}, space)
    if not (board.sweep.search | space):
        raise UserError(f"rank: {method} has no range; give --search 'training.lr={{loguniform: [0.01, 0.5]}}'")
    given = {key: getattr(board.sweep, key) for key in board.sweep.model_fields_set - {"smoke", "names"}}
    case = {"algorithm": method} | ({"search": space} if space else {})
    name = f"{board.name}-{re.sub(r'[^A-Za-z0-9_.]+', '.', method)}"[:120]
    return Sweep.parse(given | {"name": name, "description": "", "cases": [case]})


def describe_gaps(board: Board) -> str:
    """Return a note if methods of the board have no rank, so that your row has fewer to be compared with."""
    ranked = sum(one.rank is not None for one in list_standings(board))
    if ranked == len(board.spaces):
        return ""
    said = "the others have no rank" if ranked else "so your row will stand alone"
    return (
        f"{board.name}: {ranked} of {len(board.spaces)} methods are trained in all blocks, {said}; "
        "docs/leaderboard.md says how to train them"
    )


def describe_draws(sweep: Sweep, method: str) -> str:
    """Return what each block draws, and the method's options that it leaves alone."""
    drawn = dict.fromkeys(key for space in sweep.spaces for key in space)
    left = [name for name in find_component("algorithm", method).model_fields if f"algorithm.{name}" not in drawn]
    alone = f"; at their defaults, since --search does not name them: {', '.join(left)}" if left else ""
    return f"a block tries {sweep.samples} values of {', '.join(drawn)}, and the best one with another seed{alone}"


def describe_work(sweep: Sweep) -> str:
    """Return the number of cells of both stages of all blocks, and how long they take on this machine."""
    stages = [make(block) for block in sweep.list_blocks() for make in (make_tune_stage, preview_final_stage)]
    return f"{describe_duration([list_distinct(stage) for stage in stages])}; finished ones are not run again"


def _try(board: Board, method: str) -> bool:
    """Return True if a method is personalised, after three short rounds on the board's model.

    Raises:
        UserError: it fails there.
    """
    built, run = algorithm(method), RunConfig.parse(next(config for config, _ in board.sweep.iter_combinations()))
    try:
        measure_cost(built, run.model.list_options(), *find_input_shape(run))
        return built.keeps != "none" or built.personal == "kept"
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # anything that your class raises
        raise UserError(f"rank: {method} fails on the model of {board.name}: {join_lines(error)}") from None


def join(board: Board, sweep: Sweep, method: str, own: pd.DataFrame) -> Board:
    """Return the board with the rows of one more method."""
    case = {"algorithm": method, "search": dict(sweep.spaces[-1])}
    axes = {name: [*axis, case] for name, axis in board.sweep.cases.items()}
    together = board.sweep.model_copy(update={"cases": axes})
    return Board(board.name, together, pd.concat([board.rows, own], ignore_index=True), board.left_out)


def describe_cpus(theirs: pd.DataFrame, own: pd.DataFrame) -> str:
    """Return a note if your runs and the board's were made on different types of CPU; empty otherwise."""
    there, here = (sorted(set(rows["cpu"]) - {""}) for rows in (theirs, own))
    if not there or not here or there == here:
        return ""
    return (
        f"The board was trained on {', '.join(there)}, your method on {', '.join(here)}: the same run may differ in "
        "its last bits."
    )


@styled
def draw_standings(standings: Sequence[Standing], title: str) -> Figure:
    """Draw each ranked method's mean and its 95 % interval over seeds; FedAvg is filled and has a line."""
    ranked = [one for one in standings if one.rank is not None]
    figure = Figure(figsize=(1.5 * WIDTH, 0.6 + 0.15 * max(len(ranked), 3)), layout="constrained")
    area = figure.subplots()
    for place, one in enumerate(ranked):
        interval, is_reference = bound_mean(one.values), one.method == REFERENCE
        low, high = (interval.low, interval.high) if interval else (one.mean, one.mean)
        area.plot((low, high), (place, place), color="0.3", linewidth=0.8)
        area.plot(one.mean, place, "o", color="0", markerfacecolor="0" if is_reference else "white")
        if is_reference:
            area.axvline(one.mean, color="0.5", linewidth=0.6, linestyle="--")
    if not ranked:
        area.text(0.5, 0.5, "no method is trained with all seeds yet", ha="center", transform=area.transAxes)
    area.set_yticks(range(len(ranked)), [one.method for one in ranked])
    area.set_ylim(max(len(ranked), 1) - 0.5, -0.5)
    area.set(xlabel="accuracy in %, mean and 95 % interval over seeds", title=title)
    area.grid(axis="y", visible=False)
    return figure
