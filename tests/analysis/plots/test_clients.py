"""Accuracies of clients and confusion of classes: from artefacts to tables and axes, with numbers made by hand."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.plots.clients import draw_confusion, draw_fairness
from fedray.analysis.tables.build import main as tables
from fedray.analysis.tables.clients import measure_fairness, read_accuracies, read_confusions
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, sheet, write_run

TEN = [float(10 * k) for k in range(11)]
"""Eleven clients from 0 % to 100 %: a tenth, rounded up, are two of them."""


def write(store: Tracker, tables: bool = True) -> None:
    """fedavg: the clients above with seed 0, all 20 points less (down to 0) with seed 1; fedsam: all at 50 %."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0)]
    found = [TEN, [max(value - 20, 0) for value in TEN], [50.0] * 11]
    matrices = [[[3, 1], [0, 4]], [[4, 0], [2, 2]], [[0, 4], [4, 0]]]
    parent = store.open_sweep(sheet("sweep", cells))
    for one, accuracy, matrix in zip(cells, found, matrices, strict=True):
        clients = {"client": list(range(11)), "samples": [5] * 11, "accuracy": accuracy}
        counts = {"class": [0, 1], "predicted_0": [row[0] for row in matrix], "predicted_1": [row[1] for row in matrix]}
        found_tables = {"clients": clients, "confusion": counts} if tables else {}
        write_run(store, one, history(50), parent=parent, tables=found_tables)


def test_fairness_in_numbers_and_drawn(store: Tracker) -> None:
    """fedavg, seed 0: mean 50, deviation 10 √10 (of 0..10: √((11² - 1) / 12)), worst (0 + 10) / 2, best (90 + 100) / 2.

    Seed 1: 0, 0, 0, 10, ..., 80: mean 360 / 11, worst 0, best 75.
    """
    write(store)
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


def test_confusion_matrices(store: Tracker) -> None:
    """fedavg: (3/4, 1/4; 0, 1) and (1, 0; 1/2, 1/2), in percent, and their mean."""
    write(store)
    sweep = collect("sweep")
    found = read_confusions(sweep, label_finished(sweep))
    assert found["dirichlet α=0.5", "fedavg"].tolist() == [[[75, 25], [0, 100]], [[100, 0], [50, 50]]]
    figures = draw_confusion(sweep)
    assert list(figures) == ["fedavg dirichlet α=0.5", "fedsam dirichlet α=0.5"]
    assert figures["fedavg dirichlet α=0.5"].get_label() == "mean over 2 seeds"
    axes = figures["fedavg dirichlet α=0.5"].axes[0]
    assert axes.images[0].get_array().tolist() == [[87.5, 12.5], [25, 75]]
    assert [text.get_text() for text in axes.texts] == ["88", "12", "25", "75"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "class")


def test_every_client_as_csv(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(store)
    tables(["sweep"], "clients", out=tmp_path / "new" / "clients.csv")
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'clients.csv'}\n"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "new" / "clients.csv").read_text())))
    assert len(rows) == 33
    assert rows[10] == {
        "method": "fedavg",
        "setting": "dirichlet α=0.5",
        "seed": "0",
        "client": "10",
        "samples": "5",
        "accuracy": "100",
    }


@pytest.mark.parametrize(("kind", "missing"), [("fairness", "clients.csv"), ("confusion", "confusion.csv")])
def test_runs_without_such_a_table(store: Tracker, tmp_path: Path, kind: str, missing: str) -> None:
    write(store, tables=False)
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
