"""Interquartile mean, performance profile and probability of improvement over the runs of several settings, with
intervals of the stratified bootstrap.

Scores are `(seeds, settings)` float64, in the metric's unit; a run that never reached its target has inf. Runs are
drawn with replacement within each setting, independently for each method; intervals are percentiles.

Source: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, NeurIPS 2021, section 4.
Their tasks are settings here.
"""

import numpy as np
from scipy.stats import trim_mean

from fedray.analysis.statistics.intervals import RESAMPLES, Interval
from fedray.common.errors import format_count
from fedray.common.rng import generator

SEEDS, SETTINGS = 10, 2
"""Minimum numbers of seeds and settings for intervals: simulated coverage is then at least 92 % (tests/analysis)."""
CUT = 0.25
"""Share of the runs that the interquartile mean leaves out at either end."""


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
