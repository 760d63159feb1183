"""Cost of planning a sweep: counted, not timed."""

import tracemalloc
from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.engine.problem import Problem
from fedray.sweep.plan import KEPT_PROBLEMS, Problems, make_sheet
from fedray.sweep.sweep import Sweep

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
    """200 cells: one data split (except for the seed), one model, two algorithms. 1 split, 2 models."""
    count = {"build": 0, "build_network": 0}
    for name in count:
        called = getattr(Problem, name)

        def counted(*arguments: Any, name: str = name, called: Any = called) -> Any:
            count[name] += 1
            return called(*arguments)

        monkeypatch.setattr(Problem, name, counted)
    assert len(make_sheet(sweep(10), Problems())[0].cells) == 200
    assert count == {"build": 1, "build_network": 2}


DIFFERENT: list[dict[str, Any]] = [
    {"seed": 0},
    {"seed": 1},
    {"partition": "iid"},
    {"clients.total": 12},
    {"data.validation": {"fraction": 0.3}},
    {"evaluation.personal.split": "share"},
    {"model": {"name": "sl_vit", "dim": 8, "depth": 1, "heads": 1, "resize": 16}},
    {"training.lr": 0.5},
]


def test_cells_share_a_split_only_where_it_is_the_same() -> None:
    """Each cell has the samples that it would have alone, and its own configuration."""
    base = BASE | {"algorithm": "fedavg", "data": {"name": "digits"}, "evaluation": {"personal": {}}}
    problems = Problems()
    sheet, _ = make_sheet(Sweep.model_validate({"name": "x", "base": base, "cases": DIFFERENT}), problems)
    splits = []
    for cell in sheet.cells.values():
        given, alone = problems.get_problem(cell), Problem.build(cell.run)
        assert given.config is cell.run
        assert given.data.input_shape == alone.data.input_shape
        assert given.pack_split() == alone.pack_split()
        splits.append(given.pack_split())
    assert len(splits) == len(DIFFERENT)
    assert len(set(splits)) == len(DIFFERENT) - 2  # the model and the learning rate deal nothing out


def test_every_kind_is_tried_before_anything_starts() -> None:
    """The second of two models takes texts, the data are images; the second of two numbers of clients is above 1,437
    samples.
    """
    with pytest.raises(UserError, match="char_lstm"):
        make_sheet(sweep(1, model=["mlp", "char_lstm"]), Problems())
    with pytest.raises(UserError, match=r"partition\.min_size: 2000 clients"):
        make_sheet(sweep(1, **{"clients.total": [10, 2000]}), Problems())


def test_the_driver_holds_little_of_a_cell() -> None:
    """At most 20 kB for each of 1,000 cells, and only the latest few split data sets."""
    make_sheet(sweep(1), Problems())  # imports and data
    tracemalloc.start()
    try:
        problems = Problems()
        planned = make_sheet(sweep(50), problems)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(planned[0].cells) == 1000
    assert held / 1000 < 20_000
    for cell in planned[0].cells.values():
        problems.get_problem(cell)
    assert len(problems._problems) == KEPT_PROBLEMS


def test_settings_that_agree_in_four_digits_have_labels_of_their_own() -> None:
    """Before, MLflow averaged them. Labels that four digits tell apart stay, and that of a cell that comes twice."""
    grid = {"training.lr": [0.1, 0.10001, 0.1000001, 0.2], "seed": [0, 1]}
    found = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "grid": grid})
    cells = make_sheet(found, Problems())[0].cells
    labels = [cell.label for cell in cells.values()]
    assert labels[::2] == [f"fedavg dirichlet(0.5) lr={lr} s0" for lr in ("0.1", "0.10001", "0.1000001", "0.2")]
    assert len({*labels}) == 8
    for key in ("algorithm.rho", "partition.alpha"):
        base = BASE | {"algorithm": {"name": "fedsam", "rho": 0.1}}
        found = Sweep.model_validate({"name": "x", "base": base, "grid": {key: [0.3, 0.300001]}})
        assert len({cell.label for cell in make_sheet(found, Problems())[0].cells.values()}) == 2
