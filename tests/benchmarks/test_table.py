"""docs/performance.md shows the files of benchmarks/results."""

import pytest

from benchmarks.table import PAGE, fill_page, is_met, load_runs


def test_the_page_is_made_from_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == fill_page(text, load_runs()), "run: python -m benchmarks.table"


@pytest.mark.parametrize(
    ("goal", "measured", "met"),
    [
        ("<= 1.05", {"median": 1.05, "low": 1.0, "high": 1.2}, True),
        ("< 1", 1, False),
        (">= 2.5", 2.2, False),
        ("<= 1/20", 0.055, False),
        ("<= 1.10, the same layout", 1.09, True),
        ("<= the step's + 0.1 = 2.59", 2.58, True),
        ("step <= 2.1: see step.py", 9, None),
        ("", 9, None),
    ],
)
def test_a_goal_is_met_or_missed_or_none(goal: str, measured: object, met: bool | None) -> None:
    assert is_met({"goal": goal, "measured": measured}) is met
