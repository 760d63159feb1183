"""docs/papers.md names every sweep of the papers, and every table and figure that they print."""

import re
from pathlib import Path

import pytest

from fedray.algorithms import algorithm
from fedray.engine.cost import measure_cost
from tests.shipped.papers import CELLS, NO_TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
AGAINST_PRINT = re.compile(r"\| \*(?:agrees|deviates|cannot)\*[^|]*\|$", re.M)
"""The end of a row of a table or figure."""
NO_ROW = {"fedsam/search", "fedsol/search", "fedtoga/search", "fedgela/pcdd_smoke", "fedsol/mnist_causes"}
"""Searches and comparisons of ours."""


def sweeps(text: str) -> set[str]:
    """`fedsam/table2`, `table4` names two: a name without a folder is in the folder named before it."""
    found, folder = set(), ""
    for given, name in re.findall(r"`(?:(fed\w+)/)?((?:table|figure)\d+b?|[a-z]\w+)`", text):
        folder = given or folder
        if given or re.match(r"(table|figure)\d", name):
            found.add(f"{folder}/{name}")
    return found


COSTS = re.findall(r"^\| (\S+) \| (\d)x \| (\d)x \| (\d) \| (\d) \| (\d) \|$", PAGE, re.M)


@pytest.mark.parametrize("row", COSTS, ids=[row[0] for row in COSTS])
def test_costs_in_fedtogas_convention_are_the_measured_ones(row: tuple[str, ...]) -> None:
    """Storage is 1 + the client's state, communication its uploads, except for the variates of FedLESAM-S."""
    method, (storage, communication, down, up, kept) = row[0], map(int, row[1:])
    found = measure_cost(algorithm({"name": method.lower()}))
    assert [round(x, 1) for x in (found.down, found.up, found.client)] == [down, up, kept]
    assert storage == 1 + kept
    assert communication == up - (method == "FedLESAM-S")


def test_each_of_the_89_rows_says_how_it_stands_to_the_print() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| (?:table|figure|appendix) [\w.]+ \|", line)]
    assert len(rows) == 89
    assert [line for line in rows if not AGAINST_PRINT.search(line)] == []
    assert [line for line in rows if "*deviates*" in line and not re.search(r"\(D-\d+", line)] == []
    assert [
        line
        for line in rows
        if "*cannot*" not in line and "`" not in line and "below" not in line and "as v4" not in line
    ] == []


def test_every_sweep_is_named_and_exists() -> None:
    named = set().union(*(sweeps(row) for row in PAGE.splitlines() if row.startswith("|")))
    commands = set(re.findall(r"fedray (?:tables|figures|compare|sharpness) (fed\w+/\w+)", PAGE))
    assert named | commands <= set(CELLS) | NO_TABLES
    assert named | commands | NO_ROW >= set(CELLS) | NO_TABLES
