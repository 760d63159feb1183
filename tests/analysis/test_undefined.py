"""A metric that is undefined in some rounds: its value belongs to its round, in tables, comparisons and figures."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.analysis.comparison import compare, format_report
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.bars import draw_bars
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build
from fedray.cells.record import summarise_rounds
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write
from tests.conftest import Call

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
    assert (
        "not drawn" not in call("figures", "sweep", "--kind", "curves", "--metric", "gap", "--out", str(tmp_path)).out
    )
    assert make_page(collect("sweep"), ["gap"]).count("(1 undefined)") == 1


def test_bars_are_of_the_last_round(store: Tracker) -> None:
    """fedsam's part b is undefined in the last round: no bar, not that of round 1."""
    rows = [[row | {"gap_a": 1.0} for row in history(60, 70)] for _ in range(2)]
    rows[1][0]["gap_b"] = 9.0
    rows[0][1]["gap_b"] = 3.0
    write(store, [cell(method, 0.5, 0) for method in (FEDAVG, SMALL)], rows)
    (figure,) = draw_bars(collect("sweep"), "gap").values()
    heights = [[patch.get_height() for patch in drawn.patches] for drawn in figure.axes[0].containers if drawn.patches]
    assert heights[0] == [1, 3]
    assert heights[1][0] == 1
    assert np.isnan(heights[1][1])


@pytest.mark.usefixtures("undefined")
def test_two_sweeps_in_one_table(call: Call) -> None:
    """A sweep that measures no gap is still refused by name; one in which it is undefined is not."""
    asked = {"evaluation": {"probes": ["other"]}}
    for name, more in (("same", {}), ("without", asked)):
        one = cell(LARGE, 0.5, 0)
        write(Tracker(), [one | {"config": one["config"] | more, "hash": name}], [history(*[60] * 10)], name=name)
    out = call("tables", "sweep", "same", "--metric", "gap").out
    assert "- (1 undefined)" in out
    assert "4.00 (1 undefined)" in out
    code, _, err = call("tables", "sweep", "without", "--metric", "gap")
    assert (code, "which 1 of 5 finished runs have not logged, fedsam-0.5-0.5-0 among them" in err) == (2, True)


def test_summaries_of_a_run() -> None:
    """Of the last two of ten rounds only the ninth has a gap; of accuracies the best of those that are defined."""
    rows = [row | ({"own_accuracy": 5.0 + t} if t < 9 else {}) for t, row in enumerate(history(*[60] * 10))]
    found = summarise_rounds(rows)
    assert "final_own_accuracy" not in found
    assert (found["last10_own_accuracy"], found["best_own_accuracy"]) == (13, 13)
    assert "last10_own_accuracy" not in summarise_rounds([*rows[:2], *history(*[60] * 10)[2:]])
