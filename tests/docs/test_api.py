"""The docstrings give the site's API reference: each name has an example, and the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedray
from docs.generate.api import write_page
from fedray.algorithms import base

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
