"""Bars, differences of methods, curves by seconds, loss surfaces and classes, read back from their axes."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.plots.bars import draw_bars, draw_forests, draw_methods
from fedray.analysis.plots.clients import draw_classes, draw_partitions
from fedray.analysis.tables.build import build
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, rows, write


def test_a_bar_for_each_method(store: Tracker, tmp_path: Path) -> None:
    """Means over seeds, 20 and 50; a run that has not finished has none."""
    write(store, [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0), cell(LARGE, 0.1, 0)], [10, 30, 50])
    (figure,) = draw_methods(collect("sweep"), "test_accuracy").values()
    (area,) = figure.axes
    assert [bar.get_height() for bar in area.patches] == [20, 50]
    assert [text.get_text() for text in area.get_xticklabels()] == ["fedavg", "fedsam"]
    assert [(text.get_text(), text.get_rotation()) for text in area.texts] == [("20.00", 0), ("50.00", 0)]
    said = "error bars: ± standard deviation over 1 to 2 seeds"
    assert figure.get_label() == said
    figure.draw_without_rendering()
    top = 20 + 200**0.5
    assert area.texts[0].get_window_extent().y0 > area.transData.transform((0, top))[1], "above the error bar"
    assert all(text.get_window_extent().y1 < area.bbox.y1 for text in area.texts), "below the title"
    main("sweep", "methods", metric="test_accuracy", out=tmp_path)
    assert len(list(tmp_path.glob("sweep-methods-*"))) == 2


def test_bars_of_rounds_have_the_notes_of_the_table(store: Tracker) -> None:
    """To 80 %: fedsam's seed 1 never gets there, and at ρ = 0.5 neither does; every second round is tested."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1)]
    curves = [(70, 80), (80, 80), (80, 80), (1, 2), (1, 2), (1, 2)]
    write(store, cells, [[row | {"round": 2 * row["round"]} for row in history(*c)] for c in curves])
    sweep, told = collect("sweep"), build(collect("sweep"), "rounds_to:80").notes
    (figure,) = draw_methods(sweep, "rounds_to:80").values()
    (area,) = figure.axes
    notes = [
        "at the target when first tested, in round 2, or earlier: runs of fedavg, fedsam ρ=0.1",
        "tests are up to 2 rounds apart, so the target may have been met earlier",
        "never at the target, and in no mean: 1 of 2 runs of fedsam ρ=0.1, 2 of 2 runs of fedsam ρ=0.5",
    ]
    assert [note for note in told if note in notes] == notes[:2], "its entries say how many never do"
    assert figure.get_label().endswith("; " + "; ".join(notes))
    assert [bar.get_height() for bar in area.patches] == [3, 2]
    figure.draw_without_rendering()
    box = area.yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, "a long title has two lines"


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


def test_differences_of_methods_in_settings(store: Tracker, tmp_path: Path) -> None:
    """At α = 0.1 fedsam's seeds have 52 and 55, fedavg's 50 and 51: the mean difference is (2 + 4) / 2 = 3."""
    cells = [cell(method, alpha, seed) for method in (FEDAVG, SMALL) for alpha in (0.1, 0.5) for seed in (0, 1)]
    write(store, cells, [history(40, last) for last in (50, 51, 50, 51, 52, 55, 54, 57)])
    main("sweep", "differences", out=tmp_path)
    assert {path.name for path in tmp_path.glob("sweep-*")} == {"sweep-differences.pdf", "sweep-differences.png"}
    (forest,) = draw_forests(compare(collect("sweep"), "fedavg", "final_test_accuracy")).values()
    first, second = forest.axes
    assert (first.get_title(), second.get_title()) == ("dirichlet α=0.1", "dirichlet α=0.5")
    assert first.lines[1].get_xdata() == pytest.approx([3.0])
    assert first.get_xlabel() == "difference to fedavg\ntest accuracy in points of the last round"
    assert [len(line.get_xdata()) for line in second.lines] == [2, 1, 2, 0]  # no width, the mean, 0, the legend
    assert [text.get_text() for text in first.get_yticklabels()] == ["fedsam"]
    assert np.ptp(first.lines[0].get_xdata()) == 0
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["too few seeds for an interval"]
    assert forest.get_label() == "mean over 2 seeds"


