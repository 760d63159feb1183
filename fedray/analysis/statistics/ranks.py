"""Mean ranks over settings, and the critical difference of ranks.

Source: Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006, section 3.2.2.
"""

import math
from dataclasses import dataclass

import pandas as pd
from scipy.stats import studentized_range


@dataclass(frozen=True)
class Ranks:
    """mean: method -> mean rank over the settings, best first, 1 is best. critical: Nemenyi's difference at `level`."""

    mean: dict[str, float]
    settings: int
    critical: float
    level: float

    def cliques(self) -> list[list[str]]:
        """The longest runs of methods whose ranks differ by less than `critical`, so that they are not told apart."""
        names, found = list(self.mean), list[list[str]]()
        for start, first in enumerate(names):
            run = [name for name in names[start:] if self.mean[name] - self.mean[first] < self.critical]
            if len(run) > 1 and not (found and set(run) <= set(found[-1])):
                found.append(run)
        return found


def rank_methods(means: pd.DataFrame, lower: bool, level: float = 0.05) -> Ranks | None:
    """Rank the methods in every setting, ties sharing their mean rank.

    Args:
        means: settings x methods, the mean over seeds; a setting that lacks a method is left out.
        lower: True if the smallest is best.
        level: frequency with which equal methods may be told apart.

    Returns:
        None for fewer than two settings or two methods.
    """
    whole = means.dropna()
    settings, methods = whole.shape
    if settings < 2 or methods < 2:
        return None
    mean = whole.rank(axis=1, ascending=lower).mean().sort_values(kind="stable")
    return Ranks(
        {str(name): float(rank) for name, rank in mean.items()},
        settings,
        find_critical_difference(methods, settings, level),
        level,
    )


def find_critical_difference(methods: int, settings: int, level: float = 0.05) -> float:
    """Return Nemenyi's critical difference of ranks: q sqrt(k (k + 1) / (6 N)), q the studentized range / sqrt(2)."""
    q = float(studentized_range.ppf(1 - level, methods, 1e6)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * settings))
