"""`fedray tuned METHOD --on leaderboard/global`: the options that a board's tuning chose, as YAML."""

from typing import Annotated, Any

import typer
import yaml

from fedray.analysis.tables.leaderboard import name_method, read_board
from fedray.sweep.file.dotted import apply_draw, get_dotted


def main(
    method: Annotated[str, typer.Argument(help="a method of the board, e.g. fedtoga")],
    on: Annotated[str, typer.Option(help="leaderboard/global, leaderboard/global_mild or leaderboard/personalised")],
) -> None:
    """Print the chosen options of a method as YAML for a run or for the base of a sweep."""
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
