"""Statistics over seeds and settings: intervals, paired tests, aggregates of runs, and ranks.

Aggregates are the interquartile mean, the performance profile and the probability of improvement over the runs of
several settings, with intervals of the stratified bootstrap. Scores are `(seeds, settings)` float64, in the metric's
unit; a run that never reached its target has inf. Runs are drawn with replacement within each setting, independently
for each method; intervals are percentiles. Source: Agarwal et al., Deep reinforcement learning at the edge of the
statistical precipice, NeurIPS 2021, section 4. Their tasks are settings here.

Ranks are mean ranks over settings, with Friedman's test and the critical difference of ranks. Source: Demšar,
Statistical comparisons of classifiers over multiple data sets, JMLR 2006, section 3.2.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import beta, nct, permutation_test, studentized_range, t, trim_mean, ttest_1samp

from fedray.common.errors import format_count
from fedray.common.rng import generator

BOOTSTRAP_SEEDS = 20
"""Minimum number of differences for a bootstrap interval: simulated coverage is then at least 92 % (tests/analysis)."""
RESAMPLES = 2000
EXACT = 40
"""Maximum number of differences whose sign flips are all counted: two halves of 2**20 sums."""
POWER = 0.8
"""Probability of telling a difference of the observed size apart with the seeds that `count_seeds` returns."""
MOST_SEEDS = 1000
SEEDS, SETTINGS = 10, 2
"""Minimum numbers of seeds and settings for intervals: simulated coverage is then at least 92 % (tests/analysis)."""
CUT = 0.25
"""Share of the runs that the interquartile mean leaves out at either end."""
PERMUTATIONS = 9999
"""Number of drawn permutations if there are more; p is then at least 1 / (PERMUTATIONS + 1)."""


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


def compute_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test.

    Returns:
        None for fewer than two differences. Equal differences have no spread for a t-test; for them p is that of the
        sign flips.
    """
    if len(differences) < 2:
        return None
    values = np.asarray(differences, dtype=float)
    if values.std(ddof=1) <= 1e-9 * np.abs(values).max():
        return flip_signs(differences)
    return float(ttest_1samp(values, 0.0).pvalue)


