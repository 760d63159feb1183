"""Statistics over seeds: intervals and paired tests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, nct, t, ttest_1samp

from fedray.common.rng import generator

BOOTSTRAP_SEEDS = 20
"""Minimum number of differences for a bootstrap interval: simulated coverage is then at least 92 % (tests/analysis)."""
RESAMPLES = 2000
EXACT = 40
"""Maximum number of differences whose sign flips are all counted: two halves of 2**20 sums."""
POWER = 0.8
"""Probability of telling a difference of the observed size apart with the seeds that `count_seeds` returns."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Interval:
    """Bounds of a confidence interval, in the unit of the measured quantity."""

    low: float
    high: float

    def format(self, digits: int) -> str:
        """Format as `+0.52 .. +1.48`, with so many digits after the point."""
        return f"{self.low:+z.{digits}f} .. {self.high:+z.{digits}f}"


def bound_mean(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's t interval of the mean of n paired differences, n - 1 degrees of freedom; exact for normal ones.

    None for fewer than two differences, and for equal ones, which have no spread.
    """
    if len(differences) < 2 or _are_equal(differences):
        return None
    found = ttest_1samp(differences, 0.0).confidence_interval(confidence)
    return Interval(float(found.low), float(found.high))


def bootstrap(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the percentile bootstrap interval of the mean; None for fewer than BOOTSTRAP_SEEDS differences.

    It assumes no normality, but is too short for few differences. Resampling is keyed, so equal differences have equal
    intervals. Source: Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3.
    """
    if len(differences) < BOOTSTRAP_SEEDS:
        return None
    return Interval(*bootstrap_percentiles(np.asarray(differences, dtype=float), confidence))


def bootstrap_percentiles(differences: np.ndarray, confidence: float) -> tuple[float, float]:
    """Return the interval of `bootstrap` for any number of differences, for simulations in tests."""
    rng = generator(0, "bootstrap", len(differences))
    means = rng.choice(differences, (RESAMPLES, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bound_proportion(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Return Clopper and Pearson's interval of a probability.

    It holds its level for any number of trials. If the probabilities of the trials differ (settings), the interval is
    for their mean and wider than it need be, since the sum varies less than a binomial (Hoeffding 1956).
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes >= trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return Interval(low, high)


def compute_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test; None for fewer than two differences.

    Equal differences have no spread for a t-test; for them p is that of the sign flips.
    """
    if len(differences) < 2:
        return None
    return flip_signs(differences) if _are_equal(differences) else float(ttest_1samp(differences, 0.0).pvalue)


def _are_equal(differences: Sequence[float]) -> bool:
    """Return True for differences without a spread, but for the last bits."""
    return bool(np.ptp(differences) <= 1e-9 * np.abs(differences).max())


def flip_signs(differences: Sequence[float]) -> float | None:
    """Return the exact two-sided p of the sign-flip test: the share of the 2**n signs whose |sum| is at least the
    observed; None for no differences, or more than EXACT.

    It assumes only that each difference is as likely as its negative if the methods are equal. It is never below
    2**(1 - n), so fewer than six seeds never reach 5 %. Source: Fisher, The Design of Experiments, section 21.
    """
    n = len(differences)
    if not 0 < n <= EXACT:
        return None
    values = np.asarray(differences, dtype=float)
    left, right = _sum_with_signs(values[: n // 2]), np.sort(_sum_with_signs(values[n // 2 :]))
    bound = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # equal sums in another order
    if bound <= 0:
        return 1.0
    above = len(right) - np.searchsorted(right, bound - left, side="left")
    below = np.searchsorted(right, -bound - left, side="right")
    return float((above + below).sum() / 2**n)


def _sum_with_signs(values: np.ndarray) -> np.ndarray:
    """Return the 2**n sums of n values with either sign."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def apply_holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p, in the given order: at most 5 % of families without a difference have one below 5 %.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 1979.
    """
    order = np.argsort(p_values)
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def count_seeds(difference: float, spread: float, level: float) -> int | None:
    """Return the smallest number of paired seeds with which a t-test finds a true difference of this size with POWER.

    spread: standard deviation of the paired differences, above 0, in the difference's unit. level: with Holm over m
    methods 0.05 / m is safe. None for more than MOST_SEEDS, or no difference.
    """
    if difference == 0 or spread <= 0:
        return None
    seeds = np.arange(2, MOST_SEEDS + 1)
    enough = compute_power(abs(difference) / spread, seeds, level) >= POWER
    return int(seeds[enough.argmax()]) if enough.any() else None


def compute_power(effect: float, seeds: np.ndarray, level: float) -> np.ndarray:
    """Return the probability that the two-sided t-test of n pairs finds a true mean of `effect` standard deviations."""
    critical = t.ppf(1 - level / 2, seeds - 1)
    shift = effect * np.sqrt(seeds)
    above = np.nan_to_num(nct.sf(critical, seeds - 1, shift), nan=1.0)  # a shift beyond SciPy's range is certain
    below = np.nan_to_num(nct.cdf(-critical, seeds - 1, shift), nan=0.0)  # the far tail, where SciPy may give NaN
    return np.asarray(above + below)


def find_effect(seeds: int, level: float) -> float:
    """Return the true mean, in standard deviations, that the t-test of this many pairs finds with POWER."""
    low, high = 0.0, 1.0
    while compute_power(high, np.array([seeds]), level)[0] < POWER:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_power(middle, np.array([seeds]), level)[0] >= POWER else (middle, high)
    return high
