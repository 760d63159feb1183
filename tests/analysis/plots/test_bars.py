"""Bars, differences of methods, curves by seconds, loss surfaces, classes and heat maps, read back from their axes;
accuracies of clients and confusion of classes, from artefacts to tables and axes, with numbers made by hand."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedray.analysis.comparison import compare
from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.figures import main
from fedray.analysis.plots.bars import draw_bars, draw_forests, draw_methods
from fedray.analysis.plots.clients import draw_classes, draw_confusion, draw_fairness, draw_partitions
from fedray.analysis.plots.heatmap import draw_heatmap
from fedray.analysis.plots.search import draw_best_so_far, draw_heatmaps, draw_scatters, list_trials
from fedray.analysis.plots.sensitivity import draw_sensitivity
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build
from fedray.analysis.tables.build import main as tables
from fedray.analysis.tables.clients import measure_fairness, read_accuracies, read_confusions
from fedray.analysis.tables.formats import to_markdown
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.base import load_data
from fedray.partitions import make_partition
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, rows, sheet, write, write_run
from tests.conftest import Call


def test_a_bar_for_each_method(store: Tracker, tmp_path: Path) -> None:
    """Means over seeds, 20 and 50; a run that has not finished has none."""
    write(store, [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0), cell(LARGE, 0.1, 0)], [10, 30, 50])
    (figure,) = draw_methods(collect("sweep"), "test_accuracy").values()
    (area,) = figure.axes
    assert [bar.get_height() for bar in area.patches] == [20, 50]
    assert [text.get_text() for text in area.get_xticklabels()] == ["fedavg", "fedsam ρ=0.1"], "as in the table"
    assert [(text.get_text(), text.get_rotation()) for text in area.texts] == [("20.00", 0), ("50.00", 0)]
    few = "fedsam ρ=0.1 (dirichlet α=0.5): 1 seed"
    assert figure.get_label() == f"error bars: ± standard deviation over 1 to 2 seeds; {few}"
    _, ends = next(one for one in area.containers if isinstance(one, ErrorbarContainer)).lines[2][0].get_segments()
    assert not len(ends) or np.isnan(ends[:, 1]).all(), "one seed has no bar, not one of length 0"
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
    assert "; " + "; ".join(notes) in figure.get_label()
    assert [bar.get_height() for bar in area.patches] == [3, 2]
    figure.draw_without_rendering()
    box = area.yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, "a long title has two lines"


def test_bars_of_layers_at_a_round(store: Tracker, tmp_path: Path) -> None:
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
    main("sweep", "bars", metric="lambda", out=tmp_path)
    assert [path.suffix for path in sorted(tmp_path.glob("sweep-*"))] == [".pdf", ".png"]


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
    cells = [cell(method, 0.9, seed) for method in (FEDAVG, SMALL) for seed in range(3)]
    write(store, cells, [history(40, last) for last in (80, 80, 80, 90, 10, 10)], name="late")
    (forest,) = draw_forests(compare(collect("late"), "fedavg", "rounds_to:80")).values()
    said = "one seed; line: its 95% interval, uncorrected; never: 2 of 3, fedsam (dirichlet α=0.9)"
    assert forest.get_label() == said
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["not told apart, or too few pairs"]


def test_long_names_leave_room_for_the_panel(store: Tracker, recwarn: pytest.WarningsRecorder) -> None:
    """80 letters, with spaces and without."""
    names = {"fedsam": "a long name of " * 5 + "words", "fedprox": "long_name_" * 8}
    cells = [cell({"name": name}, 0.1, seed) | {"names": names} for name in ("fedavg", *names) for seed in range(3)]
    write(store, cells, [history(40, 50 + k) for k in range(9)])
    bars = draw_methods(sweep := collect("sweep"), "final_test_accuracy")
    for figure in (*draw_forests(compare(sweep, "fedavg", "final_test_accuracy")).values(), *bars.values()):
        figure.draw_without_rendering()
        (area,) = figure.axes
        beside = [text.get_window_extent() for text in (*area.get_yticklabels(), area.xaxis.label)]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in beside)
        assert all(text.get_window_extent().y0 >= 0 for text in area.get_xticklabels())
        assert area.bbox.width > figure.bbox.width / 2
    assert not [one for one in recwarn if "constrained_layout" in str(one.message)]


def test_an_interval_far_wider_than_others_ends_in_arrows(store: Tracker) -> None:
    """Differences 1, 2, 3; 2, 3, 4; 0, 20, 40: half-widths t / √3 twice, and 20 t / √3, of which 4 t / √3 are shown."""
    seeds = range(3)
    cells = [cell({"name": "fedsam", "rho": rho}, 0.1, seed) for rho in (0.1, 0.2, 0.3) for seed in seeds]
    cells += [cell(FEDAVG, 0.1, seed) for seed in seeds]
    write(store, cells, [history(40, last) for last in (51, 52, 53, 52, 53, 54, 50, 70, 90, 50, 50, 50)])
    (forest,) = draw_forests(compare(collect("sweep"), "fedavg", "final_test_accuracy")).values()
    lines = [(line.get_marker(), *np.atleast_1d(line.get_xdata())) for line in forest.axes[0].lines]
    half = 4.30265 / 3**0.5  # t(0.975, 2) / √3
    ends = 2 - half, 20 + 4 * half  # the first row's end is further left than 20 - 4 half
    low, high = (pytest.approx(end, abs=0.01) for end in ends)
    assert lines[4:8] == [("None", low, high), ("<", low), (">", high), ("o", 20.0)]
    assert forest.get_label() == "mean over 3 seeds; line: its 95% interval, uncorrected; an arrow: it goes on"
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["not told apart"], "no dot is filled"


def test_classes_by_round(store: Tracker, tmp_path: Path) -> None:
    """Classes down in their own order, rounds across; the mean of two seeds."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1)]
    seeds = ((1, 2), (3, 4)), ((3, 4), (5, 6))
    write(store, cells, [rows(accuracy_class_10=tenth, accuracy_class_2=second) for tenth, second in seeds])
    ((name, figure),) = draw_classes(collect("sweep")).items()
    assert name == "fedavg dirichlet α=0.5"
    assert figure.axes[0].collections[0].get_array().tolist() == [[4, 5], [2, 3]]
    main("sweep", "class-accuracy", out=tmp_path)
    assert [path.suffix for path in sorted(tmp_path.glob("sweep-*"))] == [".pdf", ".png"]


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
    planned = {"data": {"digest": load_data(make_data_source("digits")).digest}}
    planned["partition"] = make_partition(cells[0]["config"]["partition"]).list_identity_entries()
    cells[0]["identity"], cells[2]["identity"] = planned, planned | {"data": {"digest": "of other data"}}
    write(store, cells, [])
    figures, left_out = draw_partitions(collect("sweep"))
    assert [*figures] == ["digits dirichlet α=0.5"]
    why = "other data, or another file of its partition, than its cells were planned with"
    assert left_out == {why: ["digits dirichlet α=100"]}


