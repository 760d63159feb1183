"""Mean ranks, Friedman's test and the critical difference."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare, rankdata

from fedray.analysis.statistics import (
    compute_friedman_p,
    count_settings,
    find_critical_difference,
    rank_methods,
)
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
    assert found.find_cliques() == [["a", "b", "c"]]  # critical difference 2.343 sqrt(12 / 12) = 2.34
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


def ranks_of(*orders: str) -> np.ndarray:
    """Ranks of the methods a, b, c, ... in each setting, whose order, best first, is a word."""
    return np.array([[1.0 + order.index(name) for name in sorted(order)] for order in orders])


@pytest.mark.parametrize(
    ("orders", "p"),
    [
        (("abc", "abc"), 1 / 6),
        (("abc", "abc", "abc"), 1 / 36),
        (("ab",) * 6, 1 / 32),
        (("ab", "ba"), 1.0),
        (("abc", "acb"), 3 / 6),
    ],
)
def test_friedman_by_hand(orders: tuple[str, ...], p: float) -> None:
    """Of k methods only equal orders in all N settings reach the largest sum: k! of k!^N. ab and ba have the least sum.

    abc and acb: rank sums 2, 5, 5, squares 54. With the first order fixed, the six second ones give 56 (abc), 54 (acb,
    bac), 50 (bca, cab) and 48 (cba): three of six reach 54.
    """
    assert compute_friedman_p(ranks_of(*orders)) == pytest.approx(p)


def test_friedman_agrees_with_the_distribution_for_many_settings() -> None:
    """For 30 settings and 6 methods the chi-squared distribution, which SciPy uses, is close."""
    scores = np.random.default_rng(5).normal(size=(30, 6)) + np.linspace(0, 0.7, 6)
    expected = friedmanchisquare(*scores.T).pvalue
    assert 0.02 < expected < 0.2
    assert compute_friedman_p(rankdata(scores, axis=1)) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_holds_its_level(ties: bool) -> None:
    """Four methods on four settings of noise: p is at most 5 % in at most 5 % of the runs, with ties, too."""
    rng, runs = np.random.default_rng(6), 200
    noise = rng.integers(0, 3, (runs, 4, 4)).astype(float) if ties else rng.normal(size=(runs, 4, 4))
    rate = np.mean([compute_friedman_p(rankdata(one, axis=1)) <= 0.05 for one in noise])
    assert rate <= 0.05 + tolerance(0.05, runs)


@pytest.mark.parametrize(("methods", "settings"), [(2, 6), (3, 3), (7, 3), (10, 3), (20, 3)])
def test_settings_that_are_needed(methods: int, settings: int) -> None:
    """Two methods: 2^(1 - N) is at most 5 % from N = 6 on. The same order in all settings is told apart with so
    many, and with a setting fewer either Friedman's p or Nemenyi's difference does not reach the level."""
    assert count_settings(methods) == settings

    def shows(count: int) -> bool:
        found = rank_methods(pd.DataFrame([list(range(methods))] * count), lower=True)
        assert found is not None
        return found.find_cliques() != [list(found.mean)]

    assert shows(settings)
    assert not shows(settings - 1)


def test_without_a_difference_all_methods_are_joined() -> None:
    """Three settings of three methods: two equal orders and one reversed. Rank sums 5, 6, 7 of 6 on average: p is 34/36
    or so, and Nemenyi's critical difference, 1.91, would not tell them apart either. Eight settings with a first in
    seven of them do."""
    alike = rank_methods(pd.DataFrame({"a": [1, 1, 3], "b": [2, 2, 2], "c": [3, 3, 1]}), lower=True)
    assert alike is not None
    assert not alike.differs
    assert alike.find_cliques() == [["a", "b", "c"]]
    assert alike.describe() == f"Friedman's test: p = {alike.p:.3f}, so 3 methods on 3 settings are not told apart"
    apart = rank_methods(pd.DataFrame({"a": [1] * 7 + [3], "b": [2] * 8, "c": [3] * 7 + [1]}), lower=True)
    assert apart is not None
    assert apart.describe() == f"Friedman's test: p = {apart.p:.3f}"
    assert apart.find_cliques() == [["a", "b"], ["b", "c"]]  # ranks 1.25, 2, 2.75; critical 2.343 sqrt(12 / 48) = 1.17
    few = rank_methods(pd.DataFrame([range(7)] * 2), lower=True)
    assert few is not None
    assert few.describe().startswith(
        "7 methods on 2 settings can never be told apart by ranks: 3 settings are needed ("
    )
