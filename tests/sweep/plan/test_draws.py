"""The draws of a search, which cover each range and keep their values (tests/golden), and the best of them."""

import itertools
import math

import numpy as np
import pytest

from fedray.sweep.draws import draw, iter_points
from fedray.sweep.space import Searcher
from fedray.sweep.stages import Known, make_studies
from fedray.sweep.sweep import Sweep

SPACE = {
    "training.lr": {"loguniform": [0.001, 1]},
    "algorithm.rho": {"uniform": [0, 2]},
    "training.local_epochs": {"randint": [1, 5]},
    "algorithm.perturb": {"choice": ["all", "body"]},
}


def test_what_diverged_ranks_below_all_that_finished_and_is_never_the_best() -> None:
    asked = Sweep.model_validate(
        {
            "name": "s",
            "base": {"training": {}, "algorithm": "fedsol"},
            "grid": {"seed": [0, 1]},
            "search": {"algorithm.rho": {"uniform": [0, 2]}},
            "samples": 3,
            "searcher": "random",
        }
    )
    (study,) = make_studies(asked, map(str, range(len(list(iter_points(asked))))))
    cells = [cell for of_draw in study.cells for cell in of_draw]
    values = [None, 10.0, 50.0, 51.0, 60.0, None]
    known: Known = dict(zip(cells, values, strict=True))
    assert study.find_best(known, lower=False) == (1, 50.5, 1), "a draw of which a seed is missing has no mean"
    assert study.find_best(known, lower=True) == (1, 50.5, 1)
    assert study.find_best({}, lower=False) is None
    known = dict(zip(cells, [1.0, 2.0, 2.0, 1.0, 2.0, 1.0], strict=True))
    assert study.find_best(known, lower=False) == study.find_best(known, lower=True) == (0, 1.5, 3), (
        "the first of equal ones"
    )


def quantiles(key: str, count: int, seed: int = 0) -> np.ndarray:
    """The first draws of a key by `sobol`, as parts of its range."""
    searcher = Searcher(name="sobol", seed=seed)
    return np.array([draw({key: {"uniform": [0, 1]}}, searcher, index)[key] for index in range(count)])


def test_sobol_covers_every_range_evenly_and_more_draws_keep_the_first() -> None:
    """16 points of a scrambled Sobol sequence have one in each sixteenth of every range (Owen 1995)."""
    searcher = Searcher(name="sobol", seed=5)
    drawn = [draw(SPACE, searcher, i) for i in range(16)]
    u = [math.log(one["training.lr"] / 0.001) / math.log(1000) for one in drawn]
    assert sorted(int(16 * value) for value in u) == list(range(16))
    assert sorted(int(8 * one["algorithm.rho"]) for one in drawn) == list(range(16))
    assert sorted(one["training.local_epochs"] for one in drawn) == sorted([1, 2, 3, 4] * 4)
    assert sum(one["algorithm.perturb"] == "all" for one in drawn) == 8
    assert [draw(SPACE, searcher, i) for i in range(50)][:16] == drawn


def test_keys_do_not_move_together() -> None:
    """Of two keys, 8 draws are in two of the four quadrants, on a diagonal, for one pair of keys in 12 on average.

    Draws 1 and 2 are in opposite halves (2 ways), so are 3 and 4 (2), and of the last four two are in either half
    (6): 24 ways, and a pair of keys has the same or the opposite one in 2 of 24. With Sobol's own order it is every
    pair, with independent permutations 2 of 70. The mean square of the correlation is 1/7 for those; halves that are
    balanced early raise it a little: 0.18 in a simulation of 4,000 pairs. For draws in Sobol's order it is 0.59.
    """
    points = [quantiles(f"algorithm.option{k}", 8) for k in range(100)]
    pairs = list(itertools.combinations(points, 2))
    together = [len({(int(2 * u), int(2 * v)) for u, v in zip(x, y, strict=True)}) == 2 for x, y in pairs]
    assert 0.05 < np.mean(together) < 0.12
    assert np.mean([np.corrcoef(x, y)[0, 1] ** 2 for x, y in pairs]) == pytest.approx(0.18, abs=0.03)
