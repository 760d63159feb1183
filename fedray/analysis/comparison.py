"""All comparisons of a sweep's methods with one of them.

Paired: for every method and setting the differences from the reference in the same setting and with the same seed (same
data, partition and cohorts), their mean, its interval, and the paired t-test's p, adjusted by Holm's method for the
methods of a setting. Over all settings: aggregates of each method's runs, and ranks. As text: `fedray compare SWEEP
[--reference fedavg] [--metric ...]`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import find_columns, find_label, label_cells, label_table
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import NEVER, describe_undeclared, is_smaller_better, make_title, read_values
from fedray.analysis.statistics import (
    BOOTSTRAP_SEEDS,
    MOST_SEEDS,
    POWER,
    Interval,
    Ranks,
    apply_holm,
    bootstrap,
    bound_improvement,
    bound_iqm,
    bound_mean,
    bound_proportion,
    compute_improvement,
    compute_iqm,
    compute_p,
    count_seeds,
    find_lack,
    flip_signs,
    rank_methods,
)
from fedray.cells.metric import DEFAULT, Metric
from fedray.common.errors import UserError, unknown

ENDED = ("diverged", "stopped", "pruned")
"""Outcomes without a number that another call of the sweep would only repeat."""
DIFFERENCE_HEADER = ("method", "setting", "n", "difference")


@dataclass(frozen=True)
class Difference:
    """Method minus reference over paired seeds of one setting.

    Attributes:
        gaps: a difference for each seed that both have.
        unpaired: seeds of the method or of the reference whose partner has no value.
        p: p of the paired t-test.
        adjusted: p by Holm's method among the `family` methods of the setting.
    """

    row: str
    column: str
    gaps: tuple[float, ...]
    unpaired: int
    confidence: float
    p: float | None = None
    adjusted: float | None = None
    family: int = 1

    @property
    def n(self) -> int:
        return len(self.gaps)

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.gaps)) if self.gaps else None

    @property
    def interval(self) -> Interval | None:
        return bound_mean(self.gaps, self.confidence)

    @property
    def spread(self) -> float:
        """Sample standard deviation of the differences."""
        return float(np.std(self.gaps, ddof=1))

    def count_needed_seeds(self) -> int | None:
        """Seeds needed to tell a difference of this size and spread apart, uncorrected; None above 1000."""
        return count_seeds(float(np.mean(self.gaps)), self.spread, (1 - self.confidence) / self.family)

    def judge(self, lower: bool) -> str:
        """Return `better` or `worse` if the adjusted p is at most 1 - confidence, otherwise `not told apart`."""
        if self.adjusted is None or self.mean is None:
            return "too few seeds"
        if self.adjusted > 1 - self.confidence + 1e-12:
            return "not told apart"
        return "better" if (self.mean < 0) == lower else "worse"


@dataclass(frozen=True)
class Improvement:
    """Frequency with which a method beats the reference with the same setting and seed; ties count half."""

    row: str
    wins: float
    pairs: int
    interval: Interval


def tabulate_by_seed(sweep: SweepTable, metric: str, rows: str = "algorithm", columns: str = "") -> pd.DataFrame:
    """Return the cells with `_row`, `_column`, `_value`, `_never` and `_lost`.

    `_value` is NaN if the cell has not finished or never reached the target (`_never`); `_lost` is True if it will
    never have a value: the run was ended, or it never reached the target.

    Raises:
        UserError: a metric or key is unknown, the metric is a ratio of runs, or several runs share method, setting and
            seed.
    """
    Metric.parse(metric).refuse_ratio("--metric")
    cells = sweep.cells.assign(_value=read_values(sweep, metric), _row=label_cells(sweep.cells, rows))
    columns = columns or find_columns(cells, cells["_row"])
    cells = cells.assign(
        _column=label_cells(cells, columns),
        _value=cells["_value"].replace(NEVER, math.nan),
        _never=cells["_value"] == NEVER,
        _lost=(cells["status"].isin(ENDED) & cells["_value"].isna())
        | (cells["_value"] == NEVER)
        | _lacks_target(sweep, metric),
    )
    if cells.duplicated(["_row", "_column", "seed"]).any():
        raise UserError(f"--cols: with {columns!r} several runs share method, setting and seed; name what differs")
    return cells


def _lacks_target(sweep: SweepTable, metric: str) -> pd.Series:
    """Return True for cells whose target run (`rounds_to:METHOD`) has ended without an accuracy."""
    cells, method = sweep.cells, Metric.parse(metric).target
    if not isinstance(method, str):
        return pd.Series(False, cells.index)
    rows, columns = label_table(cells)
    settings = list(zip(columns, cells["seed"], strict=True))
    ended = (rows == find_label(cells, method)) & cells["status"].isin(ENDED)
    lost = {setting for setting, without in zip(settings, ended, strict=True) if without}
    return pd.Series([setting in lost for setting in settings], cells.index)


def pair_by_seed(cells: pd.DataFrame, to: str, confidence: float = 0.95) -> list[Difference]:
    """Compare every method and setting of `tabulate_by_seed`'s cells with the reference row `to`.

    Raises:
        UserError: the row is unknown, or the confidence is outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise UserError(f"--confidence: expected a number between 0 and 1, got {confidence}")
    if not to:
        raise UserError(
            f"--reference: fedavg is not a row; one of these is required: {', '.join(cells['_row'].unique())}"
        )
    if to not in set(cells["_row"]):
        raise unknown("--reference", to, cells["_row"])
    by_seed = {key: group.set_index("seed")["_value"] for key, group in cells.groupby(["_row", "_column"], sort=False)}
    nothing = pd.Series(dtype=float)
    found = [
        _make_difference(str(row), str(column), ours, by_seed.get((to, column), nothing), confidence)
        for (row, column), ours in by_seed.items()
        if row != to
    ]
    return adjust_p_values(found)


