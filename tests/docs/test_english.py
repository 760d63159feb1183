"""Messages, help and pages keep to plain English: phrases that were replaced do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TURNS = re.compile(
    r"\bone's own\b|\b(?:is|are) no (?:class|file|name|text|images?|numbers?|archive|LEAF|sweep|proof)\b|, of which\b"
    r"|\bnobody answers\b|\bwhat is asked\b|\bslip of the pen\b|\bcall the same command\b"
    r"|\btrue and false are\b|\bin quotes it is\b"
    r"|; a (?:mapping|list) is required|\bthe store does not answer\b",
    re.IGNORECASE,
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def spoken(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a module that can be shown: all except docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


@pytest.mark.parametrize("room", ["fedray", "analysis"])
def test_messages_and_help(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in files
        for line, text in spoken(file)
        if TURNS.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if TURNS.search(line)]


@pytest.mark.parametrize("line", ["to use one's own model", "x is no file", "found 3; a mapping is required"])
def test_the_turns_are_recognised(line: str) -> None:
    assert TURNS.search(line)
