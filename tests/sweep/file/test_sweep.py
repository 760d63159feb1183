"""Sweep files as objects: axes of cases, and draws."""

from pathlib import Path
from typing import Any

import pytest

from fedray.cells.cell import get_dotted
from fedray.sweep.draws import find_axes, iter_points
from fedray.sweep.run import describe_partial
from fedray.sweep.sweep import Sweep
from tests.sweep.running import write


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    return write(folder, {"name": "s", "base": {"seed": 3}, **sweep})


def test_axes_of_cases_are_multiplied_and_later_ones_win(tmp_path: Path) -> None:
    """2 x 2 cases x 2 seeds, in the file's order: the second axis overrides the first."""
    path = written(
        tmp_path,
        {"cases": {"a": [{"x": 1}, {"x": 2}], "b": [{"y": 1}, {"y": 2, "x": 9}]}, "grid": {"seed": [0, 1]}},
    )
    assert [(p["x"], p["y"], p["seed"]) for p in iter_points(Sweep.load(path))] == [
        (1, 1, 0),
        (1, 1, 1),
        (9, 2, 0),
        (9, 2, 1),
        (2, 1, 0),
        (2, 1, 1),
        (9, 2, 0),
        (9, 2, 1),
    ]


def test_an_option_in_the_grid_belongs_to_the_method_of_a_case(tmp_path: Path) -> None:
    """The case names the method and leaves `rho` open, so nothing is given twice."""
    path = written(tmp_path, {"cases": [{"algorithm": "fedsam"}], "grid": {"algorithm.rho": [0.1, 0.2]}})
    points = [point["algorithm"] for point in iter_points(Sweep.load(path))]
    assert points == [{"name": "fedsam", "rho": 0.1}, {"name": "fedsam", "rho": 0.2}]


def test_smoke_replaces_an_axis_of_cases_and_keeps_the_others(tmp_path: Path) -> None:
    sweep = {"cases": {"a": [{"x": 1}, {"x": 2}], "b": [{"y": 1}, {"y": 2}]}, "smoke": {"cases": {"a": [{"x": 7}]}}}
    path = written(tmp_path, sweep)
    assert len(list(iter_points(Sweep.load(path)))) == 4
    assert list(iter_points(Sweep.load(path, smoke=True))) == [{"seed": 3, "x": 7, "y": 1}, {"seed": 3, "x": 7, "y": 2}]
    one = written(tmp_path, {"cases": [{"x": 1}, {"x": 2}], "smoke": {"cases": [{"x": 7}]}})
    assert list(iter_points(Sweep.load(one, smoke=True))) == [{"seed": 3, "x": 7}]


FEDSAM = {"name": "fedsam", "rho": [0.05, 0.1]}
OF_ONE_METHOD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a list inside an entry": ({"grid": {"algorithm": ["fedavg", FEDSAM]}}, ["fedavg", "fedsam .05", "fedsam .1"]),
    "a list inside a case": (
        {"cases": [{"algorithm": FEDSAM}, {"algorithm": "fedavg"}]},
        ["fedsam .05", "fedsam .1", "fedavg"],
    ),
    "the grid of a case": (
        {"cases": [{"algorithm": "fedavg"}, {"algorithm": "fedsam", "grid": {"algorithm.rho": [0.05, 0.1]}}]},
        ["fedavg", "fedsam .05", "fedsam .1"],
    ),
    "a key that two of three have": (
        {"grid": {"algorithm": ["fedsam", "fedavg", "fedtoga"], "algorithm.rho": [0.05, 0.1]}},
        ["fedsam .05", "fedsam .1", "fedavg", "fedtoga .05", "fedtoga .1"],
    ),
    "a key that no method of the cases lacks": (
        {"base": {"algorithm": "fedavg"}, "cases": [{"algorithm": "fedsam"}], "grid": {"algorithm.rho": [0.05, 0.1]}},
        ["fedsam .05", "fedsam .1"],
    ),
    "a key that is searched": (
        {"cases": [{"algorithm": "fedavg"}, {"algorithm": "fedsam"}], "search": {"algorithm.rho": {"choice": [0.1]}}},
        ["fedavg", "fedsam .1"],
    ),
    "a list that is one value": (
        {"grid": {"algorithm": ["fedavg"], "model": [{"name": "mlp", "hidden": [8, 8]}]}},
        ["fedavg"],
    ),
    "an entry of a plain section": (
        {"grid": {"algorithm": ["fedavg"], "training": [{"lr": 0.1}, {"lr": [0.2, 0.3], "rounds": 5}]}},
        ["fedavg", "fedavg", "fedavg"],
    ),
}


@pytest.mark.parametrize("case", OF_ONE_METHOD)
def test_one_method_has_values_of_its_own(case: str) -> None:
    document, expected = OF_ONE_METHOD[case]
    points = list(iter_points(Sweep.model_validate({"name": "x", "base": {}, **document})))
    found = [f"{get_dotted(p, 'algorithm.name') or p['algorithm']} {get_dotted(p, 'algorithm.rho')}" for p in points]
    assert [name.removesuffix(" None").replace(" 0.", " .") for name in found] == expected
    assert all(point.get("model") in (None, {"name": "mlp", "hidden": [8, 8]}) for point in points)


def test_the_names_of_methods_that_lack_a_key_are_printed() -> None:
    grid = {"algorithm": ["fedavg", {"name": "fedsam"}, "fedprox"], "algorithm.rho": [0.1], "algorithm.rhoo": [1]}
    assert list(describe_partial(Sweep.model_validate({"name": "x", "base": {}, "grid": grid}))) == [
        "x: algorithm.rho varies for fedsam; without rho: fedavg, fedprox"
    ], "a key that no method has is applied, and refused"


def test_what_varies_is_named_key_by_key(tmp_path: Path) -> None:
    """The keys of a section that differ; values that all configurations have in common are not named."""
    training = [{"training": {"rounds": 3, "lr": 0.1}}, {"training": {"rounds": 5, "lr": 0.1, "momentum": 0.9}}]
    path = written(tmp_path, {"cases": training, "grid": {"model": [{"name": "mlp"}], "clients.total": [5, 6]}})
    sweep = Sweep.load(path)
    assert [key for key, varies in find_axes(sweep.keys, iter_points(sweep)).items() if varies] == [
        "training.rounds",
        "clients.total",
        "training.momentum",
    ]


def test_draws_are_keyed_by_key_and_index(tmp_path: Path) -> None:
    """A longer search begins with the shorter one, another seed or key changes no draw, and draws are short numbers."""

    def drawn(samples: int, **more: Any) -> list[float]:
        search = {"rho": {"loguniform": [0.001, 0.1]}, **more}
        path = written(tmp_path, {"search": search, "samples": samples, "grid": {"seed": [0, 1]}})
        return [point["rho"] for point in iter_points(Sweep.load(path))]

    short = drawn(3)
    assert len(set(short)) == 3
    assert short[:3] == short[3:], "the same draws for every seed"
    assert drawn(5)[:3] == drawn(3, alpha={"choice": [1, 2]})[:3] == short[:3]
    assert all(value == float(f"{value:.6g}") and 0.001 <= value <= 0.1 for value in short)
