"""Results as DataFrames: of a store written by hand, and of a sweep run from Python on a Ray that stays."""

import re
from pathlib import Path
from typing import Any

import pytest
import ray

import fedray
from fedray.analysis.data import metrics
from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import collect
from fedray.analysis.tables.build import list_runs
from fedray.analysis.tables.clients import read_accuracies
from fedray.cells.metric import DEFAULT
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write, write_run
from tests.sweep.running import SWEEP


def test_results_of_a_sweep(store: Tracker) -> None:
    """Two of three cells have run, with two rounds each; the third is missing."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0)]
    cells = [one | {"label": f"{one['label'][:-2]} s{one['label'][-1]}"} for one in cells]
    ran = [history(50, 60), history(40, 70)]
    write(store, cells, ran)
    found = fedray.results("sweep")
    assert repr(found).startswith("<Results of sweep: 3 cells (2 finished, 1 missing), ")
    assert list(found.cells["status"]) == ["finished", "finished", "missing"]
    assert list(found.cells["seed"] + 1) == [1, 2, 1]
    assert found.cells["partition.alpha"].mean() == 0.5
    varies = ["seed", "algorithm.name", "algorithm.rho"]
    assert list(found.cells)[:8] == ["cell", "label", "setting", "status", "run_id", *varies]
    assert list(found.cells["algorithm.rho"].fillna(0)) == [0, 0, 0.1]
    assert list(found.cells["algorithm.name"]) == ["fedavg", "fedavg", "fedsam"]
    assert list(found.cells["metrics.final_test_accuracy"])[:2] == [60, 70]
    accuracy = found.curves[found.curves["metric"] == "test_accuracy"]
    assert list(accuracy["value"]) == [50, 60, 40, 70]
    assert list(accuracy["round"]) == [1, 2, 1, 2]
    assert list(accuracy["cell"]) == [cells[0]["hash"]] * 2 + [cells[1]["hash"]] * 2
    assert set(found.curves["metric"]) == {"test_accuracy", "test_loss", "train_loss"}
    means = accuracy.groupby(["setting", "round"])["value"].mean()  # over the two seeds, as docs/python.md does
    assert means.to_dict() == {("fedavg-0.5", 1): 45.0, ("fedavg-0.5", 2): 65.0}


def test_the_page_names_the_columns(store: Tracker) -> None:
    """docs/analysis.md lists the columns of each table of runs, in their order; of `cells` the first ones."""
    write_run(
        store, cell(FEDAVG, 0.5, 0), history(50), tables={"clients": {"client": [0], "samples": [4], "accuracy": [50]}}
    )
    write(store, [cell(FEDAVG, 0.5, 0)], [])
    sweep, found = collect("sweep"), fedray.results("sweep")
    page = (Path(__file__).parents[2] / "docs/analysis.md").read_text(encoding="utf-8")
    listed = {
        line.split("|")[1].strip(" `"): re.findall(r"`([\w.]+)`", line.split("|")[3])
        for line in page.splitlines()
        if line.startswith(("| `fedray tables NAME --format", "| `fedray.results"))
    }
    assert [*listed["fedray tables NAME --format seeds"], DEFAULT] == list(list_runs(sweep))
    assert listed["fedray tables NAME --format clients"][:6] == list(read_accuracies(sweep, label_finished(sweep)))
    assert listed["fedray.results(NAME).curves"] == list(found.curves)
    cells = listed["fedray.results(NAME).cells"]
    assert cells[:5] == list(found.cells)[:5]
    assert {*cells[5:7], "metrics.test_accuracy"} <= set(found.cells)


def test_results_of_a_sweep_that_nobody_ran(store: Tracker) -> None:
    write(store, [cell(FEDAVG, 0.5, 0)], [])
    with pytest.raises(fedray.UserError, match="'swep'; did you mean 'sweep'"):
        fedray.results("swep")


RUN: dict[str, Any] = {**SWEEP["base"], "algorithm": "scaffold", "seed": 1}


def test_a_sweep_and_a_run_from_python_on_one_ray(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four cells are requested; the run is one of these, so its curve is the same."""
    ends: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr("atexit.register", ends.append)  # Ray ends with the process, here with the test
        fedray.connect()
    try:
        node = ray.get_runtime_context().get_node_id()
        fedray.connect()
        found = fedray.run_sweep(SWEEP, only=["scaffold*"], max_concurrent=1, changes={"training.rounds": 3})
        result = fedray.simulate(RUN | {"training": RUN["training"] | {"rounds": 3}}, progress=False)
        assert ray.get_runtime_context().get_node_id() == node, "the same Ray all along"
    finally:
        for end in ends:
            end()
    assert not ray.is_initialized()
    assert found.name == "small-training.rounds-3"
    assert found.cells["status"].value_counts().to_dict() == {"finished": 2, "missing": 2}
    curve = found.curves[(found.curves["metric"] == "test_accuracy") & (found.curves["seed"] == 1)]
    assert list(curve["value"]) == [row["test_accuracy"] for row in result.history]
    assert len(result.history) == 3


def test_a_metric_by_its_plain_name_is_that_of_the_last_round(store: Tracker) -> None:
    """75 after 90, and its loss; for any deviation the smallest is the best."""
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], [history(70, 90, 75)])
    sweep = collect("sweep")
    found = {
        name: metrics.read_values(sweep, name).item() for name in ("test_accuracy", "best_test_accuracy", "test_loss")
    }
    assert found == pytest.approx({"test_accuracy": 75, "best_test_accuracy": 90, "test_loss": 0.25})
    deviations = ("local_test_accuracy_std", "personal_std", "drift_std")
    assert all(metrics.is_smaller_better(name, sweep.cells) for name in deviations)
    assert not metrics.is_smaller_better("local_test_accuracy", sweep.cells)
