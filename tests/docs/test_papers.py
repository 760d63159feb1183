"""docs/papers.md names every sweep of the papers, and every table and figure that they print."""

import re
from pathlib import Path

import pytest

from fedray.algorithms import algorithm
from fedray.engine.cost import measure_cost
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import iter_points
from tests.shipped.papers import CELLS, NO_TABLES, SWEEPS

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
AGAINST_PRINT = re.compile(r"\| \*(?:agrees|deviates|cannot)\*[^|]*\|$", re.M)
"""The end of a row of a table or figure."""
NO_ROW = {"fedsam/search", "fedsol/search", "fedtoga/search", "fedgela/pcdd_smoke", "fedsol/mnist_causes"}
"""Searches and comparisons of ours."""
PRINTED = {
    "FedSAM": (range(1, 6), range(1, 7)),
    "FedSOL, v4": (range(1, 11), range(1, 13)),
    "FedGELA": (range(1, 12), range(1, 11)),
    "FedTOGA": (range(1, 11), range(1, 6)),
}
"""Numbers of the tables and figures of each paper."""


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


def test_all_methods_of_fedtogas_table_4_are_there() -> None:
    assert len(COSTS) == 8


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


@pytest.mark.parametrize("paper", PRINTED)
def test_every_table_and_figure_has_a_row(paper: str) -> None:
    section = PAGE.partition(f"## {paper}\n")[2].partition("\n## ")[0]
    firsts = [row.split("|")[1] for row in section.splitlines() if row.startswith("|")]
    for kind, numbers in zip(("table", "figure"), PRINTED[paper], strict=True):
        found = {
            int(n)
            for first in firsts
            if kind in first
            for n in re.findall(r"\d+", first.partition(",")[0] if "deviation" in first else first)
        }
        assert found >= set(numbers), f"{paper}: {kind}s {sorted(set(numbers) - found)}"


V1 = re.findall(r"fedray sweep sweeps/(fedsol/\w+)\.yaml --set (\S+?)=(\w+)`", PAGE)


def test_every_sweep_of_v1_is_named_with_its_option() -> None:
    """Rows 4, 5 and 9, figures 2 to 4 and 8 to 10 (8 has two), and what the sweep is called afterwards."""
    assert len(V1) == 10
    for name, key, value in V1:
        assert re.search(rf"fedray (?:tables|figures|sharpness) {name}-{key}-{value} ", PAGE), name


@pytest.mark.parametrize(("name", "key", "value"), V1, ids=[one[0] for one in V1])
def test_v1s_sweeps_perturb_the_whole_model(name: str, key: str, value: str) -> None:
    """Every FedSOL cell, and no other cell changes."""
    before = Sweep.load(SWEEPS / f"{name}.yaml")
    after = before.with_overrides({key: value})
    assert after.name == f"{name}-{key}-{value}"
    methods = [
        [{"name": one} if isinstance(one := point["algorithm"], str) else one for point in iter_points(sweep)]
        for sweep in (before, after)
    ]
    assert {one["perturb"] for one in methods[1] if one["name"] == "fedsol"} == {"all"}
    assert all(old == new for old, new in zip(*methods, strict=True) if new["name"] != "fedsol")
