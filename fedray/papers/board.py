"""Leaderboards: a row per cell of a tuned sweep as CSV, and the standings of its methods."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedray.analysis.comparison import Difference, pair_by_seed
from fedray.analysis.statistics import find_effect
from fedray.cells.spec import get_dotted
from fedray.cells.status import Status
from fedray.common.errors import UserError, unknown
from fedray.common.yaml_files import load_yaml
from fedray.components.base import format_value
from fedray.config import RunConfig
from fedray.sweep.file.shipped import BOARDS, get_sweeps_folder, list_boards
from fedray.sweep.file.space import Space, format_range, is_at_edge
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import count_training_gradients
from fedray.tracking.store import find_sweeps, open_reader, read_metrics, read_status
from fedray.tracking.stored_sweep import StoredSweep, read_stored_sweep

REFERENCE = "fedavg"
VERSIONS = ("python", "torch", "numpy")
COLUMNS = (
    "method", "stage", "seed", "cell", "status", "options", "score", "accuracy", "gradients", "seconds_per_round",
    "theta_sha256", "cpu", *VERSIONS, "commit", "message",
)  # fmt: skip
"""Columns of a board's CSV. `score` is the metric that selects, `accuracy` the one that ranks, both in %."""


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
    def final(self) -> pd.DataFrame:
        """The rows of the final stage."""
        return self.rows[self.rows["stage"] == "final"]

    def get_options(self, method: str) -> dict[str, Any]:
        """Return the chosen options of a method. Raises UserError if it was not tuned yet."""
        if method not in (known := self.spaces):
            raise unknown("method", method, known, "docs/leaderboard.md")
        found = self.final[self.final["method"] == method]["options"]
        if found.empty:
            raise UserError(f"{method}: is not trained yet on {self.name}, so no options are chosen")
        chosen: dict[str, Any] = json.loads(found.iloc[0])
        return chosen


@dataclass(frozen=True)
class Standing:
    """A method's line of the table.

    Attributes:
        values: accuracy in % of each finished seed of the final stage.
        rank: 1 for the highest mean; None unless every seed has finished.
        reason: why there is no rank.
        gradients: of a batch, of one final run; NaN if unknown.
        seconds: per round, mean over the seeds; NaN if unknown.
    """

    method: str
    values: tuple[float, ...]
    rank: int | None
    reason: str
    gradients: float
    seconds: float
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


def read_board(name: str) -> Board:
    """Read a board that comes with fedray: `leaderboard/global`.

    A board that is not trained at all has no rows.

    Raises:
        UserError: there is no such board.
    """
    known = list_boards()
    if name not in known:
        raise unknown("--on", name, known) if known else UserError(f"--on: found {name}; this fedray has no board")
    sweep = Sweep.load(get_sweeps_folder() / f"{name}.yaml")
    stem, folder = name.removeprefix(f"{BOARDS}/"), get_boards_folder()
    file, reasons = folder / f"{stem}.csv", folder / "left_out.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else ",".join(COLUMNS) + "\n"
    left_out = load_yaml(reasons).get(stem) or {} if reasons.exists() else {}
    return Board(name, sweep, parse_csv(text), left_out)


