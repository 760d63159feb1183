"""Entries, order and notes of a table with small, rare, few or different numbers."""

import csv
import io
from pathlib import Path

import pytest

from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_csv, to_latex, to_markdown
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, sheet, write, write_run


def test_small_numbers_have_three_figures(store: Tracker) -> None:
    """0.0011 and 0.0049 are not both 0.00, and not tied."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, [[row | {"proximal_loss": value} for row in history(1)] for value in (0.0011, 0.0049)])
    table = build(collect("sweep"), "proximal_loss", reference="fedavg")
    text = to_markdown(table)
    assert "**0.00110** (+0.00000)" in text
    assert "<u>0.00490</u> (+0.00380)" in text


@pytest.mark.parametrize("metrics", ["rounds_to:80,test_accuracy", "test_accuracy,rounds_to:80"])
def test_speed_ups_and_differences_side_by_side(store: Tracker, metrics: str) -> None:
    """fedavg: 80 % in round 2, 81 at the end; fedsam: in round 1, 83 at the end. Twice as fast, 2 points better."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, [history(70, 81), history(82, 83)])
    table = build(collect("sweep"), metrics, reference="fedavg")
    text = to_markdown(table)
    assert "**1.0** (2.00×)" in text
    assert "**83.00** (+2.00)" in text
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    (rounds,) = (line for line in lines if line["row"] == "fedsam" and "rounds_to" in line["column"])
    (accuracy,) = (line for line in lines if line["row"] == "fedsam" and "test_accuracy" in line["column"])
    assert (rounds["speedup"], rounds["delta"], accuracy["speedup"], accuracy["delta"]) == ("2", "", "", "2")


def test_a_draw_with_a_seed_that_diverged_is_not_the_first_row(store: Tracker) -> None:
    cells = [
        cell(a, 0.5, seed) | {"search": {"keys": ["algorithm.rho"], "select": "last10_test_accuracy"}}
        for a in (LARGE, SMALL)
        for seed in (0, 1)
    ]
    write(store, cells, [99, ("diverged", []), 70, 72])
    assert build(collect("sweep")).rows == ["fedsam ρ=0.1", "fedsam ρ=0.5"]


def test_the_best_accuracy_of_a_method_is_the_best_where_samples_are_held_out(store: Tracker) -> None:
    """fedavg selects round 2 (62 %) on the held-out samples; its best test accuracy is 70, fedsam's in round 3."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    rows = [history(70, 62), history(50, 65, 71)]
    for accuracy, row in zip((40, 60), rows[0], strict=True):
        row["validation_accuracy"] = accuracy
    write(store, cells, rows)
    table = build(collect("sweep"), "rounds_to:fedavg")
    assert [table.entries[row, table.columns[0]].mean for row in table.rows] == [1, 3]


def test_rounds_that_are_tested_rarely_are_said(store: Tracker) -> None:
    """The generic accuracy of fine-tuned models is known only in rounds 2 and 5, for any `evaluation.every`."""
    rows = history(10, 10, 10, 10, 10)
    rows[1]["generic_accuracy"], rows[4]["generic_accuracy"] = 50, 85
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], [rows])
    notes = build(collect("sweep"), "rounds_to:80").notes
    assert "evaluated every 3 rounds, so the target may have been met earlier" in notes


def test_titles_say_which_rounds_are_averaged(store: Tracker) -> None:
    """Rounds 17 to 20 of 20; personal models are tested in round 20 only. Generic accuracy may be known in either."""
    rows = [row | {"personal_accuracy": 50.0, "generic_accuracy": 50.0} for row in history(*range(20))]
    one = cell(FEDAVG, 0.5, 0)
    one["config"] |= {"training": {"rounds": 20}, "evaluation": {"every": 10, "last": 10, "personal": {"every": 10}}}
    write(store, [one], [rows])
    titles = {name: build(collect("sweep"), f"last10_{name}").title for name in rows[0] if name != "round"}
    assert titles["test_accuracy"] == "sweep: test accuracy in %, mean of rounds 17 to 20"
    assert titles["personal_accuracy"] == "sweep: personal accuracy in %, round 20"
    assert titles["generic_accuracy"] == "sweep: generic accuracy in %, mean of the tests in rounds 17 to 20"
    (entry,) = build(collect("sweep")).entries.values()
    assert entry.mean == (16 + 17 + 18 + 19) / 4


def test_a_message_of_several_lines_stays_a_comment(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    parent = store.open_sweep(sheet("sweep", [one]))
    write_run(store, one, ending=Ending(Status.FAILED, "first\n\\input{more}"), parent=parent)
    lines = to_latex(build(collect("sweep"))).splitlines()
    assert next(line for line in lines if "more" in line).startswith("% failed: ")


def test_methods_without_fine_tuning_stand_beside_the_fine_tuned(store: Tracker) -> None:
    """With epochs 1 and 5 FedAvg logs both, and training alone logs one personal model. With 5 alone there is no 1."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, {"name": "local-only"})]
    tuned = {"personal_accuracy": 80.0, "personal_accuracy_e1": 70.0, "personal_accuracy_e5": 80.0}
    rows = [[row | each for row in history(1)] for each in (tuned, {"personal_accuracy": 75.0})]
    for one in cells:
        one["config"] |= {"evaluation": {"personal": {"epochs": [1, 5]}}}
    write(store, cells, rows)
    for epochs, value in ((1, 70), (5, 80)):
        table = build(collect("sweep"), f"personal_accuracy_e{epochs}")
        assert [one.mean for one in table.entries.values()] == [value, 75]
    assert "of the last round, after 5 epochs of fine-tuning if the method has any" in table.title
    cells[1]["config"]["evaluation"] = {"personal": {"epochs": 5}}
    write(store, cells, rows, "other")
    with pytest.raises(UserError, match="1 of 2 finished runs have not logged, local-only"):
        build(collect("other"), "personal_accuracy_e1")


def test_figures_name_the_runs_that_never_reached_the_target(
    store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, [history(70, 90), history(70, 75)])
    main("sweep", "methods", metric="rounds_to:80", out=tmp_path)
    assert "not drawn, never at the target, or without one: fedsam-0.1-0.5-0" in capsys.readouterr().out
