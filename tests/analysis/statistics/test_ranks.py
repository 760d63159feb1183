"""Mean ranks and the critical difference."""

import numpy as np
import pandas as pd
import pytest

from fedray.analysis.statistics.ranks import find_critical_difference, rank_methods
from tests.analysis.statistics.test_intervals import tolerance


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_difference_of_the_table(methods: int, q: float) -> None:
    """Demšar's table 5(a) prints q at 5 %; N = 14: CD = q sqrt(k (k + 1) / 84)."""
    assert find_critical_difference(methods, 14) == pytest.approx(q * np.sqrt(methods * (methods + 1) / 84), rel=1e-3)


def test_mean_ranks_by_hand() -> None:
    """Settings: a > b > c, a > b = c (both rank 2.5); one lacks c and is left out. Means 1, 2.25, 2.75."""
    means = pd.DataFrame({"c": [1.0, 2.0, np.nan], "a": [3.0, 3.0, 1.0], "b": [2.0, 2.0, 5.0]})
    found = rank_methods(means, lower=False)
    assert found is not None
    assert found.mean == {"a": 1.0, "b": 2.25, "c": 2.75}
    assert found.settings == 2
    assert found.cliques() == [["a", "b", "c"]]  # critical difference 2.343 sqrt(12 / 12) = 2.34
    assert found.critical == pytest.approx(2.343, abs=1e-3)
    lowest = rank_methods(means, lower=True)
    assert lowest is not None
    assert list(lowest.mean) == ["c", "b", "a"]
    assert rank_methods(means[:1], lower=False) is None


def test_methods_that_are_alike_are_rarely_told_apart() -> None:
    """Five methods, ten settings of noise: the extreme ranks differ by more than the critical difference in <= 5 %."""
    rng, runs = np.random.default_rng(0), 1000
    order = rng.normal(size=(runs, 10, 5)).argsort(axis=2).argsort(axis=2) + 1
    mean = order.mean(axis=1)
    rate = np.mean(mean.max(axis=1) - mean.min(axis=1) >= find_critical_difference(5, 10))
    assert rate <= 0.05 + tolerance(0.05, runs)
