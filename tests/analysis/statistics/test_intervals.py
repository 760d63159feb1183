"""Intervals: numbers from tables, and their coverage in simulated results."""

import numpy as np
import pytest
from scipy.stats import t

from fedray.analysis.statistics import (
    BOOTSTRAP_SEEDS,
    bootstrap,
    bootstrap_percentiles,
    bound_mean,
    bound_proportion,
)

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


@pytest.mark.parametrize("n", [2, 3, 10, 100])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_student_is_the_formula(n: int, confidence: float) -> None:
    """Mean ± t(1 - (1 - confidence) / 2, n - 1) s / sqrt(n), to 1e-12 of its length."""
    values = np.random.default_rng(n).normal(0.5, 2, n)
    half = t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    found = bound_mean(values.tolist(), confidence)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), rel=0, abs=1e-12 * half
    )


def coverage_of_the_bootstrap(kind: str, n: int, runs: int) -> float:
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(runs, n)) if kind == "normal" else rng.standard_t(5, (runs, n))
    bounds = np.array([bootstrap_percentiles(row, 0.95) for row in draws])
    return float(np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
def test_the_bootstrap_is_printed_from_where_it_covers(kind: str) -> None:
    """At least 92 % at BOOTSTRAP_SEEDS, for normal differences and for t's with 5 degrees of freedom; too few at five.

    The bound leaves two standard errors of the simulation.
    """
    assert coverage_of_the_bootstrap(kind, BOOTSTRAP_SEEDS, RUNS) >= 0.92 - tolerance(0.92)
    assert coverage_of_the_bootstrap(kind, 5, 500) < 0.9


def test_fewer_seeds_have_no_bootstrap_interval() -> None:
    values = np.random.default_rng(0).normal(size=BOOTSTRAP_SEEDS)
    assert bootstrap(values[:-1]) is None
    found = bootstrap(values)
    assert found == bootstrap(values)  # keyed draws
    assert found is not None
    assert found.low < values.mean() < found.high


def test_proportion_by_hand() -> None:
    """3 of 3: the lower bound is the p with p^3 = 0.025, 0.292402; of 0 of 3 the upper is 1 minus that."""
    assert bound_proportion(3, 3).low == pytest.approx(0.025 ** (1 / 3))
    assert bound_proportion(3, 3).high == 1
    assert bound_proportion(0, 3).high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert bound_proportion(0, 3).low == 0
