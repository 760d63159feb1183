"""What the figures draw, read back from their axes."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from analysis.collect import collect
from analysis.figures import WIDTH, curves, main, sensitivity, styles
from fedray.errors import UserError
from fedray.tracking import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write


def test_curves_are_means_over_finished_seeds_with_a_band(store: Tracker, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """fedavg: seeds 10, 20 and 30, 40: means 20 and 30; the band is ± |30-10|/sqrt 2 = 14.14. ρ=0.1 has one finished
    seed: its own curve and no band; the diverged one is not drawn, but named. Each setting is a file of its own.
    """
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1), cell(SMALL, 0.1, 0)]
    outcomes = [("finished", history(10, 20)), ("finished", history(30, 40)), ("finished", history(50, 60)),
                ("diverged", history(99)), ("finished", history(7, 8))]
    write(store, cells, {one["hash"]: o for one, o in zip(cells, outcomes, strict=True)})
    figures = curves(collect("sweep"))
    assert list(figures) == ["dirichlet α=0.5", "dirichlet α=0.1"]
    axes, = figures["dirichlet α=0.5"].axes
    drawn = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert drawn == {"fedavg": [[1, 20], [2, 30]], "fedsam": [[1, 50], [2, 60]]}
    band, = axes.collections
    assert band.get_paths()[0].get_extents().extents == pytest.approx([1, 20 - 200**.5, 2, 30 + 200**.5])
    other, = figures["dirichlet α=0.1"].axes
    assert [line.get_color() for line in other.lines] == [axes.lines[1].get_color()], "a method looks alike everywhere"
    assert figures["dirichlet α=0.5"].get_figwidth() == WIDTH
    main("sweep", out=tmp_path / "figures")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == [f"sweep-curves-dirichlet-alpha={alpha}.{kind}" for alpha in (0.1, 0.5) for kind in ("pdf", "png")]
    assert (tmp_path / "figures" / names[0]).read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figures" / names[1]).read_bytes().startswith(b"\x89PNG")
    assert "not drawn, diverged: fedsam-0.1-0.5-1" in capsys.readouterr().out


def test_sensitivity_over_a_hyper_parameter(store: Tracker) -> None:
    """ρ = 0.1: 60 and 62, mean 61 ± 1.41; ρ = 0.5: 70. fedavg has no ρ: a level line at 50."""
    cells = [cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1), cell(LARGE, 0.5, 0), cell(FEDAVG, 0.5, 0)]
    write(store, cells, {one["hash"]: ("finished", history(v)) for one, v in zip(cells, (60, 62, 70, 50), strict=True)})
    axes, = next(iter(sensitivity(collect("sweep"), "algorithm.rho").values())).axes
    container, = axes.containers
    line, _, (bars,) = container.lines
    assert np.asarray(line.get_xydata()).tolist() == [[0.1, 61], [0.5, 70]]
    assert bars.get_segments()[0][:, 1] == pytest.approx([61 - 2**.5, 61 + 2**.5])
    level, = [one for one in axes.lines if one.get_label() == "fedavg"]
    assert np.asarray(level.get_ydata()).tolist() == [50, 50]


def test_sensitivity_over_heterogeneity(store: Tracker) -> None:
    cells = [cell(FEDAVG, alpha, 0) for alpha in (0.5, 0.1, 10)]
    write(store, cells, {one["hash"]: ("finished", history(v)) for one, v in zip(cells, (60, 40, 90), strict=True)})
    (setting, figure), = sensitivity(collect("sweep"), "partition.alpha").items()
    assert setting == "dirichlet"
    line, _, _ = figure.axes[0].containers[0].lines
    assert np.asarray(line.get_xydata()).tolist() == [[0.1, 40], [0.5, 60], [10, 90]]
    assert figure.axes[0].get_xscale() == "log"


def test_lines_differ_in_grey() -> None:
    assert len({(str(style["linestyle"]), style["marker"]) for style in islice(styles(), 40)}) == 40


@pytest.mark.parametrize(("kind", "x", "metric", "message"), [
    ("curve", "", "", "--kind: unknown name 'curve'; did you mean 'curves'?"),
    ("sensitivity", "", "", "--x: sensitivity needs a key"),
    ("sensitivity", "algorithm.roh", "", "--x: unknown name 'algorithm.roh'; did you mean 'algorithm.rho'?"),
    ("sensitivity", "algorithm.rho", "", "--x: algorithm.rho has one value in this sweep"),
    ("sensitivity", "algorithm.name", "", "--x: the values of algorithm.name are not numbers: fedavg, fedsam"),
    ("curves", "", "accuracy", "--metric: found 'accuracy'; the runs log test_accuracy"),
])
def test_refusals(store: Tracker, kind: str, x: str, metric: str, message: str) -> None:
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, {one["hash"]: ("finished", history(70)) for one in cells})
    with pytest.raises(UserError) as error:
        main("sweep", kind, x, metric)
    assert message in str(error.value)
