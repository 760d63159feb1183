"""A search's draws, which keep their values, and the best of them."""

import math
from typing import Any

import pytest

from fedray.sweep.draws import draw, iter_points
from fedray.sweep.space import Searcher, format_range, is_at_edge
from fedray.sweep.stages import Known, Study, make_studies
from fedray.sweep.sweep import Sweep

SPACE = {
    "training.lr": {"loguniform": [0.001, 1]},
    "algorithm.rho": {"uniform": [0, 2]},
    "training.local_epochs": {"randint": [1, 5]},
    "algorithm.perturb": {"choice": ["all", "body"]},
}


def sweep(searcher: Any, samples: int = 9, **more: Any) -> Sweep:
    return Sweep.model_validate(
        {
            "name": "s",
            "base": {"training": {}, "algorithm": "fedsol"},
            "cases": [{"training.momentum": 0.0}, {"training.momentum": 0.9}],
            "grid": {"seed": [0, 1]},
            "search": SPACE,
            "samples": samples,
            "searcher": searcher,
            **more,
        }
    )


def studies(asked: Sweep) -> list[Study]:
    """Its studies, with a number in place of each hash."""
    return make_studies(asked, map(str, range(len(list(iter_points(asked))))))


def test_what_diverged_ranks_below_all_that_finished_and_is_never_the_best() -> None:
    (study,) = studies(sweep("random", samples=3, cases={"one": [{"training.momentum": 0.0}]}))
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


def test_random_draws_keep_their_values() -> None:
    """Other values would leave the finished cells of a search unfound."""
    drawn = [draw({"algorithm.rho": {"loguniform": [0.001, 0.1]}}, Searcher(), i)["algorithm.rho"] for i in range(3)]
    assert drawn == [0.0113742, 0.00143456, 0.0107693]
    other = draw({"algorithm.rho": {"loguniform": [0.001, 0.1]}}, Searcher(seed=1), 0)
    assert other["algorithm.rho"] != drawn[0]


def test_sobol_draws_keep_their_values() -> None:
    """Other values would leave the finished cells of a search unfound."""
    space = {"training.lr": {"loguniform": [0.01, 1]}, "algorithm.rho": {"loguniform": [0.01, 1]}}
    drawn = [draw(space, Searcher(name="sobol"), index) for index in range(5)]
    assert [one["training.lr"] for one in drawn] == [0.0317391, 0.609891, 0.11225, 0.0126363, 0.288632]
    assert [one["algorithm.rho"] for one in drawn] == [0.617226, 0.0785078, 0.288985, 0.0195103, 0.160237]


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


@pytest.mark.parametrize("searcher", ["random", "sobol"])
def test_a_value_does_not_depend_on_what_else_is_searched(searcher: str) -> None:
    """Nor on the order of the keys."""
    chosen = Searcher(name=searcher, seed=3)
    alone = [draw({"training.lr": SPACE["training.lr"]}, chosen, index) for index in range(8)]
    for space in (SPACE, dict(reversed(SPACE.items()))):
        asked = sweep(chosen.model_dump(), search=space, samples=8)
        assert [{"training.lr": values["training.lr"]} for values in studies(asked)[0].draws] == alone


def test_a_seed_is_no_setting() -> None:
    """Two cases and two seeds are two studies of two cells a draw, wherever the seed stands."""
    for grid in ({"seed": [0, 1], "training.lr_decay": [1.0, 0.9]}, {"training.lr_decay": [1.0, 0.9], "seed": [0, 1]}):
        asked = sweep("sobol", samples=2, grid=grid, cases={"one": [{"training.momentum": 0.0}]})
        seeds = [point["seed"] for point in iter_points(asked)]
        found = studies(asked)
        assert len(found) == 2
        for study in found:
            assert [[seeds[int(cell)] for cell in cells] for cells in study.cells] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("distribution", "best", "edge"),
    [
        ({"choice": [0.3, 0.1, 0.2]}, 0.1, True),
        ({"choice": [0.3, 0.1, 0.2]}, 0.2, False),
        ({"choice": ["all", "body"]}, "all", False),
        ({"randint": [1, 5]}, 4, True),
        ({"randint": [1, 5]}, 3, False),
        ({"uniform": [0, 2]}, 0.09, True),
        ({"uniform": [0, 2]}, 0.11, False),
        ({"uniform": [1, 1]}, 1.0, False),
        ({"loguniform": [0.01, 1]}, 0.012, True),
        ({"loguniform": [0.01, 1]}, 0.02, False),
    ],
)
def test_the_edge_is_where_the_range_ends(distribution: dict[str, list[Any]], best: Any, edge: bool) -> None:
    """log 1.2 / log 100 = 0.04 of the range of two decades, log 2 / log 100 = 0.15, log 90 / log 100 = 0.98."""
    assert is_at_edge(best, distribution) is edge


def test_ranges_as_a_reader_wants_them() -> None:
    assert [format_range(SPACE[key]) for key in SPACE] == ["[0.001, 1], log", "[0, 2]", "[1, 5)", "{all, body}"]
