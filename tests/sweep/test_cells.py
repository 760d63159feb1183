"""What planning a sweep costs: counted, not timed."""

import tracemalloc
from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.engine.problem import Problem
from fedray.sweep.cells import KEPT_PROBLEMS, Problems, cells
from fedray.sweep.grid import Sweep

BASE: dict[str, Any] = {
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "clients": {"total": 10, "per_round": 3},
}


def sweep(seeds: int, **grid: Any) -> Sweep:
    """20 cells a seed."""
    axes = {"algorithm": ["fedavg", "scaffold"], "training.lr": [0.01 * (k + 1) for k in range(10)]}
    return Sweep.model_validate({"name": "x", "base": BASE, "grid": axes | grid | {"seed": list(range(seeds))}})


def test_a_model_is_tried_once_per_kind_of_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 cells: one way to deal the data out (but for the seed), one model, two algorithms. 1 split, 2 models."""
    count = {"build": 0, "network": 0}
    for name in count:
        called = getattr(Problem, name)

        def counted(*arguments: Any, name: str = name, called: Any = called) -> Any:
            count[name] += 1
            return called(*arguments)

        monkeypatch.setattr(Problem, name, counted)
    problems = Problems()
    assert len(cells(sweep(10), problems)) == 200
    assert count == {"build": 1, "network": 2}


def test_every_kind_is_tried_before_anything_starts() -> None:
    """The second of two models takes texts, the data are images."""
    with pytest.raises(UserError, match="char_lstm"):
        cells(sweep(1, model=["mlp", "char_lstm"]), Problems())


def test_the_driver_holds_little_of_a_cell() -> None:
    """At most 20 kB of each of 1,000 cells, and of dealt data sets the latest few."""
    problems = Problems()
    cells(sweep(1), problems)  # imports and data
    tracemalloc.start()
    try:
        planned = cells(sweep(50), problems)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(planned) == 1000
    assert held / 1000 < 20_000
    for cell in planned.values():
        problems.problem(cell)
    assert len(problems._problems) == KEPT_PROBLEMS
