"""Each shipped sweep has its cells and its core-hours on the page of sweeps."""

import re

import pytest

from benchmarks.gradients import count, list_names, sum_hours
from docs.generate.costs import ROOT, find_sweeps
from tests.shipped.papers import CELLS, NO_TABLES


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