@pytest.mark.parametrize("with_store", [True, False])
def test_partitions_of_a_file_that_has_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, with_store: bool
) -> None:
    """With a store that knows other sweeps, and without any; a name that is neither a sweep nor a file is refused."""
    if with_store:
        write(request.getfixturevalue("store"), [cell(FEDAVG, 0.5, 0)], [70])
    monkeypatch.chdir(tmp_path)
    base = "{data: digits, clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg}"
    grid = "{partition: [{name: dirichlet, alpha: 0.1}, {name: pathological, classes: 2}]}"
    Path("own.yaml").write_text(f"name: own\nbase: {base}\ngrid: {grid}\n", encoding="utf-8")
    main("own.yaml", "partition", out=Path("drawn"))
    names = ["dirichlet-alpha-0_1", "pathological-classes-2"]
    drawn = sorted(path.name for path in Path("drawn").glob("*.png"))
    assert drawn == [f"own-partition-digits-{name}.png" for name in names]
    assert Path("mlflow.db").exists() == with_store
    with pytest.raises(UserError, match=r"there is no store at|unknown name 'own'; valid: sweep"):
        main("own", "partition")


def test_partitions_without_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Those of digits are drawn although CIFAR-10 is not here; if nothing can be drawn, the command is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    file = """name: own
base: {clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg, partition: {name: dirichlet, alpha: 0.1}}
grid: {data: [DATA]}
"""
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, digits"), encoding="utf-8")
    out = call("figures", "own.yaml", "--kind", "partition", "--out", "drawn").out
    assert [path.name for path in Path("drawn").glob("*.png")] == ["own-partition.png"]
    assert re.search(r"^not drawn, .*cifar.*: cifar10 dirichlet α=0.1$", out, re.M)
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, svhn"), encoding="utf-8")
    with pytest.raises(UserError, match=r"cifar.*; .*svhn"):
        main("own.yaml", "partition", out=Path("none"))
    assert not Path("none").exists()


