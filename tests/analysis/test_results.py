"""Results as DataFrames: of a store written by hand, and of a sweep run from Python on a Ray that stays; and a metric
that is undefined in some rounds: its value belongs to its round, in tables, comparisons and figures."""

import csv
import io
import json
import math
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray

import fedray
from fedray.analysis.comparison import compare, format_report
from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import collect
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build, list_runs
from fedray.analysis.tables.clients import read_accuracies
from fedray.cells.metric import DEFAULT
from fedray.cells.record import summarise_rounds
from fedray.tracking.store import find_sweeps, open_reader
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write, write_run
from tests.conftest import Call
from tests.sweep.running import SWEEP


def test_results_of_a_sweep(store: Tracker, call: Call) -> None:
    """Two of three cells have run, with two rounds each; the third is missing. A number that you log is shown."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0)]
    cells = [one | {"label": f"{one['label'][:-2]} s{one['label'][-1]}"} for one in cells]
    write(store, cells, [history(50, 60), history(40, 70)])
    found = fedray.results("sweep")
    assert repr(found).startswith("<Results of sweep: 3 cells (2 finished, 1 missing), ")
    assert list(found.cells["status"]) == ["finished", "finished", "missing"]
    assert (list(found.cells["seed"] + 1), found.cells["partition.alpha"].mean()) == ([1, 2, 1], 0.5)
    varies = ["seed", "algorithm.name", "algorithm.rho"]
    assert list(found.cells)[:8] == ["cell", "label", "setting", "status", "run_id", *varies]
    assert list(found.cells["algorithm.rho"].fillna(0)) == [0, 0, 0.1]
    assert list(found.cells["algorithm.name"]) == ["fedavg", "fedavg", "fedsam"]
    assert list(found.cells["metrics.final_test_accuracy"])[:2] == [60, 70]
    accuracy = found.curves[found.curves["metric"] == "test_accuracy"]
    assert (list(accuracy["value"]), list(accuracy["round"])) == ([50, 60, 40, 70], [1, 2, 1, 2])
    assert list(accuracy["cell"]) == [cells[0]["hash"]] * 2 + [cells[1]["hash"]] * 2
    assert set(found.curves["metric"]) == {"test_accuracy", "test_loss", "train_loss"}
    means = accuracy.groupby(["setting", "round"])["value"].mean()  # over the two seeds, as docs/python.md does
    assert means.to_dict() == {("fedavg-0.5", 1): 45.0, ("fedavg-0.5", 2): 65.0}
    for run in found.cells["run_id"][:2]:
        store.client.log_metric(run, "fairness", 0.25)
    assert list(fedray.results("sweep").cells["metrics.fairness"])[:2] == [0.25, 0.25]
    assert "0.250 ± 0.000" in call("tables", "sweep", "--metric", "fairness").done


def test_what_a_tune_stage_has_chosen_stands_under_its_key(store: Tracker) -> None:
    """fedsam's ρ was drawn; fedavg has none, and another fedsam's is the file's."""
    cells = [cell(FEDAVG, 0.5, 0), cell(SMALL, 0.5, 0), cell({"name": "fedsam", "rho": 0.3}, 0.5, 1)]
    write(store, [*cells[:1], cells[1] | {"tuned": {"values": {"algorithm.rho": 0.1}}}, cells[2]], [50, 60, 70])
    found = fedray.results("sweep").cells
    assert [key for key in found if "rho" in key] == ["algorithm.rho"]
    assert found["algorithm.rho"].fillna(0).to_list() == [0, 0.1, 0.3]


def test_a_run_that_has_not_finished_has_no_final_metrics(store: Tracker) -> None:
    """But curves, of the rounds that it made."""
    cells = [cell(FEDAVG, 0.5, seed) for seed in range(3)]
    write(store, cells, [history(50, 60), ("pruned", history(70)), ("stopped", history(80))])
    found = fedray.results("sweep")
    assert found.cells.set_index("status")["metrics.last10_test_accuracy"].dropna().to_dict() == {"finished": 60}
    assert found.curves["cell"].nunique() == 3


