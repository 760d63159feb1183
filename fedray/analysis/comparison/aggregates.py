"""Aggregates of each method's runs over all settings."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedray.analysis.statistics.aggregates import bound_improvement, bound_iqm, compute_improvement, compute_iqm
from fedray.analysis.statistics.intervals import Interval


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
    whole = [column for column in cells["_column"].unique() if _is_whole(table[column], len(rows))]
    return {str(row): table[[(column, row) for column in whole]].to_numpy() for row in rows} if whole else {}


def _is_whole(setting: pd.DataFrame, rows: int) -> bool:
    """Return True if all rows have a value for every seed."""
    return setting.shape[1] == rows and bool(setting.notna().all(axis=None))
