"""Leaderboards: a row per cell of a tuned sweep as CSV, and the standings of its methods."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedray.analysis.comparison import Difference, pair_by_seed
from fedray.analysis.statistics import find_effect
from fedray.cells.metric import BEST, FINAL, LAST
from fedray.cells.spec import get_dotted
from fedray.cells.status import Status
from fedray.common.errors import UserError, truncate_repr, unknown
from fedray.common.yaml_files import load_yaml
from fedray.components.base import format_value
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.server.sampling import draw_cohort
from fedray.sweep.file.shipped import BOARDS, get_sweeps_folder, list_boards
from fedray.sweep.file.space import Space, format_range, is_at_edge
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Problems
from fedray.sweep.plan.draws import count_of_client
from fedray.tracking.store import find_sweeps, open_reader, read_metrics, read_status
from fedray.tracking.stored_sweep import StoredSweep, read_stored_sweep

REFERENCE = "fedavg"
VERSIONS = ("python", "torch", "numpy")
COLUMNS = (
    "method", "stage", "seed", "cell", "status", "options", "score", "accuracy", "gradients", "megabytes_down",
    "megabytes_up", "curve", "theta_sha256", "state_sha256", "cpu", *VERSIONS, "commit", "message",
)  # fmt: skip
"""Columns of a board's CSV. `score` is the metric that selects, `accuracy` the one that ranks, both in %. `curve` has
gradients, megabytes down and up, and accuracy of each regular test."""
NUMBERS = ("seed", "score", "accuracy", "gradients", "megabytes_down", "megabytes_up")
COSTS = ("gradients", "megabytes")
"""A run's costs, in the order of the points of `curve`."""


@dataclass(frozen=True)
class Board:
    """A board: its sweep, and what has been trained of it.

    Attributes:
        rows: a row per cell, as in the CSV, `seed`, `score`, `accuracy` and `gradients` as numbers.
        left_out: method -> why the setting cannot hold it.
    """

    name: str
    sweep: Sweep
    rows: pd.DataFrame
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def spaces(self) -> dict[str, Space]:
        """Method -> what is searched for it, in the file's order."""
        return {name_method(config): space for config, space in self.sweep.iter_combinations()}

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the final stage."""
        return self.sweep.final.seeds if self.sweep.final else ()

    @property
    def blocks(self) -> int:
        """Number of blocks; 1 if one search chose for all seeds."""
        return len(self.sweep.list_blocks())

    @property
    def final(self) -> pd.DataFrame:
        """The rows of the final stage."""
        return self.rows[self.rows["stage"] == "final"]

    @property
    def tuning(self) -> pd.DataFrame:
        """The rows of the tune stage."""
        return self.rows[self.rows["stage"] == "tune"]

    def get_options(self, method: str) -> dict[str, Any]:
        """Return the chosen options of a method, of the block with the highest score.

        Raises:
            UserError: it was not tuned yet.
        """
        if method not in (known := self.spaces):
            raise unknown("method", method, known, f"`fedray board show {self.name}`")
        found = self.final[self.final["method"] == method]["options"]
        if found.empty:
            raise UserError(f"{method}: is not trained yet on {self.name}, so no options are chosen")
        tuning = self.tuning[(self.tuning["method"] == method) & self.tuning["options"].isin(found)]
        scored = tuning.dropna(subset="score").sort_values("score", kind="stable")
        chosen: dict[str, Any] = json.loads(found.iloc[0] if scored.empty else scored["options"].iloc[-1])
        return chosen


@dataclass(frozen=True)
class Standing:
    """A method's line of the table.

    Attributes:
        values: accuracy in % of each finished seed of the final stage.
        rank: 1 for the highest mean; None unless every seed has finished.
        reason: why there is no rank.
        gradients, down, up: mean over the final runs; megabytes to and from the clients; NaN if unknown.
    """

    method: str
    values: tuple[float, ...]
    rank: int | None
    reason: str
    gradients: float = math.nan
    down: float = math.nan
    up: float = math.nan
    to_reference: Difference | None = None
    to_best: Difference | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Sample standard deviation over the seeds; NaN for fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan


def name_method(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration's algorithm."""
    section = config["algorithm"]
    return str(section["name"] if isinstance(section, Mapping) else section)


def find_ranking_metric(select: str) -> str:
    """Return the metric that ranks, of the metric that selects: the same on test samples."""
    return (
        select.replace("validation_personal", "personal")
        .replace("validation_client", "test")
        .replace("validation", "test")
    )


