"""Interquartile mean, performance profiles and probability of improvement: by hand, and coverage of their intervals."""

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from fedray.analysis.statistics import (
    SEEDS,
    bound_improvement,
    bound_iqm,
    bound_profile,
    compute_improvement,
    compute_iqm,
    compute_profile,
    find_lack,
)
from tests.analysis.statistics.test_intervals import tolerance

RUNS = 400
INF = float("inf")


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the time; percentiles of 500 resamples cover slightly less than those of 2000."""
    monkeypatch.setattr("fedray.analysis.statistics.RESAMPLES", 500)


def test_interquartile_mean_by_hand() -> None:
    """Eight runs 1 ... 8 in two settings: two are cut at either end, and 1000 for 8 changes nothing.

    (3 + 4 + 5 + 6) / 4 = 4.5. Two runs may miss the target: the middle four are finite. With a third
    one the mean is infinite.
    """
    scores = np.arange(1.0, 9).reshape(4, 2)
    assert compute_iqm(scores) == 4.5
    assert compute_iqm(np.where(scores == 8, 1000, scores)) == 4.5
    assert compute_iqm(np.where(scores > 6, INF, scores)) == 4.5
    assert compute_iqm(np.where(scores > 5, INF, scores)) == INF


def test_profile_by_hand() -> None:
    """Runs 1, 2, 3, inf: above 2 are 3 and inf, half of them; below 2 only 1, a quarter; inf is below nothing."""
    scores = np.array([[1.0, 3], [2, INF]])
    assert compute_profile(scores, np.array([0.0, 2, 5])).tolist() == [1, 0.5, 0.25]
    assert compute_profile(scores, np.array([0.0, 2, 5]), lower=True).tolist() == [0, 0.25, 0.75]


@pytest.mark.parametrize(("lower", "expected"), [(False, 0.5625), (True, 0.4375)])
def test_improvement_by_hand(lower: bool, expected: float) -> None:
    """First setting, 3 and 5 against 3 and 4: 3 ties once and loses once, 5 wins twice, so 2.5 of 4 pairs.

    Second, 1 and 2 against 0 and 9: each wins once, so 2 of 4. The mean of 0.625 and 0.5 is 0.5625.
    """
    ours, theirs = np.array([[3.0, 1], [5, 2]]), np.array([[3.0, 0], [4, 9]])
    assert compute_improvement(ours, theirs, lower) == expected


def test_improvement_is_the_mean_of_mann_and_whitneys_statistics() -> None:
    """U / (n k) by SciPy, with ties, different numbers of runs, and three settings."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 6, (7, 3)).astype(float), rng.integers(0, 6, (5, 3)).astype(float)
    each = [mannwhitneyu(ours[:, k], theirs[:, k]).statistic / 35 for k in range(3)]
    assert compute_improvement(ours, theirs) == pytest.approx(np.mean(each))


def test_few_runs_have_no_intervals() -> None:
    """SEEDS of two settings have intervals, one seed fewer and one setting have none. Resampling is keyed."""
    rng = np.random.default_rng(1)
    enough = rng.normal(size=(SEEDS, 2))
    assert find_lack(enough) == ""
    assert find_lack(enough[1:]) == "found 9 seeds, 10 are needed"
    assert find_lack(enough[:, :1]) == "found 1 setting, 2 are needed"
    for scores in (enough[1:], enough[:, :1]):
        assert bound_iqm(scores) is None
        assert bound_profile(scores, np.zeros(1)) is None
        assert bound_improvement(scores, scores) is None
    assert bound_iqm(enough) == bound_iqm(enough)
    assert bound_iqm(np.where(enough == enough.max(), INF, enough)) is None


def test_what_resampling_cannot_change_has_no_interval() -> None:
    """All runs of ours are better: every resample has probability 1. No run is above 9, and all are above -9."""
    scores = np.random.default_rng(2).normal(size=(SEEDS, 2))
    assert bound_improvement(scores + 20, scores) is None
    assert bound_improvement(scores, scores + 20) is None
    bounds = bound_profile(scores, np.array([-9.0, 0, 9]))
    assert bounds is not None
    assert np.isnan(bounds[:, [0, 2]]).all()
    low, high = bounds[:, 1]
    assert 0 < low < compute_profile(scores, np.zeros(1))[0] < high < 1


@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
@pytest.mark.parametrize("settings", [2, 6])
def test_interval_of_the_interquartile_mean_covers(kind: str, settings: int) -> None:
    """At least 92 % with SEEDS, for settings whose means differ; the true value is that of 400,000 runs."""
    rng, means = np.random.default_rng(settings), np.linspace(0, 2, settings)

    def draw(runs: int) -> np.ndarray:
        shape = (runs, settings)
        return means + (rng.normal(size=shape) if kind == "normal" else rng.standard_t(5, shape))

    truth = compute_iqm(draw(400_000 // settings))
    found = [bound_iqm(draw(SEEDS)) for _ in range(RUNS)]
    assert np.mean([one is not None and truth in one for one in found]) >= 0.92 - tolerance(0.92, RUNS)


@pytest.mark.parametrize("probability", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_interval_of_the_probability_of_improvement_covers(probability: float, shared: float) -> None:
    """Normal runs whose means differ by z sqrt(2), z that probability's quantile, so that P(X > Y) is the probability.

    shared: correlation of the runs of a seed. Of the intervals that are given, at least 92 % cover.
    """
    rng, gap = np.random.default_rng(3), NormalDist().inv_cdf(probability) * np.sqrt(2)
    hits = []
    for _ in range(RUNS):
        theirs, own = rng.normal(size=(2, SEEDS, 2))
        found = bound_improvement(gap + shared * theirs + np.sqrt(1 - shared**2) * own, theirs)
        hits += [] if found is None else [probability in found]
    assert len(hits) > 0.9 * RUNS
    assert np.mean(hits) >= 0.92 - tolerance(0.92, RUNS)


@pytest.mark.parametrize("settings", [2, 6])
def test_band_of_the_profile_covers(settings: int) -> None:
    """The shares of normal runs above the quantiles of 25, 50 and 90 %: 92 % of the bands that are drawn cover them."""
    rng = np.random.default_rng(settings)
    shares = np.array([0.25, 0.5, 0.9])
    thresholds = np.array([NormalDist().inv_cdf(1 - share) for share in shares])
    hits = []
    for _ in range(RUNS):
        bounds = bound_profile(rng.normal(size=(SEEDS, settings)), thresholds)
        assert bounds is not None
        covers = (bounds[0] <= shares + 1e-9) & (shares - 1e-9 <= bounds[1])
        hits.append(np.where(np.isnan(bounds[0]), np.nan, covers))
    assert (np.nanmean(hits, axis=0) >= 0.92 - tolerance(0.92, RUNS)).all()


def test_three_seeds_would_not_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the first of these without the limit, to show that they can fail."""
    monkeypatch.setattr("fedray.analysis.statistics.SEEDS", 3)
    rng = np.random.default_rng(4)
    found = [bound_iqm(rng.normal(size=(3, 2))) for _ in range(RUNS)]
    assert np.mean([one is not None and 0 in one for one in found]) < 0.9