TEN = [float(10 * k) for k in range(11)]
"""Eleven clients from 0 % to 100 %: a tenth, rounded up, are two of them."""


def write_clients(store: Tracker, tables: bool = True) -> None:
    """fedavg: the clients above with seed 0, all 20 points less (down to 0) with seed 1; fedsam: all at 50 %."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0)]
    found = [TEN, [max(value - 20, 0) for value in TEN], [50.0] * 11]
    matrices = [[[3, 1], [0, 4]], [[4, 0], [0, 0]], [[0, 4], [4, 0]]]
    parent = store.open_sweep(sheet("sweep", cells))
    for one, accuracy, matrix in zip(cells, found, matrices, strict=True):
        clients = {"client": list(range(11)), "samples": [5] * 11, "accuracy": accuracy}
        counts = {"class": [0, 1], "predicted_0": [row[0] for row in matrix], "predicted_1": [row[1] for row in matrix]}
        found_tables = {"clients": clients, "confusion": counts} if tables else {}
        write_run(store, one, history(50), parent=parent, tables=found_tables)


def test_fairness_and_confusion_in_numbers_drawn_and_as_csv(store: Tracker, tmp_path: Path, call: Call) -> None:
    """fedavg, seed 0: mean 50, deviation 10 √10 (of 0..10: √((11² - 1) / 12)), worst (0 + 10) / 2, best (90 + 100) / 2.
    Seed 1: 0, 0, 0, 10, ..., 80: mean 360 / 11, worst 0, best 75."""
    write_clients(store)
    sweep = collect("sweep")
    clients = read_accuracies(sweep, label_finished(sweep))
    assert list(clients.columns) == ["method", "setting", "seed", "client", "samples", "accuracy"]
    assert len(clients) == 33
    one, other = measure_fairness(clients).to_dict("records")
    second = np.array([max(value - 20, 0) for value in TEN])
    assert (one["method"], one["clients"], one["seeds"]) == ("fedavg", 11, 2)
    assert one["mean"] == pytest.approx((50 + 360 / 11) / 2)
    assert one["deviation"] == pytest.approx((10 * 10**0.5 + second.std()) / 2)
    assert one["worst tenth"] == pytest.approx((5 + 0) / 2)
    assert one["best tenth"] == pytest.approx((95 + 75) / 2)
    assert [other[key] for key in ("mean", "deviation", "worst tenth", "best tenth", "seeds")] == [50, 0, 50, 50, 1]
    (figure,) = draw_fairness(sweep).values()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fedavg", "fedsam"]
    lines = {(str(line.get_label()), round(float(np.mean(line.get_ydata())))): line for line in axes.lines}
    assert len(lines["a client", 0].get_xdata()) == 22, "two seeds of eleven clients"
    assert list(lines["mean of the worst tenth", 0].get_xdata()) == [2.5]
    assert list(lines["mean of the best tenth", 0].get_xdata()) == [85]
    _, _, (bar,) = axes.containers[0].lines
    reach = np.asarray(bar.get_segments()[0])[:, 0]
    assert np.ptp(reach) / 2 == pytest.approx((10 * 10**0.5 + np.std([max(v - 20, 0) for v in TEN])) / 2)
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first method on top"
    assert figure.get_label() == "mean over 1 to 2 seeds; a dot for each client and seed"
    assert len(figure.legends[0].get_texts()) == 4
    # fedavg: (3/4, 1/4; 0, 1) and (1, 0), in percent, and the mean; class 1 has no test samples with seed 1.
    found = read_confusions(sweep, label_finished(sweep))
    shares = [[[75, 25], [0, 100]], [[100, 0], [np.nan, np.nan]]]
    np.testing.assert_array_equal(found["dirichlet α=0.5", "fedavg"], shares)
    figures = draw_confusion(sweep)
    assert list(figures) == ["fedavg dirichlet α=0.5", "fedsam dirichlet α=0.5"]
    assert figures["fedavg dirichlet α=0.5"].get_label() == "mean over 2 seeds"
    axes = figures["fedavg dirichlet α=0.5"].axes[0]
    assert axes.images[0].get_array().tolist() == [[87.5, 12.5], [0, 100]]
    assert [text.get_text() for text in axes.texts] == ["88", "12", "100"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "class")
    file = tmp_path / "new" / "clients.csv"
    assert call("tables", "sweep", "--format", "clients", "--out", str(file)).out == f"{file}\n"
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert (len(rows), [*rows[10]]) == (33, ["method", "setting", "seed", "client", "samples", "accuracy"])
    assert [*rows[10].values()] == ["fedavg", "dirichlet α=0.5", "0", "10", "5", "100"]


@pytest.mark.parametrize(("kind", "missing"), [("fairness", "clients.csv"), ("confusion", "confusion.csv")])
def test_runs_without_such_a_table(store: Tracker, tmp_path: Path, kind: str, missing: str) -> None:
    write_clients(store, tables=False)
    with pytest.raises(UserError, match=f"no finished run of 'sweep' has {missing}"):
        main("sweep", kind, out=tmp_path)
    with pytest.raises(UserError, match="has clients"):
        tables(["sweep"], "clients")


def test_unseen_clients_are_drawn_and_do_not_count(store: Tracker) -> None:
    """Two clients train, at 40 and 60 %, and one, at 0 %, does not: the mean is 50 %, and a cross is at 0."""
    one = cell(FEDAVG, 0.5, 0)
    clients = {"client": [0, 1, 2], "samples": [5] * 3, "accuracy": [40.0, 60.0, 0.0]}
    clients |= {"unseen": [0, 0, 1], "finetuned_accuracy": [float("nan"), float("nan"), 90.0]}
    write_run(store, one, history(50), parent=store.open_sweep(sheet("sweep", [one])), tables={"clients": clients})
    sweep = collect("sweep")
    (found,) = measure_fairness(read_accuracies(sweep, label_finished(sweep))).to_dict("records")
    assert (found["mean"], found["worst tenth"], found["clients"]) == (50, 40, 2)
    (figure,) = draw_fairness(sweep).values()
    lines = {str(line.get_label()): line.get_xdata() for line in figure.axes[0].lines}
    assert list(lines["a client"]) == [40, 60]
    assert list(lines["an unseen client, with the model it receives"]) == [0]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"clients": {"client": [0], "samples": [5], "accuracy": [120.0]}}, r"clients.csv of run \w+: line 2: acc"),
        ({"confusion": {"class": [0, 1], "predicted_0": [5, 5]}}, r"confusion.csv of run \w+: its column class is"),
        ({"confusion": {"class": [0], "predicted_0": [5]}}, "the runs of fedavg have confusion.csv of different sizes"),
    ],
    ids=str,
)
def test_tables_that_somebody_changed(store: Tracker, tables: dict[str, Any], message: str) -> None:
    """An archive with such a table is refused; here it is in the store."""
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    parent = store.open_sweep(sheet("sweep", cells))
    good = {"confusion": {"class": [0, 1], "predicted_0": [3, 0], "predicted_1": [1, 4]}}
    for one, own in zip(cells, (good, tables), strict=True):
        write_run(store, one, history(50), parent=parent, tables=own)
    sweep = collect("sweep")
    with pytest.raises(UserError, match=message):
        (read_confusions if "confusion" in tables else read_accuracies)(sweep, label_finished(sweep))


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
