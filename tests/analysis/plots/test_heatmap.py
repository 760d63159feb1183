"""Heat maps, read back from their axes, and options of several methods that mean the same along one axis."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.plots.heatmap import draw_heatmap
from fedray.analysis.plots.sensitivity import draw_sensitivity
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, write


def grid(store: Tracker) -> None:
    """FedSAM's two ρ under α = 0.5 and 0.1 with two seeds, α = 0.1 with ρ = 0.5 still to run; FedAvg has no ρ."""
    cells = [cell(method, alpha, seed) for alpha in (0.5, 0.1) for method in (SMALL, LARGE, FEDAVG) for seed in (0, 1)]
    write(store, cells, (60, 62, 70, 74, 50, 51, 30, 40, None, None, 20, 21))


def fields(figure: Figure) -> np.ndarray:
    return np.ma.filled(figure.axes[0].images[0].get_array().astype(float), np.nan)


def test_fields_are_means_over_seeds_and_the_best_is_framed(store: Tracker, tmp_path: Path) -> None:
    """α = 0.1 below: 35 and nothing; α = 0.5 above: 61 and 72, which is the best. FedAvg has no panel."""
    grid(store)
    (figure,) = draw_heatmap(collect("sweep"), "algorithm.rho", "partition.alpha").values()
    area = figure.axes[0]
    np.testing.assert_array_equal(fields(figure), [[35, np.nan], [61, 72]])
    assert [tick.get_text() for tick in area.get_xticklabels()] == ["0.1", "0.5"]
    assert [tick.get_text() for tick in area.get_yticklabels()] == ["0.1", "0.5"]
    assert [text.get_text() for text in area.texts] == ["35.00", "61.00", "72.00"]
    assert [text.get_text() for text in area.texts if text.get_weight() == "bold"] == ["72.00"]
    assert [text.get_color() for text in area.texts] == ["white", "black", "black"], "35 is black, 72 white, 61 at 0.70"
    (frame,) = area.patches
    assert (frame.get_x(), frame.get_y()) == (0.5, 0.5)
    assert area.get_title() == "fedsam"
    main("sweep", "heatmap", "algorithm.rho", y="partition.alpha", out=tmp_path / "figures")
    assert sorted(path.suffix for path in (tmp_path / "figures").iterdir()) == [".pdf", ".png"]


def test_the_smallest_loss_is_the_best(store: Tracker) -> None:
    """Losses are 1 - accuracy / 100, so the field is the same; the smallest one is framed."""
    grid(store)
    (figure,) = draw_heatmap(collect("sweep"), "partition.alpha", "algorithm.rho", "test_loss").values()
    np.testing.assert_allclose(fields(figure), [[0.65, 0.39], [np.nan, 0.28]])
    assert [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold"] == ["0.2800"]


def test_methods_are_panels_with_one_scale(store: Tracker) -> None:
    """MoFedSAM's panel has the columns of FedSAM's, though it ran with another ρ, and the same colours."""
    both = [
        {"name": name, "rho": rho} for name, rhos in (("fedsam", (0.1, 0.5)), ("mofedsam", (0.1, 0.9))) for rho in rhos
    ]
    cells = [cell(method, alpha, 0) for alpha in (0.5, 0.1) for method in both]
    write(store, cells, [10 * k for k in range(len(cells))])
    (figure,) = draw_heatmap(collect("sweep"), "algorithm.rho", "partition.alpha").values()
    first, second = figure.axes[:2]
    assert (first.get_title(), second.get_title()) == ("fedsam", "mofedsam")
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0.1", "0.5", "0.9"]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 70)


def test_refusals(store: Tracker) -> None:
    grid(store)
    sweep = collect("sweep")
    for x, y, message in (
        ("", "partition.alpha", "--x is required for a heatmap"),
        ("algorithm.rho", "", "--y is required for a heatmap"),
        ("algorithm.rho", "partition.alhpa", "--y: unknown name 'partition.alhpa'; did you mean 'partition.alpha'?"),
        ("algorithm.rho", "partition.min_size", "--y: partition.min_size has one value in this sweep"),
    ):
        with pytest.raises(UserError) as error:
            draw_heatmap(sweep, x, y)
        assert message in str(error.value)


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


def test_methods_share_an_axis(store: Tracker, tmp_path: Path) -> None:
    """β = 0.1 and 0.2 of MoFedSAM, FedCM's α and MimeLite's 1 - β in one panel, and nothing else."""
    write_cells(store)
    ((_, figure),) = draw_sensitivity(collect("sweep"), SAME).items()
    (area,) = figure.axes
    assert area.get_xlabel() == "β (mofedsam), α (fedcm), 1 - β (mimelite)"
    named = [line for line in area.lines if not str(line.get_label()).startswith("_")]
    drawn = {line.get_label(): [*map(tuple, line.get_xydata())] for line in named}
    assert drawn == {
        "mofedsam ρ=0.5": [(0.1, 51), (0.2, 52)],
        "fedcm": [(0.1, 55), (0.2, 56)],
        "mimelite": [(0.1, 57), (0.2, 58)],
    }
    main("sweep", "sensitivity", SAME, out=tmp_path / "drawn")
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} == {".png", ".pdf"}


def test_flat_lines_are_methods_without_numbers_of_their_own(store: Tracker) -> None:
    """By MoFedSAM's β FedAvg is a flat line; FedCM's two values of α are none."""
    write_cells(store)
    for figure in draw_sensitivity(collect("sweep"), "algorithm.beta").values():
        for area in figure.axes:
            named = [line for line in area.lines if not str(line.get_label()).startswith("_")]
            flat = {line.get_label() for line in named if line.get_marker() == ""}
            assert flat <= {"fedavg"}
            assert {line.get_label() for line in named} - flat == {"mofedsam ρ=0.5"}


def test_unknown_options_are_refused(store: Tracker) -> None:
    write_cells(store)
    for x, message in (
        ("mofedsam.bta", "--x: unknown name 'mofedsam.bta'; did you mean 'mofedsam.beta'"),
        ("fedavg.beta", "--x: unknown name 'fedavg.beta'"),
        ("mofedsam.beta,", "--x: unknown name ''"),
    ):
        with pytest.raises(UserError) as error:
            main("sweep", "sensitivity", x)
        assert str(error.value).startswith(message)
