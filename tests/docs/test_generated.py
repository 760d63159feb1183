"""Pages that are made from the code, or that cite it, and the API reference, whose examples run."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedray
from benchmarks.gradients import count, list_names, sum_hours
from docs.generate import algorithms, configuration
from docs.generate.api import write_page
from docs.generate.costs import ROOT, find_sweeps
from fedray.algorithms import ALGORITHMS, base
from tests.shipped.test_paper_sweeps import CELLS, NO_TABLES


@pytest.mark.parametrize("made", [algorithms, configuration])
def test_a_page_of_the_code_is_current(made: ModuleType) -> None:
    name = made.__name__.rpartition(".")[2]
    written = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert written == made.page(), f"run: python -m docs.generate.{name} > docs/{name}.md"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_is_described(name: str) -> None:
    """A paper, a one-line idea, a docstring of its own that begins with the local step, a meaning for every option."""
    kind = ALGORITHMS[name]
    assert kind.paper
    assert kind.idea
    assert "\n" not in kind.idea
    formula = (kind.__dict__.get("__doc__") or "").partition("\n\n")[0]
    assert "q = " in formula
    assert all(field.description for field in kind.model_fields.values())


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


PAGE = ROOT / "docs" / "discrepancies.md"
WRITE = "write `- **D-NUMBER, ...` into docs/discrepancies.md (no command does), or correct the citation"
FOLDERS = {"fedray": ".py", "tests": ".py", "docs": ".md", "analysis": ".py", "sweeps": ".yaml"}


def citations(text: str) -> set[tuple[int, str]]:
    """Every number named, `D-11b` as (11, "b"), and every number of a range written with two dots."""
    found = re.findall(r"\bD-(\d+)([a-f]?)\b(?:\.\.D-(\d+)\b)?", text)
    ranges = ((int(first), letter, int(last or first)) for first, letter, last in found)
    return {(n, letter if n == first else "") for first, letter, last in ranges for n in range(first, last + 1)}


def test_every_number_cited_is_defined_once_and_in_order() -> None:
    page = PAGE.read_text(encoding="utf-8")
    defined = [(int(n), letter) for n, letter in re.findall(r"^- \*\*D-(\d+)([a-f]?),", page, re.M)]
    assert defined == sorted(set(defined)), "sort docs/discrepancies.md by number, each once; it is written by hand"
    assert len(defined) > 30
    files = [path for folder, suffix in FOLDERS.items() for path in (ROOT / folder).rglob(f"*{suffix}")]
    for path in (ROOT / "README.md", *files):
        assert citations(path.read_text(encoding="utf-8")) <= set(defined), f"{path}: {WRITE}"


EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_public_name_is_described_by_an_example() -> None:
    text = write_page()
    for name in {*fedray.__all__, *base.__all__} - {"__version__"}:
        section = text.split(f"### `{name}`\n", 1)[1].split("\n### ", 1)[0]
        assert not section.lstrip().startswith("```pycon"), f"{name} has no sentence"
        assert EXAMPLE.search(section), f"{name} has no example"


@pytest.mark.slow
def test_examples(tmp_path: Path) -> None:
    """All examples in one process, in the page's order; nothing but what they show is printed."""
    examples = EXAMPLE.findall(write_page())
    (tmp_path / "examples.txt").write_text("\n".join(examples), encoding="utf-8")
    doctest = [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "examples.txt"]
    out = subprocess.run(doctest, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert (out.returncode, out.stdout) == (0, ""), out.stdout + out.stderr
