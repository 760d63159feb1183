"""Confidence intervals of a mean difference and of a probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, ttest_1samp

from fedray.common.rng import generator

BOOTSTRAP_SEEDS = 20
"""Minimum number of differences for a bootstrap interval: simulated coverage is then at least 92 % (tests/analysis)."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """Bounds of a confidence interval, in the unit of the measured quantity."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:+.2f} .. {self.high:+.2f}"


def bound_mean(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's t interval of the mean of n paired differences, n - 1 degrees of freedom.

    Exact for normal differences.

    Args:
        differences: a number per pair.
        confidence: level of the interval.

    Returns:
        None for fewer than two differences, and for equal ones, which have no spread.
    """
    if len(differences) < 2 or np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        return None
    found = ttest_1samp(differences, 0.0).confidence_interval(confidence)
    return Interval(float(found.low), float(found.high))


def bootstrap(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the percentile bootstrap interval of the mean: it assumes no normality, but is too short for few
    differences.

    Resampling is keyed, so equal differences have equal intervals.

    Args:
        differences: a number per pair.
        confidence: level of the interval.

    Returns:
        None for fewer than BOOTSTRAP_SEEDS differences.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3.
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

    Args:
        successes: number of successes; ties count half.
        trials: number of trials.
        confidence: level of the interval.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes >= trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return Interval(low, high)
