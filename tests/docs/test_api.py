"""The API reference is the one that the docstrings give, and its examples run."""

import doctest
from pathlib import Path

import pytest

import fedray
from docs.generate.api import write_page
from fedray.algorithms import base

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_api_reference_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m docs.generate.api > docs/api.md"


def test_every_public_name_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in {*fedray.__all__, *base.__all__} - {"__version__"}:
        section = text.split(f"### `{name}`\n", 1)[1].split("\n### ", 1)[0]
        assert section.strip(), name


def _examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    homes = {name: getattr(fedray, name) for name in fedray.__all__} | {
        name: getattr(base, name) for name in base.__all__
    }
    found = (test for name, thing in homes.items() for test in finder.find(thing, name, globs={}) if test.examples)
    return list(found)


@pytest.mark.parametrize("example", _examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0
