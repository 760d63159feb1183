"""Enters cells and core-hours in docs/papers.md and docs/sweeps.md: `python -m docs.generate.costs`.

The seconds of a gradient of each model are in benchmarks/results/gradients.json, the gradients are counted. Tables that
begin with `| printed | contents |` (docs/papers.md) and `| sweep | reproduces |` (docs/sweeps.md) are rewritten.
"""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.gradients import count, list_names, sum_hours

ROOT = Path(__file__).parents[2]
COLUMN = "cells; core-hours"


def format_hours(name: str) -> str:
    """Format with two significant digits: `3,900`, `7.9`."""
    hours = sum_hours(name)
    if hours is None:
        return "not known"
    rounded = float(f"{hours:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def find_sweeps(text: str) -> list[str]:
    """Return the papers' sweeps that a cell names, in order; one without a folder is in the folder named before it."""
    found, folder, known = dict[str, None](), "", set(list_names())
    for given, name in re.findall(r"(?:(fed\w+)/|`(?!fed\w+/))((?:v1_)?(?:table|figure)\d+b?|[a-z]\w+)", text):
        folder = given or folder
        if (one := f"{folder}/{name}") in known:
            found[one] = None
    return list(found)


def rewrite_papers(cells: list[str]) -> list[str]:
    """Return a row of docs/papers.md, or its titles, with its cost.

    `63; 3,900`, empty for what cannot run, `none` without training.
    """
    command, verdict = cells[2], cells[-1]
    names = find_sweeps(re.sub(r"--paper \S+", "", command))
    if cells[0] == "printed":
        cost = COLUMN
    elif "*cannot*" in verdict or not command:
        cost = ""
    elif not names or "--kind partition" in command:
        cost = "none"
    else:
        cost = " and ".join(f"{count(name)[0]}; {format_hours(name)}" for name in names)
    return [*cells[:3], cost, cells[-1]]


def rewrite_sweeps(cells: list[str]) -> list[str]:
    """Return a row of docs/sweeps.md with its core-hours; titles and measured hours stay."""
    if cells[0] == "sweep":
        return cells
    hours = cells[3] if "measured" in cells[3] else ", ".join(map(format_hours, find_sweeps(cells[0])))
    return [*cells[:3], hours, *cells[4:]]


def rewrite(page: str, title: str, row: Callable[[list[str]], list[str]]) -> str:
    """Return a page whose tables have been rewritten row by row, if the line with their titles begins with `title`."""
    lines, inside = list[str](), 0
    for old in page.splitlines():
        inside = 1 if old.startswith(title) else inside + 1 if inside and old.startswith("|") else 0
        new = old
        if inside == 2:
            new = "|" + "---|" * (lines[-1].count("|") - 1)
        elif inside:
            cells = row([one.strip() for one in re.split(r"(?<!\\)\|", old)[1:-1]])
            new = "|" + "".join(f" {one} |" if one else " |" for one in cells)
        lines.append(new)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, title, row in (
        ("papers.md", "| printed | contents |", rewrite_papers),
        ("sweeps.md", "| sweep | reproduces |", rewrite_sweeps),
    ):
        path = ROOT / "docs" / name
        path.write_text(rewrite(path.read_text(encoding="utf-8"), title, row), encoding="utf-8")
