"""Regret of tuning: by hand on a grid of five rates."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.regret import SELECT, TEST, find_regret, make_grids

RATES = [0.1, 0.2, 0.4, 0.8, 1.6]
"""One in each fifth of 0.08 to 2.56, whose fifths double."""


def test_five_draws_that_are_the_whole_grid_lose_nothing() -> None:
    chosen = np.array([[1.0], [2.0], [5.0], [4.0], [np.nan]])
    tested = np.array([[10.0], [20.0], [30.0], [99.0], [np.nan]])
    assert not find_regret(RATES, chosen, tested, 0.08, 2.56).any()


def test_half_of_the_draws_have_the_worse_value() -> None:
    """The best rate's draw has either value: 90, as on the grid, or the next best rate with 84 or 80."""
    chosen = np.array([[0, 0], [0, 0], [70.0, 0], [0, 0], [60.0, 60.0]])
    tested = np.array([[0, 0], [0, 0], [90.0, 0], [0, 0], [84.0, 80.0]])
    regret = find_regret(RATES, chosen, tested, 0.08, 2.56)
    assert set(regret) == {0.0, 6.0, 10.0}
    assert regret.mean() == pytest.approx(0.5 * (6 + 10) / 2, abs=0.2)


def test_a_fifth_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="a fifth of"):
        find_regret(RATES, np.zeros((5, 1)), np.zeros((5, 1)), 0.01, 2.56)


def test_grids_come_from_the_cells_of_two_seeds() -> None:
    """The first seed chooses, the second tests; a method with a missing cell is left out, one that diverged is not."""
    rows = [
        {"algorithm.name": "a", "algorithm.rho": rho, "training.lr": lr, "seed": seed, "status": "finished"}
        | {SELECT: 100 * lr + rho + seed, TEST: 200 * lr + rho + seed}
        for seed in (0, 100)
        for rho in (0.1, 0.2)
        for lr in (1.0, 2.0)
    ]
    rows[-1] |= {"status": "diverged", TEST: np.nan}
    missing = rows[0] | {"algorithm.name": "b", "status": "missing"}
    plain = [
        row | {"algorithm.name": "without a key", "algorithm.rho": np.nan}
        for row in rows
        if row["algorithm.rho"] == 0.1
    ]
    grids = make_grids(pd.DataFrame([*rows, missing, *plain]))
    assert grids.keys() == {"a", "without a key"}
    assert grids["without a key"][1].shape == (2, 1)
    rates, chosen, tested = grids["a"]
    assert rates == [1.0, 2.0]
    assert chosen == pytest.approx(np.array([[100.1, 100.2], [200.1, 200.2]]))
    assert tested == pytest.approx(np.array([[300.1, 300.2], [500.1, np.nan]]), nan_ok=True)
