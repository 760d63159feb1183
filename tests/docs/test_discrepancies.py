"""docs/discrepancies.md defines every number that is cited, and no others."""

import re
from pathlib import Path

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


def test_every_number_defined_is_cited() -> None:
    assert set(defined()) - set(cited()) == set(), "delete the entry in docs/discrepancies.md, or cite it"


def test_numbers_ascend() -> None:
    """Which also says that none is defined twice."""
    assert defined() == sorted(set(defined())), "sort docs/discrepancies.md by number, each once; it is written by hand"
    assert len(defined()) > 30