def get_boards_folder() -> Path:
    """Return the folder of the CSV files: inside the package in an installed wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / BOARDS
    return inside if inside.is_dir() else package.parent / "results" / BOARDS


def read_board(name: str, option: str = "--on") -> Board:
    """Read a board that comes with fedray: `leaderboard/global`.

    A board that is not trained at all has no rows.

    Args:
        name: the board's name.
        option: what a message begins with.

    Raises:
        UserError: there is no such board.
    """
    known = list_boards()
    if name not in known:
        if of := next((one for one in known if name.startswith(f"{one}-")), None):
            raise UserError(
                f"{option}: {truncate_repr(name)} is a method ranked on {of}, not a board; `fedray status {name}` "
                f"shows how far it is, and `fedray board rank METHOD --on {of}`, called again, goes on and prints its "
                "row"
            )
        raise unknown(option, name, known) if known else UserError(f"{option}: found {name}; this fedray has no board")
    sweep = Sweep.load(get_sweeps_folder() / f"{name}.yaml")
    stem, folder = name.removeprefix(f"{BOARDS}/"), get_boards_folder()
    file, reasons = folder / f"{stem}.csv", folder / "left_out.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else ",".join(COLUMNS) + "\n"
    left_out = load_yaml(reasons).get(stem) or {} if reasons.exists() else {}
    return Board(name, sweep, parse_csv(text), left_out)


def parse_csv(text: str) -> pd.DataFrame:
    """Read a board's CSV; numbers are numbers, the rest text."""
    rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    for column in NUMBERS:
        rows[column] = pd.to_numeric(rows[column])
    return rows


def write_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows of `list_rows` as CSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def list_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row per cell of both stages of a sweep, from the store; a cell without a run has the status `missing`.

    The data of the sweep are read: the gradients of a run depend on its shards.

    Raises:
        UserError: the sweep does not tune, or the store holds neither stage of any block.
    """
    if sweep.tune is None:
        raise UserError(f"{sweep.name}: has no `tune`; a board has a tuned sweep")
    client, experiment = open_reader()
    known = find_sweeps(client, experiment)
    stages = [(stage, f"{one.name}{end}") for one in sweep.list_blocks() for stage, end in STAGES.items()]
    held = [(stage, name) for stage, name in stages if name in known]
    if not held:
        raise UserError(f"sweep: {sweep.name!r} is not in this store")
    spaces, problems = {name_method(config): space for config, space in sweep.iter_combinations()}, Problems()
    return [row for stage, name in held for row in _list_stage(read_stored_sweep(name), stage, sweep, spaces, problems)]


STAGES = {"tune": "/tune", "final": ""}
"""Stage -> what its sweep's name adds to that of the file or block."""


def _list_stage(
    stored: StoredSweep, stage: str, sweep: Sweep, spaces: Mapping[str, Space], problems: Problems
) -> Iterable[dict[str, Any]]:
    for cell in stored.cells:
        config, run = cell.config, stored.runs.get(cell.hash)
        method = name_method(config)
        options = {key: get_dotted(config, key) for key in spaces.get(method, {})}
        row = {"method": method, "stage": stage, "seed": config["seed"], "cell": cell.hash}
        row |= {"status": str(Status.MISSING), "options": json.dumps(options)}
        if run is not None:
            tags, values = run.data.tags, read_metrics(run)
            row |= {"status": str(read_status(run)), "message": tags.get("fedray.message", "")}
            row |= {name: tags.get(f"environment.{name}", "") for name in ("cpu", *VERSIONS)}
            row |= {name: tags.get(f"fedray.{name}", "") for name in ("theta_sha256", "state_sha256")}
            row["commit"] = tags.get("mlflow.source.git.commit", "")
            row |= {name: _format(values.get(name)) for name in ("megabytes_down", "megabytes_up")}
            if stage == "tune":
                row["score"] = _format(values.get(sweep.select))
            elif row["status"] == Status.FINISHED:
                metric = find_ranking_metric(sweep.select)
                parsed = RunConfig.parse(config)
                gradients = count_by_round(problems.get_problem(problems.make_cell(parsed, cell.label)))
                row |= {"accuracy": _format(values.get(metric)), "gradients": _format(gradients[-1])}
                row["curve"] = json.dumps(_trace(stored, cell.hash, metric, parsed, gradients))
        yield row


def count_by_round(problem: Problem) -> np.ndarray:
    """Return the batch gradients of a run's training up to each round, `(rounds,)`, a forward pass counting as a third.

    They are those of the real cohorts and shards; the passes of a local step are measured (`engine.cost`).
    """
    run, sizes = problem.config, problem.shards.sizes
    of_client = np.array([count_of_client(run, int(size)) if size else 0 for size in sizes])
    rounds = [of_client[draw_cohort(run, sizes, t)].sum() for t in range(run.training.rounds)]
    return np.cumsum(rounds)


