"""All comparisons of a sweep's methods with one of them.

Paired: for every method and setting the differences from the reference in the same setting and with the same seed (same
data, partition and cohorts), their mean, its interval, and the paired t-test's p, adjusted by Holm's method for the
methods of a setting. Over all settings: aggregates of each method's runs, and ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import find_columns, find_label, label_cells, label_table
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import NEVER, describe_undeclared, is_smaller_better, make_title, read_values
from fedray.analysis.statistics.aggregates import bound_improvement, bound_iqm, compute_improvement, compute_iqm
from fedray.analysis.statistics.intervals import (
    Interval,
    apply_holm,
    bound_mean,
    bound_proportion,
    compute_p,
    count_seeds,
)
from fedray.analysis.statistics.ranks import Ranks, rank_methods
from fedray.cells.metric import DEFAULT, Metric
from fedray.common.errors import UserError, unknown

ENDED = ("diverged", "stopped", "pruned")
"""Outcomes without a number that another call of the sweep would only repeat."""


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
        _lost=cells["status"].isin(ENDED) | (cells["_value"] == NEVER) | _lacks_target(sweep, metric),
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


def compare(
    sweep: SweepTable,
    to: str,
    metric: str = DEFAULT,
    confidence: float = 0.95,
    rows: str = "algorithm",
    columns: str = "",
) -> Comparison:
    """Compare every method with the reference row `to`.

    Raises:
        UserError: a row, metric or key is unknown, the confidence is outside (0, 1), or runs cannot be paired.
    """
    to = find_label(sweep.cells, to, rows)
    cells = tabulate_by_seed(sweep, metric, rows, columns)
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
