"""Bars of methods and of layers."""

from pathlib import Path

import pytest

from fedray.analysis.commands.figures import main
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.bars import draw_bars, draw_methods
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, rows, write


def test_a_bar_for_each_method(store: Tracker, tmp_path: Path) -> None:
    """Means over seeds, 20 and 50; a run that has not finished has none."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0), cell(LARGE, 0.1, 0)]
    write(store, cells, [10, 30, 50])
    (figure,) = draw_methods(collect("sweep"), "test_accuracy").values()
    (area,) = figure.axes
    assert [bar.get_height() for bar in area.patches] == [20, 50]
    assert [text.get_text() for text in area.get_xticklabels()] == ["fedavg", "fedsam"]
    main("sweep", "methods", metric="test_accuracy", out=tmp_path)
    assert len(list(tmp_path.glob("sweep-methods-*"))) == 2


def test_bars_of_layers_at_a_round(store: Tracker) -> None:
    """Layers in their own order (fc2 before fc10), mean of the seeds; round 1, or the last one."""
    cells = [cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1), cell(FEDAVG, 0.5, 0)]
    layers = [rows(lambda_fc10=(1, 2), lambda_fc2=(3, 4)), rows(lambda_fc10=(3, 6), lambda_fc2=(5, 6)), history(1, 2)]
    write(store, cells, layers)
    for at, heights in ((None, [5, 4]), (1, [4, 2])):
        (figure,) = draw_bars(collect("sweep"), "lambda", at).values()
        (axes,) = figure.axes
        assert [text.get_text() for text in axes.get_xticklabels()] == ["fc2", "fc10"]
        (drawn,) = [one for one in axes.containers if one.get_label() == "fedsam"]
        assert [patch.get_height() for patch in drawn.patches] == heights
    with pytest.raises(UserError, match="--round: found 3; lambda_fc2 was logged at 1, 2"):
        draw_bars(collect("sweep"), "lambda", 3)