def parse_csv(text: str) -> pd.DataFrame:
    """Read a board's CSV; numbers are numbers, the rest text."""
    rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    for column in ("seed", "score", "accuracy", "gradients", "seconds_per_round"):
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

    Raises:
        UserError: the sweep does not tune, or the store holds neither stage.
    """
    if sweep.tune is None:
        raise UserError(f"{sweep.name}: has no `tune`; a board has a tuned sweep")
    client, experiment = open_reader()
    stages = {"tune": f"{sweep.name}/tune", "final": sweep.name}
    held = {stage: name for stage, name in stages.items() if name in find_sweeps(client, experiment)}
    if not held:
        raise UserError(f"sweep: {sweep.name!r} is not in this store")
    spaces = {name_method(config): space for config, space in sweep.iter_combinations()}
    return [row for stage, name in held.items() for row in _list_stage(read_stored_sweep(name), stage, sweep, spaces)]


def _list_stage(stored: StoredSweep, stage: str, sweep: Sweep, spaces: Mapping[str, Space]) -> Iterable[dict[str, Any]]:
    for cell in stored.cells:
        config, run = cell.config, stored.runs.get(cell.hash)
        method = name_method(config)
        options = {key: get_dotted(config, key) for key in spaces.get(method, {})}
        row = {"method": method, "stage": stage, "seed": config["seed"], "cell": cell.hash}
        row |= {"status": str(Status.MISSING), "options": json.dumps(options)}
        row["gradients"] = _format(count_training_gradients(RunConfig.parse_stored(config)))
        if run is not None:
            tags, values = run.data.tags, read_metrics(run)
            row |= {"status": str(read_status(run)), "message": tags.get("fedray.message", "")}
            row |= {"score": _format(values.get(sweep.select)) if stage == "tune" else ""}
            row |= {"accuracy": _format(values.get(find_ranking_metric(sweep.select))) if stage == "final" else ""}
            row |= {"seconds_per_round": _format(values.get("seconds_per_round"), 4)}
            row |= {name: tags.get(f"environment.{name}", "") for name in ("cpu", *VERSIONS)}
            row |= {
                "theta_sha256": tags.get("fedray.theta_sha256", ""),
                "commit": tags.get("mlflow.source.git.commit", ""),
            }
        yield row


def _format(value: float | None, digits: int = 8) -> str:
    return "" if value is None else f"{value:.{digits}g}"


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
        Standing(
            one.method,
            one.values,
            place,
            "",
            one.gradients,
            one.seconds,
            *(family.get(one.method) for family in families),
        )
        for place, one in enumerate(whole, 1)
    ]
    left_out = [Standing(name, (), None, why, math.nan, math.nan) for name, why in board.left_out.items()]
    return [*ranked, *(one for one in found if one.reason), *left_out]


def _stand(board: Board, method: str, rows: pd.DataFrame) -> Standing:
    done = rows[rows["status"] == Status.FINISHED]
    values, count = tuple(done["accuracy"].astype(float)), len(board.seeds)
    lost = rows[rows["status"].isin([Status.DIVERGED, Status.FAILED])]
    reason = ""
    if len(values) < count:
        reason = f"not trained yet: {len(values)} of {count} seeds"
        tuning = board.rows[(board.rows["method"] == method) & (board.rows["stage"] == "tune")]
        if len(lost):
            reason = f"{len(lost)} of {count} seeds {lost['status'].iloc[0]}: {lost['message'].iloc[0]}"
        elif len(tuning) and tuning["status"].eq(Status.DIVERGED).all():
            reason = "diverged in every draw"
        elif len(tuning) and tuning["status"].eq(Status.FAILED).any():
            reason = f"failed: {tuning[tuning['status'] == Status.FAILED]['message'].iloc[0]}"
    gradients = float(rows["gradients"].iloc[0]) if len(rows) else math.nan
    return Standing(method, values, None, reason, gradients, float(done["seconds_per_round"].mean()))


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
    return ["rank", "method", "accuracy in %", f"to {REFERENCE}", "", f"to {best} (best)", "", "gradients", "s / round"]


def format_standings(standings: Sequence[Standing]) -> list[list[str]]:
    """Return a line per method, as text."""
    return [
        ["-", one.method, one.reason, *["-"] * 6]
        if one.rank is None
        else [
            str(one.rank),
            one.method,
            f"{one.mean:.2f} ± {one.deviation:.2f}",
            *_format_difference(one.to_reference),
            *_format_difference(one.to_best),
            f"{one.gradients:,.0f}",
            f"{one.seconds:.2g}",
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


def _warn(value: Any, distribution: Mapping[str, list[Any]]) -> str:
    return "**at the edge**: nothing was tried beyond it" if is_at_edge(value, distribution) else ""


def list_choices(board: Board) -> list[list[str]]:
    """Return a line per chosen value: method, key, value, its range, and a warning at the edge."""
    final = board.final
    return [
        [method, f"`{key}`", format_value(value), f"`{format_range(space[key])}`", _warn(value, space[key])]
        for method, space in board.spaces.items()
        if (final["method"] == method).any()
        for key, value in board.get_options(method).items()
    ]