def _make_difference(row: str, column: str, ours: pd.Series, theirs: pd.Series, confidence: float) -> Difference:
    both = pd.concat([ours.rename("ours"), theirs.rename("theirs")], axis=1)
    gaps = tuple((both["ours"] - both["theirs"]).dropna().astype(float))
    return Difference(row, column, gaps, len(both) - len(gaps), confidence, compute_p(gaps))


def adjust_p_values(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with Holm's p within their setting."""
    families: dict[str, list[int]] = {}
    for index, one in enumerate(differences):
        if one.p is not None:
            families.setdefault(one.column, []).append(index)
    result = list(differences)
    for family in families.values():
        p_values = apply_holm([p for index in family if (p := differences[index].p) is not None])
        for index, p in zip(family, p_values, strict=True):
            result[index] = replace(result[index], adjusted=p, family=len(family))
    return result


def count_improvements(differences: Sequence[Difference], lower: bool) -> list[Improvement]:
    """Return for every method how often it beats the reference with the same setting and seed."""
    found = []
    for row in dict.fromkeys(one.row for one in differences):
        gaps = np.array([gap for one in differences if one.row == row for gap in one.gaps])
        if len(gaps):
            wins = float(((gaps < 0) if lower else (gaps > 0)).sum() + (gaps == 0).sum() / 2)
            confidence = differences[0].confidence
            found.append(Improvement(row, wins, len(gaps), bound_proportion(wins, len(gaps), confidence)))
    return found


@dataclass(frozen=True)
class Aggregate:
    """A method's runs in all settings.

    Attributes:
        scores: `(seeds, settings)` float64; inf for a run that never reached its target.
        mean: interquartile mean over all runs, in the metric's unit; inf if too many never reached the target.
        interval: of `mean`; None if there are too few runs.
        improvement: probability that a run is better than one of the reference in the same setting, with any seeds.
        bounds: of `improvement`; None if there are too few runs, or it is 0 or 1.
    """

    row: str
    scores: np.ndarray
    mean: float
    interval: Interval | None
    improvement: float
    bounds: Interval | None


def aggregate_runs(cells: pd.DataFrame, to: str, lower: bool, confidence: float = 0.95) -> list[Aggregate]:
    """Aggregate each method's runs over the settings that `collect_scores` takes; empty if it takes none.

    Args:
        cells: as `tabulate_by_seed` returns them.
        to: the reference row.
        lower: True if the smallest is best.
        confidence: level of the intervals.
    """
    scores = collect_scores(cells)
    return [
        Aggregate(
            row,
            ours,
            compute_iqm(ours),
            bound_iqm(ours, confidence),
            compute_improvement(ours, scores[to], lower),
            bound_improvement(ours, scores[to], lower, confidence),
        )
        for row, ours in scores.items()
    ]


def collect_scores(cells: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return method -> values of its runs in the settings in which every method has one for every seed.

    Args:
        cells: as `tabulate_by_seed` returns them.

    Returns:
        Arrays `(seeds, settings)` float64; inf for a run that never reached its target. Empty if there is no setting.
    """
    values = cells["_value"].mask(cells["_never"], math.inf)
    table = cells.assign(_value=values).pivot(index="seed", columns=["_column", "_row"], values="_value")
    rows = cells["_row"].unique()
    whole = [  # settings in which all rows have a value for every seed
        column
        for column in cells["_column"].unique()
        if table[column].shape[1] == len(rows) and table[column].notna().all(axis=None)
    ]
    return {str(row): table[[(column, row) for column in whole]].to_numpy() for row in rows} if whole else {}


@dataclass(frozen=True)
class Comparison:
    """All methods of a sweep against one, in each setting and over all settings.

    title: the metric in words. lower: True if its smallest value is the best. notes: on the metric and the cells.
    ranks: None for one setting.
    """

    sweep: str
    to: str
    metric: str
    title: str
    lower: bool
    notes: list[str]
    confidence: float
    differences: list[Difference]
    improvements: list[Improvement]
    aggregates: list[Aggregate]
    ranks: Ranks | None


def find_reference(cells: pd.DataFrame, given: str, found: Iterable[str], rows: str = "algorithm") -> str:
    """Return the row that is the reference: the given one, or else fedavg if it is among those found; empty if not."""
    label = find_label(cells, given or "fedavg", rows)
    return label if given or label in set(found) else ""


def compare(
    sweep: SweepTable,
    to: str = "",
    metric: str = DEFAULT,
    confidence: float = 0.95,
    rows: str = "algorithm",
    columns: str = "",
) -> Comparison:
    """Compare every method with the reference row `to`, by default fedavg if it is a row.

    Raises:
        UserError: a row, metric or key is unknown, there is no reference, the confidence is outside (0, 1), or runs
            cannot be paired.
    """
    cells = tabulate_by_seed(sweep, metric, rows, columns)
    to = find_reference(sweep.cells, to, cells["_row"], rows)
    differences, lower = pair_by_seed(cells, to, confidence), is_smaller_better(metric, sweep.cells)
    means = cells.groupby(["_column", "_row"])["_value"].agg(lambda of_seeds: of_seeds.mean(skipna=False)).unstack()
    return Comparison(
        sweep.name,
        to,
        metric,
        make_title(metric, sweep.cells),
        lower,
        [*describe_undeclared(metric, sweep.cells), *([sweep.note] if sweep.note else [])],
        confidence,
        differences,
        count_improvements(differences, lower),
        aggregate_runs(cells, to, lower, confidence),
        rank_methods(means, lower, 1 - confidence),
    )


def list_columns(confidence: float) -> list[str]:
    """Return the columns of `format_lines`."""
    return [
        *DIFFERENCE_HEADER,
        f"{100 * confidence:g} % interval (t)",
        "bootstrap interval",
        "p (sign flips)",
        "adjusted p (Holm)",
        "seeds needed",
        "",
    ]


def format_lines(found: Comparison) -> list[list[str]]:
    """Return a line per method and setting, as text."""
    return [
        [
            one.row,
            one.column,
            f"{one.n}" + (f" (unpaired: {one.unpaired})" if one.unpaired else ""),
            "-" if one.mean is None else f"{one.mean:+.2f}",
            str(one.interval or "-"),
            str(bootstrap(one.gaps, found.confidence) or "too few seeds"),
            _format_p(flip_signs(one.gaps)),
            _format_p(one.adjusted),
            _format_needed(one),
            one.judge(found.lower),
        ]
        for one in found.differences
    ]


def _format_p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _format_needed(one: Difference) -> str:
    if one.adjusted is None or one.spread == 0:
        return "-"
    return str(one.count_needed_seeds() or f"> {MOST_SEEDS}")


def list_notes(found: Comparison) -> list[str]:
    """Return notes that explain the numbers."""
    level = 100 * (1 - found.confidence)
    return [
        f"paired by seed; better or worse where the adjusted p is at most {level:.2g} %: the paired t-test's p, "
        f"corrected by Holm's method for the methods of a setting, so at most {level:.2g} % of settings without any "
        "difference show one; settings are not corrected for each other",
        "each interval stands alone, without correction; the t interval assumes normal differences, the bootstrap "
        f"does not, but it is too short for fewer than {BOOTSTRAP_SEEDS} seeds",
        "p (sign flips): exact, without assuming normality, never below 2^(1 - n): 5 % needs at least six seeds",
        f"seeds needed: to tell a difference of this size and spread apart with a probability of {100 * POWER:g} %",
        *found.notes,
    ]


def list_all_columns(found: Comparison) -> list[str]:
    """Return the columns of `format_all`."""
    return [
        "method",
        f"beats {found.to} with the same seed",
        "interquartile mean",
        f"probability of improvement over {found.to}",
        "mean rank",
    ]


def format_all(found: Comparison) -> list[list[str]]:
    """Return a line per method over all settings, as text; `-` for what it has no number for."""
    wins = {one.row: one for one in found.improvements}
    runs = {one.row: one for one in found.aggregates}
    ranks = {} if found.ranks is None else found.ranks.mean
    rows = dict.fromkeys([found.to, *wins, *runs])
    return [
        [
            row,
            _format_wins(wins[row]) if row in wins else "-",
            _format_mean(runs[row].mean) + _bracket(runs[row].interval) if row in runs else "-",
            f"{runs[row].improvement:.2f}{_bracket(runs[row].bounds)}" if row in runs and row != found.to else "-",
            f"{ranks[row]:.2f}" if row in ranks else "-",
        ]
        for row in rows
    ]


def list_all_notes(found: Comparison) -> list[str]:
    """Return notes that explain `format_all`, and the results of Friedman's and Nemenyi's tests."""
    notes = ["same seed: pairs won of all, ties count half; share with Clopper and Pearson's interval"]
    if found.aggregates:
        seeds, settings = found.aggregates[0].scores.shape
        lack = find_lack(found.aggregates[0].scores)
        notes.append(
            f"interquartile mean, probability of improvement: of the settings that all methods finished ({settings}, "
            f"{seeds} seeds each); the middle half of all runs, and any two runs of a setting; "
            + (f"no intervals: {lack}" if lack else f"{found.confidence:.0%} intervals of the stratified bootstrap")
        )
    if found.ranks is not None:
        notes.append(
            f"mean rank over {found.ranks.settings} settings: {found.ranks.describe()}; critical difference "
            f"{found.ranks.critical:.2f} (Nemenyi, {100 * found.ranks.level:.2g} %)"
        )
    return notes


def _format_wins(one: Improvement) -> str:
    return f"{one.wins:g} of {one.pairs}: {one.wins / one.pairs:.2f}{_bracket(one.interval)}"


def _format_mean(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def _bracket(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval.low:.2f} .. {interval.high:.2f})"


def format_report(found: Comparison) -> str:
    """Format the comparison as Markdown."""
    return "\n".join(
        [
            f"**{found.sweep}: difference to {found.to}: {found.title}**",
            "",
            *_format_table([list_columns(found.confidence), *format_lines(found)]),
            "",
            *(f"- {note}" for note in list_notes(found)),
            "",
            "**over all settings**",
            "",
            *_format_table([list_all_columns(found), *format_all(found)]),
            "",
            *(f"- {note}" for note in list_all_notes(found)),
            "",
        ]
    )


def _format_table(grid: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table, whose first row is its header."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    head, *lines = (
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in grid
    )
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines]