def test_a_cell_has_the_hash_of_its_model(store: Tracker) -> None:
    """None of a run that has not finished."""
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    write_run(store, cells[0], history(50), hashes={"theta_sha256": "ab" * 32})
    write(store, cells, [])
    assert list(fedray.results("sweep").cells["theta_sha256"]) == ["ab" * 32, ""]


def test_the_trials_of_all_blocks_are_there(store: Tracker) -> None:
    """Also if the first block has none, as one that was imported; a cell keeps its newest trial, of two rounds."""
    for k in range(3):
        one = cell(FEDAVG, 0.5, k)
        write(store, [one], [50], name=f"cc/{k}")
        for rounds in (1, 2):
            trials = [pd.DataFrame({"config/cell": [one["hash"]], "round": [rounds]})] * (k > 0)
            store.keep_trials(find_sweeps(*open_reader())[f"cc/{k}"].info.run_id, trials)
    found = fedray.results("cc").trials
    assert found["config/cell"].tolist() == [cell(FEDAVG, 0.5, k)["hash"] for k in (1, 2)]
    assert found["round"].tolist() == [2, 2]


def test_the_page_names_the_columns(store: Tracker) -> None:
    """docs/analysis.md lists the columns of each table of runs, in their order; of `cells` the first ones."""
    one, tables = cell(FEDAVG, 0.5, 0), {"clients": {"client": [0], "samples": [4], "accuracy": [50]}}
    write_run(store, one, history(50), tables=tables)
    write(store, [one], [])
    sweep, found = collect("sweep"), fedray.results("sweep")
    listed = {
        line.split("|")[1].strip(" `"): re.findall(r"`([\w.]+)`", line.split("|")[3])
        for line in (Path(__file__).parents[2] / "docs/analysis.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(("| `fedray tables NAME --format", "| `fedray.results"))
    }
    assert [*listed["fedray tables NAME --format seeds"], DEFAULT] == list(list_runs(sweep))
    assert listed["fedray tables NAME --format clients"][:6] == list(read_accuracies(sweep, label_finished(sweep)))
    assert listed["fedray.results(NAME).curves"] == list(found.curves)
    cells = listed["fedray.results(NAME).cells"]
    assert cells[:5] == list(found.cells)[:5]
    assert {*cells[5:7], "metrics.test_accuracy"} <= set(found.cells)


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
        handler = signal.getsignal(signal.SIGINT)
        found = fedray.run_sweep(SWEEP, only=["scaffold*"], max_concurrent=1, changes={"training.rounds": 3})
        assert signal.getsignal(signal.SIGINT) is handler, "Tune leaves its own, which swallows the next Ctrl-C"
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


GAPS = {(0, 0): [1.0] * 10, (0, 1): [2.0] * 10, (1, 0): [50.0] + [math.nan] * 9, (1, 1): [math.nan] * 8 + [8.0, 4.0]}
"""Method and seed -> gap in rounds 1 to 10, of which 9 and 10 count. fedsam's first seed has it in round 1 alone."""


def rounds(gaps: list[float]) -> list[dict[str, float]]:
    """Rows of a run, as the engine makes them: without what is undefined."""
    return [row | ({} if math.isnan(gap) else {"gap": gap}) for row, gap in zip(history(*[60] * 10), gaps, strict=True)]


@pytest.fixture
def undefined(store: Tracker) -> Tracker:
    cells = [cell(method, 0.5, seed) for method in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [rounds(GAPS[method, seed]) for method in (0, 1) for seed in (0, 1)])
    return store


@pytest.mark.usefixtures("undefined")
@pytest.mark.parametrize(("metric", "mean"), [("gap", 4), ("final_gap", 4), ("last10_gap", 6)])
def test_a_table_shows_the_last_rounds_value_or_none(metric: str, mean: float, call: Call) -> None:
    """Before, fedsam's first seed had 50, the value of round 1, or the table was refused."""
    table = build(collect("sweep"), metric)
    entry = table.entries["fedsam", "dirichlet α=0.5"]
    assert (entry.mean, entry.seeds, entry.note) == (mean, 1, "(1 undefined)")
    assert table.entries["fedavg", "dirichlet α=0.5"].mean == 1.5
    assert table.ranks == {}, "one complete row is no best of several"
    assert "undefined: fedsam-0.1-0.5-0" in table.notes
    found = json.loads(call("tables", "sweep", "--metric", metric, "--json").out)["entries"]
    assert [(one["mean"], one["others"]) for one in found] == [(1.5, {}), (mean, {"undefined": 1})]
    rows = list(csv.DictReader(io.StringIO(call("tables", "sweep", "--metric", metric, "--format", "seeds").out)))
    assert [row[metric] for row in rows] == ["1.0", "2.0", "", f"{mean:.1f}"]
    values = fedray.results("sweep").cells[f"metrics.{metric}"]
    assert np.isnan(values[2])
    assert values[3] == mean


@pytest.mark.usefixtures("undefined")
def test_a_comparison_pairs_what_is_defined() -> None:
    """Of two pairs one is left: 4 - 2."""
    (one,) = compare(collect("sweep"), "fedavg", "gap").differences
    assert (one.gaps, one.unpaired, one.adjusted) == ((2.0,), 1, None)
    (one,) = compare(collect("sweep"), "fedavg", "last10_gap").differences
    assert one.gaps == (4.0,)


def test_a_mean_says_of_how_many_rounds_it_is(store: Tracker) -> None:
    """Round 10 of the two that count has no gap: the mean is that of round 9, and table, comparison and page say so."""
    cells = [cell(method, 0.5, 0) for method in (FEDAVG, SMALL)]
    write(store, cells, [rounds([1.0] * 10), rounds([math.nan] * 8 + [8.0, math.nan])])
    table = build(collect("sweep"), "last10_gap")
    assert table.entries["fedsam", "dirichlet α=0.5"].mean == 8
    said = "mean of 1 of 2 tests, undefined in the others: fedsam-0.1-0.5-0"
    assert said in table.notes
    assert said in format_report(compare(collect("sweep"), "fedavg", "last10_gap"))
    assert said in make_page(collect("sweep"), ["last10_gap"])
    assert build(collect("sweep"), "gap").entries["fedsam", "dirichlet α=0.5"].note == "(1 undefined)"


@pytest.mark.usefixtures("undefined")
def test_figures_leave_out_and_name_what_is_undefined(tmp_path: Path, call: Call) -> None:
    for kind in ("methods", "differences"):
        out = call("figures", "sweep", "--kind", kind, "--metric", "gap", "--out", str(tmp_path)).out
        assert "not drawn, undefined: fedsam-0.1-0.5-0" in out
    out = call("figures", "sweep", "--kind", "curves", "--metric", "gap", "--out", str(tmp_path)).out
    assert "not drawn" not in out
    assert make_page(collect("sweep"), ["gap"]).count("(1 undefined)") == 1


def test_summaries_of_a_run() -> None:
    """Of the last two of ten rounds only the ninth has a gap; of accuracies the best of those that are defined."""
    measured = ("generic_accuracy", "attack_accuracy")
    rows = [row | (dict.fromkeys(measured, 5.0 + t) if t < 9 else {}) for t, row in enumerate(history(*[60] * 10))]
    found = summarise_rounds(rows)
    assert "final_generic_accuracy" not in found
    assert (found["last10_generic_accuracy"], found["best_generic_accuracy"]) == (13, 13)
    assert "best_attack_accuracy" not in found, "a probe's, of which the smallest may be the best"
    assert "last10_generic_accuracy" not in summarise_rounds([*rows[:2], *history(*[60] * 10)[2:]])
