"""Mean ranks over settings, Friedman's test, and the critical difference of ranks.

Source: Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006, section 3.2.2.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import permutation_test, studentized_range

from fedray.common.rng import generator

RESAMPLES = 9999
"""Number of drawn permutations if there are more; p is then at least 1 / (RESAMPLES + 1)."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods, and what they show.

    Attributes:
        mean: method -> mean rank over the settings, best first, 1 is best.
        settings: number of settings.
        p: of Friedman's test, that all methods are alike.
        critical: Nemenyi's critical difference at `level`.
        level: of both tests.
        needed: smallest number of settings with which so many methods could be told apart at `level`.
    """

    mean: dict[str, float]
    settings: int
    p: float
    critical: float
    level: float
    needed: int

    @property
    def differs(self) -> bool:
        """True if Friedman's test shows that the methods are not all alike; without it pairs are not compared."""
        return self.p <= self.level + 1e-12

    def find_cliques(self) -> list[list[str]]:
        """Return the longest runs of methods that are not told apart: ranks that differ by less than `critical`, or all
        methods if Friedman's test shows no difference."""
        names, found = list(self.mean), list[list[str]]()
        if not self.differs:
            return [names]
        for start, first in enumerate(names):
            run = [name for name in names[start:] if self.mean[name] - self.mean[first] < self.critical]
            if len(run) > 1 and not (found and set(run) <= set(found[-1])):
                found.append(run)
        return found

    def describe(self) -> str:
        """Return the result of Friedman's test in words."""
        count = f"{len(self.mean)} methods on {self.settings} settings"
        tested = f"Friedman's test: p = {self.p:.3f}" if self.p >= 0.001 else "Friedman's test: p < 0.001"
        if self.settings < self.needed:
            return f"{count} can never be told apart by ranks: {self.needed} settings are needed ({tested})"
        return tested if self.differs else f"{tested}, so {count} are not told apart"


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
    ranks = whole.rank(axis=1, ascending=lower)
    mean = ranks.mean().sort_values(kind="stable")
    return Ranks(
        {str(name): float(rank) for name, rank in mean.items()},
        settings,
        compute_friedman_p(ranks.to_numpy()),
        find_critical_difference(methods, settings, level),
        level,
        count_settings(methods, level),
    )


def compute_friedman_p(ranks: np.ndarray) -> float:
    """Return the p of Friedman's test by permuting the ranks within each setting, which holds its level for any numbers
    of methods and settings, and with ties; Friedman's chi-squared distribution does so only for many.

    Exact for up to RESAMPLES permutations, otherwise of RESAMPLES keyed draws.

    Args:
        ranks: settings x methods.

    Source: Demšar, section 3.2.2. His statistics (chi-squared, and Iman and Davenport's F) increase with the sum of the
        squared rank sums, which is used here, so that they have the same p.
    """
    settings, methods = ranks.shape
    found = permutation_test(
        tuple(ranks.T),
        _sum_squares,
        permutation_type="samples",
        alternative="greater",
        n_resamples=RESAMPLES,
        vectorized=True,
        random_state=generator(0, "friedman", settings, methods),
    )
    return float(found.pvalue)


def _sum_squares(*ranks: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the sum over the methods of their squared rank sums. ranks: each method's rank in every setting."""
    return np.asarray(sum(np.square(of_method.sum(axis=axis)) for of_method in ranks))


def find_critical_difference(methods: int, settings: int, level: float = 0.05) -> float:
    """Return Nemenyi's critical difference of ranks: q sqrt(k (k + 1) / (6 N)), q the studentized range / sqrt(2)."""
    q = float(studentized_range.ppf(1 - level, methods, 1e6)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * settings))


def count_settings(methods: int, level: float = 0.05) -> int:
    """Return the smallest number N of settings with which both tests can tell k methods apart.

    The largest difference of mean ranks, k - 1, has to reach the critical difference, and Friedman's smallest p, that
    of the same order in all settings, k!^(1 - N), has to reach the level.
    """
    ratio = find_critical_difference(methods, 1, level) / (methods - 1)
    tries = 1 + math.log(1 / level) / math.lgamma(methods + 1)
    return max(2, math.ceil(ratio**2 - 1e-9), math.ceil(tries - 1e-9))