def flip_signs(differences: Sequence[float]) -> float | None:
    """Return the exact two-sided p of the sign-flip test: the share of the 2**n signs whose |sum| is at least the
    observed.

    It assumes only that each difference is as likely as its negative if the methods are equal. It is never below
    2**(1 - n), so fewer than six seeds never reach 5 %.

    Returns:
        None for no differences, or more than EXACT.

    Source: Fisher, The Design of Experiments, section 21.
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


def count_seeds(difference: float, spread: float, level: float = 0.05) -> int | None:
    """Return the smallest number of paired seeds with which a t-test finds a true difference of this size with POWER.

    Args:
        difference: difference of the means, in the metric's unit.
        spread: standard deviation of the paired differences, in the same unit, above 0.
        level: level of the test; with Holm over m methods 0.05 / m is safe.

    Returns:
        None for more than MOST_SEEDS, or no difference.
    """
    if difference == 0 or spread <= 0:
        return None
    seeds = np.arange(2, MOST_SEEDS + 1)
    enough = compute_power(abs(difference) / spread, seeds, level) >= POWER
    return int(seeds[enough.argmax()]) if enough.any() else None


def compute_power(effect: float, seeds: np.ndarray, level: float = 0.05) -> np.ndarray:
    """Return the probability that the two-sided t-test of n pairs finds a true mean of `effect` standard deviations."""
    critical = t.ppf(1 - level / 2, seeds - 1)
    shift = effect * np.sqrt(seeds)
    above = np.nan_to_num(nct.sf(critical, seeds - 1, shift), nan=1.0)  # a shift beyond SciPy's range is certain
    below = np.nan_to_num(nct.cdf(-critical, seeds - 1, shift), nan=0.0)  # the far tail, where SciPy may give NaN
    return np.asarray(above + below)


def find_effect(seeds: int, level: float = 0.05) -> float:
    """Return the true mean, in standard deviations, that the t-test of this many pairs finds with POWER.

    Args:
        seeds: number of pairs, at least 2.
        level: level of the test.
    """
    low, high = 0.0, 1.0
    while compute_power(high, np.array([seeds]), level)[0] < POWER:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_power(middle, np.array([seeds]), level)[0] >= POWER else (middle, high)
    return high


def find_lack(scores: np.ndarray) -> str:
    """Return what is missing for intervals, `found 3 seeds, 10 are needed`; empty if they hold their level."""
    for found, needed, what in zip(scores.shape, (SEEDS, SETTINGS), ("seed", "setting"), strict=True):
        if found < needed:
            return f"found {format_count(found, what)}, {needed} are needed"
    return ""


def compute_iqm(scores: np.ndarray) -> float:
    """Return the mean of the middle half of all runs; inf if more than a quarter never reached the target."""
    return float(trim_mean(scores, CUT, axis=None))


def bound_iqm(scores: np.ndarray, confidence: float = 0.95) -> Interval | None:
    """Return the interval of `compute_iqm`; None if `find_lack` finds one, or a run never reached the target."""
    if find_lack(scores) or not np.isfinite(scores).all():
        return None
    seeds, settings = scores.shape
    rng = generator(0, "interquartile mean", seeds, settings)
    drawn = np.take_along_axis(scores[None], rng.integers(0, seeds, (RESAMPLES, seeds, settings)), axis=1)
    means = trim_mean(drawn.reshape(RESAMPLES, -1), CUT, axis=1)
    low, high = _find_percentiles(means, confidence)
    return Interval(float(low), float(high))


def compute_profile(scores: np.ndarray, thresholds: np.ndarray, lower: bool = False) -> np.ndarray:
    """Return the share of all runs above each threshold, or below it if the smallest is best: `(thresholds,)`."""
    return np.asarray(_beats(scores, thresholds, lower).mean(axis=(0, 1)))


def bound_profile(
    scores: np.ndarray, thresholds: np.ndarray, lower: bool = False, confidence: float = 0.95
) -> np.ndarray | None:
    """Return the lower and upper bound of each share of `compute_profile`, `(2, thresholds)`.

    Returns:
        NaN for shares of 0 and 1: resampling cannot change them. None if `find_lack` finds one.
    """
    if find_lack(scores):
        return None
    better, share = _beats(scores, thresholds, lower), compute_profile(scores, thresholds, lower)
    shares = np.einsum("rsn,nst->rt", _draw_weights("profile", *scores.shape), better, optimize=True)
    return np.where((share > 0) & (share < 1), _find_percentiles(shares, confidence), np.nan)


def compute_improvement(ours: np.ndarray, theirs: np.ndarray, lower: bool = False) -> float:
    """Return the probability that a run of ours is better than a run of theirs in the same setting, with any seeds.

    It is the mean over the settings of Mann and Whitney's statistic; ties count half.
    """
    return float(_compare_runs(ours, theirs, lower).mean())


def bound_improvement(
    ours: np.ndarray, theirs: np.ndarray, lower: bool = False, confidence: float = 0.95
) -> Interval | None:
    """Return the interval of `compute_improvement`.

    Runs of a common seed are drawn independently, so it is wider than it need be if they are correlated.

    Returns:
        None if `find_lack` finds one, and for probabilities of 0 and 1: resampling cannot change them.
    """
    wins = _compare_runs(ours, theirs, lower)
    if find_lack(ours) or find_lack(theirs) or wins.mean() in (0, 1):
        return None
    own, other = (_draw_weights(name, *scores.shape) for name, scores in (("ours", ours), ("theirs", theirs)))
    low, high = _find_percentiles(np.einsum("rsi,ijs,rsj->r", own, wins, other, optimize=True), confidence)
    settings = wins.shape[2]
    return Interval(float(low) * settings, float(high) * settings)


def _beats(scores: np.ndarray, thresholds: np.ndarray, lower: bool) -> np.ndarray:
    """Return 1 for each run that is better than a threshold, `(seeds, settings, thresholds)` float64."""
    return np.asarray(scores[..., None] < thresholds if lower else scores[..., None] > thresholds, dtype=float)


def _compare_runs(ours: np.ndarray, theirs: np.ndarray, lower: bool) -> np.ndarray:
    """Return 1 for each pair of runs that ours wins, 0.5 for ties, `(our seeds, their seeds, settings)` float64."""
    left, right = ours[:, None], theirs[None]
    wins = left < right if lower else left > right
    return np.asarray(wins + (left == right) / 2)


def _draw_weights(purpose: str, seeds: int, settings: int) -> np.ndarray:
    """Return the weights of the runs in each resample, `(RESAMPLES, settings, seeds)`; a resample's sum is 1."""
    rng = generator(0, f"stratified bootstrap, {purpose}", seeds, settings)
    return rng.multinomial(seeds, [1 / seeds] * seeds, (RESAMPLES, settings)) / (seeds * settings)


def _find_percentiles(drawn: np.ndarray, confidence: float) -> np.ndarray:
    """Return the two percentiles of the resamples, which lie along the first axis."""
    return np.asarray(np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0))


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

    Exact for up to PERMUTATIONS permutations, otherwise of PERMUTATIONS keyed draws.

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
        n_resamples=PERMUTATIONS,
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
