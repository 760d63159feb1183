"""Differences of methods, and curves by seconds, read back from their axes."""

from pathlib import Path

import pytest

from fedray.analysis.commands.figures import main
from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.comparison import draw_forests
from fedray.analysis.plots.curves import draw_curves
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write


def test_differences_of_methods_in_settings(store: Tracker, tmp_path: Path) -> None:
    """At α = 0.1 fedsam's seeds have 52 and 55, fedavg's 50 and 51: the mean difference is (2 + 4) / 2 = 3."""
    cells = [cell(method, alpha, seed) for method in (FEDAVG, SMALL) for alpha in (0.1, 0.5) for seed in (0, 1)]
    write(store, cells, [history(40, last) for last in (50, 51, 50, 51, 52, 55, 54, 57)])
    main("sweep", "differences", out=tmp_path)
    assert len(list(tmp_path.glob("sweep-differences-*"))) == 4
    (forest, *_) = draw_forests(compare(collect("sweep"), "fedavg", "final_test_accuracy")).values()
    assert forest.axes[0].lines[1].get_xdata() == pytest.approx([3.0])
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["p < 0.05 (Holm)", "not told apart"]


def test_curves_by_seconds(store: Tracker) -> None:
    """Two rounds of 0.5 s."""
    write(store, [cell(FEDAVG, 0.5, 0)], [history(60, 70)])
    sweep = collect("sweep")
    sweep.cells["metrics.seconds_per_round"] = 0.5
    (figure,) = draw_curves(sweep, x="seconds").values()
    assert figure.axes[0].lines[0].get_xdata() == pytest.approx([0.5, 1.0])