def _trace(stored: StoredSweep, cell: str, metric: str, run: RunConfig, gradients: np.ndarray) -> list[list[float]]:
    """Return gradients, megabytes and accuracy of each test of a run that `evaluation.every` asks for."""
    name = metric.removeprefix(LAST).removeprefix(FINAL).removeprefix(BEST)
    found, sent = (_read_history(stored, cell, one) for one in (name, "megabytes_sent"))
    return [
        [round(float(gradients[t - 1]), 1), round(sent[t], 3), round(value, 3)]
        for t, value in sorted(found.items())
        if t in sent and (t % run.evaluation.every == 0 or t == run.training.rounds)
    ]


def _read_history(stored: StoredSweep, cell: str, name: str) -> dict[int, float]:
    points = stored.client.get_metric_history(stored.runs[cell].info.run_id, name)
    return {point.step: point.value for point in points}


def limit_cost(board: Board, cost: str) -> Board:
    """Return the board with every method's accuracy at what FedAvg's whole run costs with the same seed.

    That is the last test of `curve` within this cost; a method without one has no accuracy.

    Args:
        board: the board.
        cost: one of COSTS.
    """
    place, final = COSTS.index(cost), board.final
    whole = final[(final["method"] == REFERENCE) & (final["status"] == Status.FINISHED) & (final["curve"] != "")]
    limits = {seed: json.loads(curve)[-1][place] for seed, curve in zip(whole["seed"], whole["curve"], strict=True)}

    def read(row: pd.Series) -> float:
        if row["stage"] != "final" or not row["curve"] or row["seed"] not in limits:
            return math.nan
        within = [point[-1] for point in json.loads(row["curve"]) if point[place] <= limits[row["seed"]] * (1 + 1e-9)]
        return float(within[-1]) if within else math.nan

    return replace(board, rows=board.rows.assign(accuracy=[read(row) for _, row in board.rows.iterrows()]))


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}"


def list_standings(board: Board) -> list[Standing]:
    """Return every method of a board: ranked ones first, then those without a rank, and those left out.

    Holm's correction holds within each of the two families: differences to FedAvg, and to the best.
    """
    final = board.final
    methods = [name for name in dict.fromkeys([*board.spaces, *board.rows["method"]]) if name not in board.left_out]
    found = [_stand(board, method, final[final["method"] == method]) for method in methods]
    whole = sorted((one for one in found if not one.reason), key=lambda one: -one.mean)
    families = [_compare(board, whole, to) for to in (REFERENCE, whole[0].method if whole else "")]
    ranked = [
        replace(
            one,
            rank=place,
            to_reference=families[0].get(one.method),
            to_best=families[1].get(one.method),
        )
        for place, one in enumerate(whole, 1)
    ]
    left_out = [Standing(name, (), None, why) for name, why in board.left_out.items()]
    return [*ranked, *(one for one in found if one.reason), *left_out]


def _stand(board: Board, method: str, rows: pd.DataFrame) -> Standing:
    done = rows[(rows["status"] == Status.FINISHED) & rows["accuracy"].notna()]
    values, count = tuple(done["accuracy"].astype(float)), len(board.seeds)
    lost = rows[rows["status"].isin([Status.DIVERGED, Status.FAILED])]
    reason = ""
    if len(values) < count:
        reason = f"not trained yet: {len(values)} of {count} seeds"
        tuning = board.tuning[board.tuning["method"] == method]
        blocks = [one for _, one in tuning.groupby("seed")] if board.blocks > 1 else [tuning]
        diverged = sum(len(one) > 0 and one["status"].eq(Status.DIVERGED).all() for one in blocks)
        if len(lost):
            reason = f"{len(lost)} of {count} seeds {lost['status'].iloc[0]}: {lost['message'].iloc[0]}"
        elif diverged:
            reason = "diverged in every draw" + f" of {diverged} of {board.blocks} blocks" * (board.blocks > 1)
        elif len(tuning) and tuning["status"].eq(Status.FAILED).any():
            reason = f"failed: {tuning[tuning['status'] == Status.FAILED]['message'].iloc[0]}"
    gradients, down, up = (float(done[name].mean()) for name in ("gradients", "megabytes_down", "megabytes_up"))
    return Standing(method, values, None, reason, gradients, down, up)


def _compare(board: Board, whole: Sequence[Standing], to: str) -> dict[str, Difference]:
    """Return method -> its difference to one method, all of a family; empty if that one is not whole."""
    if to not in [one.method for one in whole]:
        return {}
    rows = board.final
    rows = rows[rows["method"].isin([one.method for one in whole])]
    cells = rows.assign(_row=rows["method"], _column=to, _value=rows["accuracy"])
    return {one.row: one for one in pair_by_seed(cells, to)}


