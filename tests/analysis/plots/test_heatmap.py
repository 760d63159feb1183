"""Heat maps, read back from their axes."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedray.analysis.commands.figures import main
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.heatmap import draw_heatmap
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, rows, write


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


def test_of_an_unranked_metric_no_field_is_framed(store: Tracker) -> None:
    cells = [cell(method, alpha, 0) for alpha in (0.5, 0.1) for method in (SMALL, LARGE)]
    own = {"plugins": {"unranked": ["angle"]}}
    write(store, [one | own for one in cells], [rows(angle=(float(k),)) for k in range(4)])
    (figure,) = draw_heatmap(collect("sweep"), "partition.alpha", "algorithm.rho", "angle").values()
    assert not figure.axes[0].patches
    assert {text.get_weight() for text in figure.axes[0].texts} == {"normal"}
    assert figure.get_supxlabel() == "one seed"


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
