"""Tune asks for one cell after another and receives little about each: counted, not timed."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

from ray.tune.search import Searcher

from fedray.algorithms.fedsam import FedSAM
from fedray.sweep.draws import find_axes
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.sweep import Sweep
from fedray.sweep.tune import NextCells
from tests.sweep.plan.test_cells import BASE, sweep


def searcher(grid: Sweep) -> tuple[NextCells, list[str]]:
    sheet, points = make_sheet(grid, Problems())
    shares: Any = SimpleNamespace(give=lambda cell, left: 1)
    axes = find_axes(grid.keys, (point for point, _ in points))
    return NextCells([*axes], list(sheet.cells.values()), shares), list(sheet.cells)


def test_a_grid_is_handed_out_cell_by_cell_in_its_order() -> None:
    """40 cells; after the last one Tune need not ask again."""
    asked, hashes = searcher(sweep(2))
    assert [asked.suggest(str(k))["cell"].hash for k in range(40)] == hashes
    assert asked.suggest("40") == Searcher.FINISHED, "though none has ended: idle processes can go"


def test_tune_copies_no_configuration() -> None:
    """Tune deep-copies a suggestion, flattens it and makes a directory's name of it."""
    asked, hashes = searcher(sweep(1))
    suggestion = asked.suggest("0")
    cell = suggestion["cell"]
    assert copy.deepcopy(suggestion)["cell"] is cell
    assert str(cell) == hashes[0]
    there = pickle.loads(pickle.dumps(cell))  # noqa: S301 (what was just made)
    assert there == cell
    assert "run" not in vars(there), "a class that is missing there is told of by the trial"
    assert there.run.algorithm.name == "fedavg"


def test_a_trials_config_has_the_axes_by_name() -> None:
    """A section that is chosen by name gives its name, and its options have keys of their own. The second
    case leaves ρ to its default.
    """
    cases: list[dict[str, Any]] = [
        {"algorithm": "fedavg"},
        {"algorithm": {"name": "fedsam"}},
        {"algorithm": {"name": "fedsam", "rho": 0.1}},
    ]
    alphas = {"partition": [{"name": "dirichlet", "alpha": alpha} for alpha in (0.1, 0.5)], "seed": [0]}
    asked, _ = searcher(Sweep.model_validate({"name": "x", "base": BASE, "cases": cases, "grid": alphas}))
    configs = [asked.suggest(str(k)) for k in range(6)]
    assert [{key: config[key] for key in config if key not in ("cell", "actors")} for config in configs] == [
        {"algorithm": name, **rho, "partition": "dirichlet", "partition.alpha": alpha, "seed": 0}
        for name, rho in (
            ("fedavg", {}),
            ("fedsam", {"algorithm.rho": FedSAM().rho}),
            ("fedsam", {"algorithm.rho": 0.1}),
        )
        for alpha in (0.1, 0.5)
    ]
