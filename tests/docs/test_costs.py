"""Cells and core-hours on the pages are those of the one table of seconds per gradient."""

import json
import re

import pytest

from benchmarks.gradients import RESULTS, count, list_names, sum_hours
from docs.generate.costs import ROOT, describe_cost, find_sweeps, rewrite, rewrite_pages
from tests.shipped.papers import CELLS, NO_TABLES


@pytest.mark.slow
def test_pages_agree_with_the_table() -> None:
    for path, text in rewrite_pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python -m docs.generate.costs"


@pytest.mark.slow
def test_every_sweep_has_its_cells_and_a_cost() -> None:
    """Cells as they are counted against the papers; only LEAF's data (table 11) have no published size."""
    assert set(list_names()) == set(CELLS) | NO_TABLES
    assert {name: count(name)[0] for name in CELLS} == CELLS
    assert [name for name in list_names() if sum_hours(name) is None] == ["fedgela/table11"]
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| `fed\w+/", line)]
    assert {name for row in rows for name in find_sweeps(row[1])} == set(list_names())
    for row in rows:
        if len(names := find_sweeps(row[1])) == 1:
            cells, seeds = map(int, row[3].split(" x "))
            assert cells * seeds == count(names[0])[0], row[1]


def test_hours_by_hand() -> None:
    """fedsol/figure5b: 300 rounds, 10 clients, 5 epochs of 500 samples in batches of 50, two gradients a step, and a
    pass for L_p's forward and the teacher's; tests in 39 rounds of 10,000 samples. The seconds are the table's.
    """
    cells, gradients, unknown = count("fedsol/figure5b")
    assert (cells, unknown) == (3, 0)
    ((model, number),) = gradients.items()
    assert model == "mcmahan_cnn padding=2, 3x32x32, 10 classes, batches of 50"
    seconds = json.loads(RESULTS.read_text())["seconds"][model]
    assert sum_hours("fedsol/figure5b") == number * seconds / 3600
    assert number > 3 * 2 * 300 * 10 * 5 * 10


def test_rows_are_rewritten() -> None:
    page = "text\n| printed | x |\n|--|--|\n| a | b |\n\n| other | b |\n"
    found = rewrite(page, "| printed |", lambda cells: [cells[0], "", cells[-1]])
    assert found == "text\n| printed | | x |\n|---|---|---|\n| a | | b |\n\n| other | b |\n"
    assert describe_cost(["table 3", "x", "", "*cannot*: constants"]) == ""
    assert describe_cost(["f", "x", "`fedray figures fedgela/table2 --kind partition`", "*agrees*"]) == "none"
    assert describe_cost(["f", "x", "`fedray tables fedsol/figure5b`", "*agrees*"]).startswith("3; ")
