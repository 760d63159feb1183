"""Heat maps, read back from their axes, options of several methods along one axis, and a search made by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.figures import main
from fedray.analysis.plots.heatmap import draw_heatmap
from fedray.analysis.plots.search import draw_best_so_far, draw_heatmaps, draw_scatters, list_trials
from fedray.analysis.plots.sensitivity import draw_sensitivity
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_markdown
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, sheet, write, write_run
from tests.conftest import Call


def grid(store: Tracker) -> None:
    """FedSAM's two ρ under α = 0.5 and 0.1 with two seeds, α = 0.1 with ρ = 0.5 still to run; FedAvg has no ρ."""
    cells = [cell(method, alpha, seed) for alpha in (0.5, 0.1) for method in (SMALL, LARGE, FEDAVG) for seed in (0, 1)]
    write(store, cells, (60, 62, 70, 74, 50, 51, 30, 40, None, None, 20, 21))


def fields(figure: Figure) -> np.ndarray:
    return np.ma.filled(figure.axes[0].images[0].get_array().astype(float), np.nan)


def test_fields_are_means_over_seeds_and_the_best_is_framed(store: Tracker, tmp_path: Path) -> None:
    """α = 0.1 below: 35 and nothing; α = 0.5 above: 61 and 72. The best ρ of each α is framed. FedAvg has no panel."""
    grid(store)
    (figure,) = draw_heatmap(collect("sweep"), "algorithm.rho", "partition.alpha").values()
    area = figure.axes[0]
    np.testing.assert_array_equal(fields(figure), [[35, np.nan], [61, 72]])
    assert [tick.get_text() for tick in area.get_xticklabels()] == ["0.1", "0.5"]
    assert [tick.get_text() for tick in area.get_yticklabels()] == ["0.1", "0.5"]
    assert [text.get_text() for text in area.texts] == ["35.00", "61.00", "72.00"]
    assert [text.get_text() for text in area.texts if text.get_weight() == "bold"] == ["35.00", "72.00"]
    assert [text.get_color() for text in area.texts] == ["white", "black", "black"], "35 is black, 72 white, 61 at 0.70"
    frames = [patch for patch in area.patches if isinstance(patch, Rectangle)]
    assert [(frame.get_x(), frame.get_y()) for frame in frames] == [(-0.5, -0.5), (0.5, 0.5)]
    assert area.get_title() == "fedsam"
    averaged = "mean of the tests in the last fifth of the rounds, at most 10"
    said = f"mean over 2 seeds; {averaged}; hatched: no number; the best of a row is framed"
    assert figure.get_label() == f"{said}; without fedavg: one value of a key, or none"
    assert not any(frame.get_clip_on() for frame in frames), "half of it lies outside at an edge"
    (figure,) = draw_heatmap(collect("sweep"), "algorithm.rho", "partition.alpha", "rounds_to:35").values()
    assert "; never at the target, and in no mean: 1 of 6 runs of fedsam" in figure.get_label(), "that of 30"
    main("sweep", "heatmap", "algorithm.rho", y="partition.alpha", out=tmp_path / "figures")
    assert sorted(path.suffix for path in (tmp_path / "figures").iterdir()) == [".pdf", ".png"]
    for x, y, message in (
        ("algorithm.rho", "", "--y is required for a heatmap"),
        ("algorithm.rho", "partition.min_size", "--y: partition.min_size has one value in this sweep"),
        ("algorithm.rho", "seed", "--y: found seed; fields are means over seeds, methods and settings have panels"),
        ("algorithm.rho", "algorithm.rho", "--y: algorithm.rho is --x, too; another key is required"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            draw_heatmap(collect("sweep"), x, y)


SAME = "mofedsam.beta,fedcm.alpha,1-mimelite.beta"
CELLS = [
    FEDAVG,
    *({"name": "mofedsam", "beta": beta, "rho": 0.5} for beta in (0.1, 0.2)),
    *({"name": "mofedsam", "beta": 0.1, "rho": rho} for rho in (0.6, 0.7)),
    *({"name": "fedcm", "alpha": alpha} for alpha in (0.1, 0.2)),
    *({"name": "mimelite", "beta": beta} for beta in (0.9, 0.8)),
]


def write_cells(store: Tracker) -> None:
    """MimeLite's learning rate follows from its β, as in FedSAM's sweeps."""
    cells = [cell(one, 0.5, 0) for one in CELLS]
    for one in cells:
        beta = one["config"]["algorithm"].get("beta") if "mimelite" in one["hash"] else 0.0
        one["config"]["training"] = {"lr": round(0.1 * (1 - beta), 3)}
    write(store, cells, [50.0 + k for k in range(len(cells))])


def test_methods_share_an_axis_and_unknown_options_are_refused(store: Tracker, tmp_path: Path) -> None:
    """β = 0.1 and 0.2 of MoFedSAM, FedCM's α and MimeLite's 1 - β in one panel, and nothing else."""
    write_cells(store)
    ((_, figure),) = draw_sensitivity(collect("sweep"), SAME).items()
    (area,) = figure.axes
    assert area.get_xlabel() == "β (mofedsam), α (fedcm), 1 - β (mimelite)"
    named = [line for line in area.lines if not str(line.get_label()).startswith("_")]
    assert {line.get_label(): [*map(tuple, line.get_xydata())] for line in named} == {
        "mofedsam ρ=0.5": [(0.1, 51), (0.2, 52)],
        "fedcm": [(0.1, 55), (0.2, 56)],
        "mimelite": [(0.1, 57), (0.2, 58)],
    }
    main("sweep", "sensitivity", SAME, out=tmp_path / "drawn")
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} == {".png", ".pdf"}
    main("sweep", "sensitivity", SAME, "speedup:55/fedavg+test_accuracy", out=tmp_path / "of-one")
    for x, message in (("mofedsam.bta", "'mofedsam.bta'; did you mean 'mofedsam.beta'"), ("mofedsam.beta,", "''")):
        with pytest.raises(UserError, match=f"^--x: unknown name {re.escape(message)}"):
            main("sweep", "sensitivity", x)


DRAWS = ((0.01, 0.1, 60), (0.3, 0.1, 80), (0.1, 0.5, 70), (0.02, 0.9, None), (0.2, 0.9, 75))
"""ρ, lr, accuracy; the fourth was pruned after one of three rounds, at 90: it is not the best."""


def listed(algorithm: dict[str, Any], lr: float) -> dict[str, Any]:
    one = cell(algorithm, 0.5, 0)
    one["config"]["training"] = {"lr": lr, "rounds": 3}
    search = {"keys": ["algorithm.rho", "training.lr"], "select": "last10_validation_accuracy"}
    return one | {"hash": f"{one['hash']}-{lr}", "label": f"{one['label']}-{lr}", "search": search}


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


def test_a_search_has_its_best_row_first_figures_and_a_page(store: Tracker, tmp_path: Path, call: Call) -> None:
    """On validation the draw of 60 is best (40); the pruned one has a status of its own and is last."""
    sweep = searched(store)
    table = build(sweep)
    best_first = ((0.01, 0.1), (0.1, 0.5), (0.2, 0.9), (0.3, 0.1), (0.02, 0.9))
    assert table.rows == [f"fedsam ρ={rho} lr={lr}" for rho, lr in best_first]
    assert table.columns == ["dirichlet α=0.5"]
    text = to_markdown(table)
    assert "- (1 pruned)" in text
    assert "a search: best row first, by last10_validation_accuracy\n" in text
    # Rounds 3, 6, 9, 10 (the pruned one: 1), 13; validation 40, then nothing better. ρ spans a factor of 30:
    # logarithmic; lr of 9: linear. The pruned trial is a hollow point. Untried combinations are hatched.
    assert list(list_trials(sweep)["_rounds"]) == [3, 3, 3, 1, 3]
    (line,) = draw_best_so_far(sweep)["dirichlet α=0.5"].axes[0].get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([3, 6, 9, 10, 13], [40, 40, 40, 40, 40])
    figures = draw_scatters(sweep)
    rho, lr = (figures[f"{key} dirichlet α=0.5"].axes[0] for key in ("algorithm.rho", "training.lr"))
    assert (rho.get_xscale(), lr.get_xscale()) == ("log", "linear")
    whole, pruned = rho.get_lines()
    assert sorted(whole.get_xdata()) == [0.01, 0.1, 0.2, 0.3]
    assert (list(pruned.get_xdata()), list(pruned.get_ydata())) == ([0.02], [10])
    assert pruned.get_markerfacecolor() == "white"
    (figure,) = draw_heatmaps(sweep).values()
    grid = figure.axes[0].get_images()[0].get_array()
    assert grid.shape == (3, 4)
    assert figure.axes[0].patch.get_hatch(), "white is the best value"
    assert (float(grid[0, 0]), float(grid[0, 3])) == (40, 20)
    assert {"40.00", "20.00"} < {text.get_text() for text in figure.axes[0].texts}, "digits as in tables"
    out = call("figures", "search", "--kind", "search", "--out", str(tmp_path)).out
    assert "not drawn" not in out, "trials show the pruned one"
    assert "for its caption: a mark is a run, of one seed; hollow: ended early\n" in out
    assert "for its caption: finished runs behind the mean of a field: 1; hatched: none\n" in out
    assert "not drawn in curves, pruned: " in call("figures", "search", "--out", str(tmp_path / "all")).out
    written = out.split()
    assert all(Path(one).stat().st_size for one in written if one.endswith(".png"))
    counts = {what: sum(what in one for one in written) for what in ("best-so-far", "trials", "heatmap")}
    assert counts == {"best-so-far": 2, "trials": 4, "heatmap": 2}
    text = make_page(sweep, ["last10_test_accuracy"])
    assert (text.count("<figcaption>trials: "), text.count("<figcaption>best-so-far: ")) == (2, 1)


def test_many_values_are_points(store: Tracker) -> None:
    cells = [listed({"name": "fedsam", "rho": 0.01 + 0.01 * k}, 0.1 + 0.05 * k) for k in range(14)]
    parent = store.open_sweep(sheet("search", cells))
    for k, one in enumerate(cells):
        write_run(store, one, history(50 + k), parent=parent)
    (figure,) = draw_heatmaps(collect("search")).values()
    assert any(isinstance(one, PathCollection) for one in figure.axes[0].collections)


def test_a_grid_has_no_trials(store: Tracker) -> None:
    """Its seeds would count as trials. A search that has not run has none yet."""
    cells = [listed({"name": "fedsam", "rho": rho}, 0.1) for rho in (0.1, 0.2)]
    store.open_sweep(sheet("search", cells))
    with pytest.raises(UserError, match="no trial with a value yet"):
        list_trials(collect("search"))
    for one in cells:
        del one["search"]
    store.open_sweep(sheet("grid", cells))
    with pytest.raises(UserError, match="--kind: found search; grid has no `search`; --kind sensitivity and heatmap"):
        main("grid", kind="search")
