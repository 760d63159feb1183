"""Pages that are made from the code, or that cite it, and the API reference, whose examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedray
from benchmarks.gradients import count, list_names, sum_hours
from docs.generate import algorithms, configuration
from docs.generate.api import write_page
from docs.generate.costs import ROOT, find_sweeps
from fedray.algorithms import ALGORITHMS, base
from tests.shipped.papers import CELLS, NO_TABLES


def test_the_page_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert written == algorithms.page(), "run: python -m docs.generate.algorithms > docs/algorithms.md"


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


def test_configuration_reference_is_current() -> None:
    committed = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == configuration.page(), "run: python -m docs.generate.configuration > docs/configuration.md"


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


REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "discrepancies.md"
WRITE = "write `- **D-NUMBER, ...` into docs/discrepancies.md (no command does), or correct the citation"
FOLDERS = {"fedray": ".py", "tests": ".py", "docs": ".md", "analysis": ".py", "sweeps": ".yaml"}


def number(mark: str) -> tuple[int, str]:
    """`11b` to (11, "b"), which sorts."""
    digits, letter = re.fullmatch(r"(\d+)([a-f]?)", mark).groups()
    return int(digits), letter


def citations(text: str) -> set[tuple[int, str]]:
    """Every number named, and every number of a range written with two dots."""
    ranges = re.findall(r"\bD-(\d+)\.\.D-(\d+)\b", text)
    return {number(mark) for mark in re.findall(r"\bD-(\d+[a-f]?)\b", text)} | {
        (n, "") for first, last in ranges for n in range(int(first), int(last) + 1)
    }


def cited() -> dict[tuple[int, str], set[str]]:
    """Which files cite a number; the page itself does not count."""
    files = [path for folder, suffix in FOLDERS.items() for path in (REPOSITORY / folder).rglob(f"*{suffix}")]
    found: dict[tuple[int, str], set[str]] = {}
    for path in [REPOSITORY / "README.md", *files]:
        for mark in citations(path.read_text(encoding="utf-8")) if path != PAGE else ():
            found.setdefault(mark, set()).add(str(path.relative_to(REPOSITORY)))
    return found


def defined() -> list[tuple[int, str]]:
    return [number(mark) for mark in re.findall(r"^- \*\*D-(\d+[a-f]?),", PAGE.read_text(encoding="utf-8"), re.M)]


def test_every_number_cited_is_defined() -> None:
    assert citations(PAGE.read_text(encoding="utf-8")) == set(defined()), WRITE
    assert {mark: files for mark, files in cited().items() if mark not in defined()} == {}, WRITE


def test_numbers_ascend() -> None:
    """Which also says that none is defined twice."""
    assert defined() == sorted(set(defined())), "sort docs/discrepancies.md by number, each once; it is written by hand"
    assert len(defined()) > 30


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