def test_an_interval_far_wider_than_others_ends_in_arrows(store: Tracker) -> None:
    """Differences 1, 2, 3; 2, 3, 4; 0, 20, 40: half-widths t / √3 twice, and 20 t / √3, of which 4 t / √3 are shown."""
    seeds = range(3)
    cells = [cell({"name": "fedsam", "rho": rho}, 0.1, seed) for rho in (0.1, 0.2, 0.3) for seed in seeds]
    cells += [cell(FEDAVG, 0.1, seed) for seed in seeds]
    write(store, cells, [history(40, last) for last in (51, 52, 53, 52, 53, 54, 50, 70, 90, 50, 50, 50)])
    (forest,) = draw_forests(compare(collect("sweep"), "fedavg", "final_test_accuracy")).values()
    lines = [(line.get_marker(), *np.atleast_1d(line.get_xdata())) for line in forest.axes[0].lines]
    half = 4.30265 / 3**0.5  # t(0.975, 2) / √3
    low, high = 2 - half, 20 + 4 * half  # the first row's end is further left than 20 - 4 half
    assert lines[4:8] == [
        ("None", pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01)),
        ("<", pytest.approx(low, abs=0.01)),
        (">", pytest.approx(high, abs=0.01)),
        ("o", 20.0),
    ]
    assert forest.get_label() == "mean over 3 seeds; line: its 95% interval, uncorrected; an arrow: it goes on"
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["not told apart"], "no dot is filled"


def test_classes_by_round(store: Tracker) -> None:
    """Classes down in their own order, rounds across; the mean of two seeds."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1)]
    seeds = [
        rows(accuracy_class_10=(1, 2), accuracy_class_2=(3, 4)),
        rows(accuracy_class_10=(3, 4), accuracy_class_2=(5, 6)),
    ]
    write(store, cells, seeds)
    ((name, figure),) = draw_classes(collect("sweep")).items()
    assert name == "fedavg dirichlet α=0.5"
    assert figure.axes[0].collections[0].get_array().tolist() == [[4, 5], [2, 3]]


def test_partitions_need_no_runs(store: Tracker) -> None:
    """One picture per setting: each column is a client, all of them together the 1,437 samples."""
    cells = [cell(FEDAVG, alpha, seed) for alpha in (0.5, 100) for seed in (0, 1)]
    for one in cells:
        one["config"] |= {"data": {"name": "digits"}, "clients": {"total": 5}}
    write(store, cells, [])
    figures, _ = draw_partitions(collect("sweep"))
    assert list(figures) == ["digits dirichlet α=0.5", "digits dirichlet α=100"]
    counts = [figure.axes[0].images[0].get_array() for figure in figures.values()]
    assert [(one.shape, int(one.sum())) for one in counts] == [((10, 5), 1437)] * 2
    assert counts[0].std() > 2 * counts[1].std()
    scales = [figure.axes[0].images[0].get_clim() for figure in figures.values()]
    assert scales == [(0, counts[0].max())] * 2, "one scale"


@pytest.mark.parametrize("with_store", [True, False])
def test_partitions_of_a_file_that_has_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, with_store: bool
) -> None:
    """With a store that knows other sweeps, and without any; a name that is neither a sweep nor a file is refused."""
    if with_store:
        write(request.getfixturevalue("store"), [cell(FEDAVG, 0.5, 0)], [70])
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(
        """name: own
base: {data: digits, clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg}
grid: {partition: [{name: dirichlet, alpha: 0.1}, {name: pathological, classes: 2}]}
""",
        encoding="utf-8",
    )
    main("own.yaml", "partition", out=Path("drawn"))
    assert sorted(path.name for path in Path("drawn").glob("*.png")) == [
        "own-partition-digits-dirichlet-alpha-0_1.png",
        "own-partition-digits-pathological-classes-2.png",
    ]
    assert Path("mlflow.db").exists() == with_store
    with pytest.raises(UserError, match=r"there is no store at|'own' of own.yaml has no run in this store"):
        main("own", "partition")


def test_partitions_without_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of digits are drawn although CIFAR-10 is not here; if nothing can be drawn, the command is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    file = """name: own
base: {clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg, partition: {name: dirichlet, alpha: 0.1}}
grid: {data: [DATA]}
"""
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, digits"), encoding="utf-8")
    main("own.yaml", "partition", out=Path("drawn"))
    assert [path.name for path in Path("drawn").glob("*.png")] == ["own-partition.png"]
    assert re.search(r"^not drawn, .*cifar.*: cifar10 dirichlet α=0.1$", capsys.readouterr().out, re.M)
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, svhn"), encoding="utf-8")
    with pytest.raises(UserError, match=r"cifar.*; .*svhn"):
        main("own.yaml", "partition", out=Path("none"))
    assert not Path("none").exists()
