"""`fedray rank MODULE:CLASS --on leaderboard/global`: a method of yours, tuned and tested as a board's methods were."""

import re
from typing import Annotated, Any

import pandas as pd
import typer

from fedray.algorithms import algorithm
from fedray.analysis.output import write_or_print
from fedray.analysis.tables.leaderboard import (
    Board,
    describe_power,
    format_standings,
    format_table,
    list_columns,
    list_rows,
    list_standings,
    parse_csv,
    read_board,
    write_csv,
)
from fedray.common.errors import UserError, join_lines, truncate_repr
from fedray.common.yaml_files import parse_yaml
from fedray.engine.cost import measure_cost
from fedray.sweep.driver.stages import run_file
from fedray.sweep.file.space import Space, check_space
from fedray.sweep.file.sweep import Sweep


def main(
    method: Annotated[str, typer.Argument(help="your class, package.module:Class, or a method of fedray")],
    on: Annotated[str, typer.Option(help="leaderboard/global, leaderboard/global_mild or leaderboard/personalised")],
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=RANGE", help="'algorithm.mu={loguniform: [0.01, 1]}'; can be repeated"),
    ] = None,
) -> None:
    """Tune and test a method with a board's budget, seeds and setting, and print the table with its row.

    Called again after an interruption, it resumes.
    """
    board = read_board(on)
    sweep = make_sweep(board, method, parse_search(search or []))
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
    lines = [*format_table(list_columns(standings), format_standings(standings)), "", describe_power(standings)]
    lines += [line for line in (describe_cpus(board.rows, own), failure) if line]
    write_or_print("\n".join([f"**{on} with {method}**", "", *lines, ""]), None)
    if code:
        raise typer.Exit(code)


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
        raise UserError(f"rank: {method} is on {board.name}; `fedray tuned {method} --on {board.name}` has its options")
    if _try(method) and "personal" not in board.sweep.select:
        raise UserError(
            f"rank: {method} is personalised; {board.name} ranks global models; take leaderboard/personalised"
        )
    _refuse_setting(board, space)
    if not (board.sweep.search | space):
        raise UserError(f"rank: {method} has no range; give --search 'training.lr={{loguniform: [0.01, 0.5]}}'")
    given = {key: getattr(board.sweep, key) for key in board.sweep.model_fields_set - {"smoke", "claims", "names"}}
    case = {"algorithm": method} | ({"search": space} if space else {})
    name = f"{board.name}-{re.sub(r'[^A-Za-z0-9_.]+', '.', method)}"[:120]
    return Sweep.parse(given | {"name": name, "description": "", "cases": [case]})


def _try(method: str) -> bool:
    """Return True if a method is personalised, after a round of it on a small model. Raises UserError if it fails."""
    built = algorithm(method)
    try:
        measure_cost(built)
        return built.keeps != "none" or built.personal == "kept"
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # anything that your class raises
        raise UserError(f"rank: {method} fails on a small model: {join_lines(error)}") from None


def _refuse_setting(board: Board, space: Space) -> None:
    """Refuse to search a key that the board fixes for all methods: its data, its budget, its rates' schedule."""
    searched = {key for _, one in board.sweep.iter_combinations() for key in one}
    fixed = {f"training.{key}" for key in (*board.sweep.base["training"], "local_epochs", "local_steps")}
    for key in space:
        section = key.partition(".")[0]
        if key not in searched and (section not in ("algorithm", "training") or "." not in key or key in fixed):
            raise UserError(
                f"--search: {key} is part of the board's setting; options of the method (algorithm.KEY), "
                f"{', '.join(sorted(key for key in searched if not key.startswith('algorithm.')))} and what the board "
                "leaves open of training can be searched"
            )


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
        "its last bits, and seconds cannot be compared."
    )