def list_columns(standings: Sequence[Standing]) -> list[str]:
    """Return the header of `format_standings`."""
    best = next((one.method for one in standings if one.rank == 1), "the best")
    costs = ("gradients", "MB down", "MB up")
    return ["rank", "method", "accuracy in %", f"to {REFERENCE}", "", f"to {best} (best)", "", *costs]


def format_standings(standings: Sequence[Standing]) -> list[list[str]]:
    """Return a line per method, as text."""
    return [
        ["-", one.method, one.reason, *["-"] * 7]
        if one.rank is None
        else [
            str(one.rank),
            one.method,
            f"{one.mean:.2f} ± {one.deviation:.2f}",
            *_format_difference(one.to_reference),
            *_format_difference(one.to_best),
            *(f"{cost:,.0f}" for cost in (one.gradients, one.down, one.up)),
        ]
        for one in standings
    ]


def _format_difference(one: Difference | None) -> tuple[str, str]:
    if one is None or one.mean is None:
        return "-", "-"
    verdict = one.judge(False)
    return f"{one.mean:+.2f} ({one.interval or 'no spread'})", "" if verdict in ("better", "worse") else verdict


def format_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    grid = [list(header), *[[text.replace("|", "\\|") for text in line] for line in lines]]
    return [f"| {' | '.join(line)} |" for line in (grid[0], ["---"] * len(header), *grid[1:])]


def describe_power(standings: Sequence[Standing]) -> str:
    """Return the difference to the reference that the seeds can tell apart, for the middle spread of the methods."""
    found = [one.to_reference for one in standings if one.to_reference is not None and one.to_reference.n > 1]
    if not found:
        return f"No method has a difference to {REFERENCE} yet, so no power can be stated."
    spread, family, n = float(np.median([one.spread for one in found])), found[0].family, found[0].n
    effect = find_effect(n, (1 - found[0].confidence) / family)
    return (
        f"{n} seeds tell a difference of {effect * spread:.2f} points apart with a probability of 80 %, at the middle "
        f"spread of the paired differences ({spread:.2f} points) and the level of the first of {family} tests of "
        "Holm's method. A smaller true difference is more likely missed than found."
    )


def list_choices(board: Board) -> list[list[str]]:
    """Return a line per method and key: the values chosen in the blocks, their range, and a warning if they crowd."""
    return [
        [method, f"`{key}`", _format_values(values), f"`{format_range(space[key])}`", _warn(board, method, key, values)]
        for method, space in board.spaces.items()
        if (found := _list_chosen(board, method))
        for key in next(iter(found.values()))
        for values in [[one[key] for one in found.values()]]
    ]


def _list_chosen(board: Board, method: str) -> dict[int, dict[str, Any]]:
    """Return final seed -> chosen options; of one search for all seeds only the first seed's."""
    rows = board.final[board.final["method"] == method]
    found = {int(seed): json.loads(options) for seed, options in zip(rows["seed"], rows["options"], strict=True)}
    return found if board.blocks > 1 else dict(list(found.items())[:1])


def _format_values(values: Sequence[Any]) -> str:
    distinct = sorted(set(values), key=lambda value: (str(type(value)), value))
    if all(isinstance(value, int | float) for value in distinct) and len(distinct) > 2:
        return f"{format_value(distinct[0])} to {format_value(distinct[-1])}, median {format_value(np.median(values))}"
    return ", ".join(format_value(value) for value in distinct)


def _warn(board: Board, method: str, key: str, values: Sequence[Any]) -> str:
    edges = sum(is_at_edge(value, board.spaces[method][key]) for value in values)
    if board.blocks == 1:
        return "**at the edge**: nothing was tried beyond it" if edges else ""
    largest = sum(_is_largest_drawn(board, method, key, seed) for seed in _list_chosen(board, method))
    said = [("at the edge", edges), ("the largest value drawn", largest)]
    return ", ".join(f"**{what}** in {n} of {len(values)} blocks" for what, n in said if 2 * n > len(values))


def _is_largest_drawn(board: Board, method: str, key: str, seed: int) -> bool:
    tune = board.sweep.tune.seeds[board.seeds.index(seed)] if board.sweep.tune else None
    drawn = board.tuning[(board.tuning["method"] == method) & (board.tuning["seed"] == tune)]["options"]
    values = [json.loads(one)[key] for one in drawn]
    numbers = [one for one in values if isinstance(one, int | float)]
    return len(set(numbers)) > 1 and _list_chosen(board, method)[seed][key] == max(numbers)
