"""Intervals, tests and Holm's correction by hand, their rates in simulated results."""

import itertools

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedray.analysis import statistics
from fedray.analysis.comparison import Difference, adjust_p_values
from fedray.analysis.statistics import POWER, apply_holm, bound_mean, compute_p, compute_power, count_seeds, flip_signs

RUNS = 2000


def tolerance(rate: float, runs: int = RUNS) -> float:
    """Two standard errors of a simulated rate."""
    return float(2 * np.sqrt(rate * (1 - rate) / runs))


def test_student_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653, so 2 ± 4.302653 / sqrt(3)."""
    found = bound_mean([1, 2, 3])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert bound_mean([1.0]) is None
    assert bound_mean([0.3, 0.1 + 0.2]) is None
    # 1, 2, 3: t = 2 sqrt(3) = 3.4641 with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2) = 0.074180.
    assert compute_p([1, 2, 3]) == pytest.approx(1 - np.sqrt(12 / 14), abs=1e-6)
    assert compute_p([0.3, 0.3, 0.3]) == 0.25  # no spread: the sign flips'
    assert compute_p([0.0, 0.0, 0.0]) == 1, "runs with the same bits"
    assert compute_p([1.0]) is None


def coverage_of_the_bootstrap(kind: str, n: int, runs: int) -> float:
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(runs, n)) if kind == "normal" else rng.standard_t(5, (runs, n))
    bounds = np.array([statistics.bootstrap_percentiles(row, 0.95) for row in draws])
    return float(np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
def test_the_bootstrap_is_printed_from_where_it_covers(kind: str) -> None:
    """At least 92 % at BOOTSTRAP_SEEDS, for normal differences and for t's with 5 degrees of freedom; too few at five.
    The bound leaves two standard errors of the simulation."""
    assert coverage_of_the_bootstrap(kind, statistics.BOOTSTRAP_SEEDS, RUNS) >= 0.92 - tolerance(0.92)
    assert coverage_of_the_bootstrap(kind, 5, 500) < 0.9


def test_fewer_seeds_have_no_bootstrap_interval() -> None:
    values = np.random.default_rng(0).normal(size=statistics.BOOTSTRAP_SEEDS)
    assert statistics.bootstrap(values[:-1]) is None
    found = statistics.bootstrap(values)
    assert found == statistics.bootstrap(values)  # keyed draws
    assert found is not None
    assert found.low < values.mean() < found.high


def test_proportion_by_hand() -> None:
    """3 of 3: the lower bound is the p with p^3 = 0.025, 0.292402; of 0 of 3 the upper is 1 minus that."""
    assert statistics.bound_proportion(3, 3).low == pytest.approx(0.025 ** (1 / 3))
    assert statistics.bound_proportion(3, 3).high == 1
    assert statistics.bound_proportion(0, 3).high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert statistics.bound_proportion(0, 3).low == 0


def test_sign_flips_by_hand() -> None:
    """1, 2, 3: of the 8 sums only +6 and -6 are as large as 6: 2/8. 1, 1, -1: sum 1, and all 8 have |sum| >= 1."""
    assert (flip_signs([1, 2, 3]), flip_signs([1, 1, -1])) == (0.25, 1)
    assert flip_signs([0.0, 0.0]) == 1
    assert flip_signs([]) is None
    assert flip_signs([1.0] * 30) == pytest.approx(2 / 2**30), "only the two sums of equal signs are as large"
    assert flip_signs([1.0] * 41) is None, "above 40 there is no p"


@pytest.mark.parametrize("n", [1, 2, 5, 9, 12])
def test_sign_flips_count_all_signs(n: int) -> None:
    """Against the plain enumeration."""
    values = np.random.default_rng(n).normal(0.5, 1, n).round(1)
    sums = [abs(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=n)]
    assert flip_signs(values) == pytest.approx(np.mean([one >= abs(values.sum()) - 1e-9 for one in sums]))


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.03 sorted: 3 x 0.01 = 0.03, 2 x 0.03 = 0.06, then max(0.06, 0.04) = 0.06."""
    assert apply_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert (apply_holm([0.9, 0.8]), apply_holm([])) == ([1, 1], [])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("methods", [2, 7])
def test_family_wise_error_under_the_null(seeds: int, methods: int) -> None:
    """No method differs from the reference, whose noise they share: a setting shows a difference in at most 5 %. Two
    standard errors of the simulation are allowed."""
    rng = np.random.default_rng(10 * seeds + methods)
    errors = 0
    for noise in rng.normal(size=(RUNS, methods + 1, seeds)):
        gaps = noise[1:] - noise[0]
        each = zip(gaps, ttest_1samp(gaps, 0.0, axis=1).pvalue, strict=True)
        family = [Difference(f"m{k}", "setting", tuple(gap), 0, 0.95, p) for k, (gap, p) in enumerate(each)]
        errors += any(one.judge(lower=False) != "not told apart" for one in adjust_p_values(family))
    assert errors / RUNS <= 0.05 + tolerance(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.8, 1.5, 3.0])
def test_power_is_what_a_simulation_shows(effect: float) -> None:
    """With the reported number of seeds POWER of the runs, or slightly more, find a difference of `effect` spreads."""
    needed = count_seeds(effect, 1.0, 0.05)
    assert needed is not None
    draws = np.random.default_rng(1).normal(effect, 1, (RUNS, needed))
    rate = np.mean([(compute_p(row) or 1) <= 0.05 for row in draws])
    assert rate >= POWER - tolerance(POWER)
    assert rate == pytest.approx(float(compute_power(effect, np.array([needed]), 0.05)[0]), abs=1.5 * tolerance(POWER))
    assert compute_power(effect, np.array([needed - 1]), 0.05)[0] < POWER


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_power_of_no_difference_is_the_level(level: float) -> None:
    """Half of it on either side, whatever the number of seeds."""
    assert compute_power(0.0, np.array([2, 5, 30]), level) == pytest.approx(level)


def test_seeds_that_cannot_be_had() -> None:
    """Beyond 10^8 spreads the non-central t gives no number: no doubt is left with the fewest seeds."""
    assert count_seeds(0.0, 1.0, 0.05) is None
    assert count_seeds(0.001, 1.0, 0.05) is None
    assert (count_seeds(1000.0, 1.0, 0.05), count_seeds(1e10, 1.0, 0.05)) == (2, 2)
