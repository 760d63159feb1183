"""A search made by hand: which trial is best, what was spent, and where."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import PathCollection

from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.figures import main
from fedray.analysis.plots.search import (
    draw_all,
    draw_best_so_far,
    draw_heatmaps,
    draw_scatters,
    list_keys,
    list_trials,
)
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_markdown
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import history, sheet, write_run

DRAWS = ((0.01, 0.1, 60), (0.3, 0.1, 80), (0.1, 0.5, 70), (0.02, 0.9, None), (0.2, 0.9, 75))
"""ρ, lr, accuracy; the fourth was pruned after one of three rounds, at 90: it is not the best."""


def listed(algorithm: dict[str, Any], lr: float, select: str = "last10_validation_accuracy") -> dict[str, Any]:
    name = "-".join(map(str, [*algorithm.values(), lr]))
    return {
        "hash": name,
        "label": name,
        "config": {
            "seed": 0,
            "algorithm": algorithm,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "training": {"lr": lr, "rounds": 3},
            "runtime": {"actors": 1},
        },
        "search": {"keys": ["algorithm.rho", "training.lr"], "select": select},
    }


def searched(store: Tracker, validation: bool = True) -> SweepTable:
    """The validation accuracy is the test accuracy turned round, 100 - it, so that they select differently."""
    cells = [listed({"name": "fedsam", "rho": rho}, lr) for rho, lr, _ in DRAWS]
    parent = store.open_sweep(sheet("search", cells))
    for one, (_, _, accuracy) in zip(cells, DRAWS, strict=True):
        rows = history(*([accuracy] * 3 if accuracy else [90]))
        more = {"validation_accuracy": 100 - rows[0]["test_accuracy"]} if validation else {}
        ending = Ending(Status.FINISHED if accuracy else Status.PRUNED)
        write_run(store, one, [row | more for row in rows], ending, parent)
    return collect("search")


def test_the_best_row_is_first_with_every_searched_key(store: Tracker) -> None:
    """On validation the draw of 60 is best (40); the pruned one has a status of its own and is last."""
    table = build(searched(store))
    assert table.rows == [
        "fedsam ρ=0.01 lr=0.1",
        "fedsam ρ=0.1 lr=0.5",
        "fedsam ρ=0.2 lr=0.9",
        "fedsam ρ=0.3 lr=0.1",
        "fedsam ρ=0.02 lr=0.9",
    ]
    assert table.columns == ["dirichlet α=0.5"]
    text = to_markdown(table)
    assert "- (1 pruned)" in text
    assert "a search: best row first, by last10_validation_accuracy\n" in text


def test_best_so_far(store: Tracker) -> None:
    """Rounds 3, 6, 9, 10 (the pruned one: 1), 13; validation 40, then nothing better."""
    sweep = searched(store)
    assert list(list_trials(sweep)["_rounds"]) == [3, 3, 3, 1, 3]
    (line,) = draw_best_so_far(sweep)["dirichlet α=0.5"].axes[0].get_lines()
    assert list(line.get_xdata()) == [3, 6, 9, 10, 13]
    assert list(line.get_ydata()) == [40, 40, 40, 40, 40]


def test_trials_on_the_keys_own_scale(store: Tracker) -> None:
    """ρ spans a factor of 30: logarithmic; lr of 9: linear. The pruned trial is a hollow point of its own."""
    figures = draw_scatters(searched(store))
    rho, lr = (figures[f"{key} dirichlet α=0.5"].axes[0] for key in ("algorithm.rho", "training.lr"))
    assert (rho.get_xscale(), lr.get_xscale()) == ("log", "linear")
    whole, pruned = rho.get_lines()
    assert sorted(whole.get_xdata()) == [0.01, 0.1, 0.2, 0.3]
    assert (list(pruned.get_xdata()), list(pruned.get_ydata())) == ([0.02], [10])
    assert pruned.get_markerfacecolor() == "white"


def test_two_keys(store: Tracker) -> None:
    """Four finished trials by ρ (across) and lr (up): 40 at ρ = 0.01, lr = 0.1; untried combinations are hatched."""
    (figure,) = draw_heatmaps(searched(store)).values()
    grid = figure.axes[0].get_images()[0].get_array()
    assert grid.shape == (3, 4)
    assert figure.axes[0].patch.get_hatch(), "white is the best value"
    assert (float(grid[0, 0]), float(grid[0, 3])) == (40, 20)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0.01", "0.1", "0.2", "0.3"]


def test_many_values_are_points(store: Tracker) -> None:
    cells = [listed({"name": "fedsam", "rho": 0.01 + 0.01 * k}, 0.1 + 0.05 * k) for k in range(14)]
    parent = store.open_sweep(sheet("search", cells))
    for k, one in enumerate(cells):
        write_run(store, one, history(50 + k), parent=parent)
    (figure,) = draw_heatmaps(collect("search")).values()
    assert any(isinstance(one, PathCollection) for one in figure.axes[0].collections)


def test_a_grids_options_are_keys_too(store: Tracker) -> None:
    cells = [listed({"name": "fedsam", "rho": rho}, 0.1) for rho in (0.1, 0.2)]
    for one in cells:
        del one["search"]
    store.open_sweep(sheet("grid", cells))
    assert list_keys(collect("grid")) == ["algorithm.rho"]
    with pytest.raises(UserError, match="no trial with a value yet"):
        list_trials(collect("grid"))


def test_files_and_the_page(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = searched(store)
    main("search", kind="search", out=tmp_path)
    written = capsys.readouterr().out.split()
    assert all(Path(one).stat().st_size for one in written if one.endswith(".png"))
    assert sum("heatmap" in one for one in written) == 2
    assert set(draw_all(sweep)) == {"best-so-far", "trials", "heatmap"}
    text = make_page(sweep, ["last10_test_accuracy"])
    assert text.count('alt="trials: ') == 2
    assert text.count('alt="best-so-far: ') == 1
