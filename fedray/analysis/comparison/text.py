"""A comparison as text: `fedray compare SWEEP --reference fedavg [--metric ...]`."""

import math

from fedray.analysis.comparison.compare import Comparison, Difference, Improvement
from fedray.analysis.statistics.aggregates import find_lack
from fedray.analysis.statistics.intervals import BOOTSTRAP_SEEDS, MOST_SEEDS, POWER, Interval, bootstrap, flip_signs

DIFFERENCE_HEADER = ("method", "setting", "n", "difference")


def list_columns(confidence: float) -> list[str]:
    """Return the columns of `format_lines`."""
    return [
        *DIFFERENCE_HEADER,
        f"{100 * confidence:g} % interval (t)",
        "bootstrap interval",
        "p (sign flips)",
        "adjusted p (Holm)",
        "seeds needed",
        "",
    ]


def format_lines(found: Comparison) -> list[list[str]]:
    """Return a line per method and setting, as text."""
    return [
        [
            one.row,
            one.column,
            f"{one.n}" + (f" (unpaired: {one.unpaired})" if one.unpaired else ""),
            "-" if one.mean is None else f"{one.mean:+.2f}",
            str(one.interval or "-"),
            str(bootstrap(one.gaps, found.confidence) or "too few seeds"),
            _format_p(flip_signs(one.gaps)),
            _format_p(one.adjusted),
            _format_needed(one),
            one.judge(found.lower),
        ]
        for one in found.differences
    ]


def _format_p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _format_needed(one: Difference) -> str:
    if one.adjusted is None or one.spread == 0:
        return "-"
    return str(one.count_needed_seeds() or f"> {MOST_SEEDS}")


def list_notes(found: Comparison) -> list[str]:
    """Return notes that explain the numbers."""
    level = 100 * (1 - found.confidence)
    return [
        f"paired by seed; better or worse where the adjusted p is at most {level:.2g} %: the paired t-test's p, "
        f"corrected by Holm's method for the methods of a setting, so at most {level:.2g} % of settings without any "
        "difference show one; settings are not corrected for each other",
        "each interval stands alone, without correction; the t interval assumes normal differences, the bootstrap "
        f"does not, but it is too short for fewer than {BOOTSTRAP_SEEDS} seeds",
        "p (sign flips): exact, without assuming normality, never below 2^(1 - n): 5 % needs at least six seeds",
        f"seeds needed: to tell a difference of this size and spread apart with a probability of {100 * POWER:g} %",
        *found.notes,
    ]


def list_all_columns(found: Comparison) -> list[str]:
    """Return the columns of `format_all`."""
    return [
        "method",
        f"beats {found.to} with the same seed",
        "interquartile mean",
        f"probability of improvement over {found.to}",
        "mean rank",
    ]


def format_all(found: Comparison) -> list[list[str]]:
    """Return a line per method over all settings, as text; `-` for what it has no number for."""
    wins = {one.row: one for one in found.improvements}
    runs = {one.row: one for one in found.aggregates}
    ranks = {} if found.ranks is None else found.ranks.mean
    rows = dict.fromkeys([found.to, *wins, *runs])
    return [
        [
            row,
            _format_wins(wins[row]) if row in wins else "-",
            _format_mean(runs[row].mean) + _bracket(runs[row].interval) if row in runs else "-",
            f"{runs[row].improvement:.2f}{_bracket(runs[row].bounds)}" if row in runs and row != found.to else "-",
            f"{ranks[row]:.2f}" if row in ranks else "-",
        ]
        for row in rows
    ]


def list_all_notes(found: Comparison) -> list[str]:
    """Return notes that explain `format_all`, and the results of Friedman's and Nemenyi's tests."""
    notes = ["same seed: pairs won of all, ties count half; share with Clopper and Pearson's interval"]
    if found.aggregates:
        seeds, settings = found.aggregates[0].scores.shape
        lack = find_lack(found.aggregates[0].scores)
        notes.append(
            f"interquartile mean, probability of improvement: of the settings that all methods finished ({settings}, "
            f"{seeds} seeds each); the middle half of all runs, and any two runs of a setting; "
            + (f"no intervals: {lack}" if lack else f"{found.confidence:.0%} intervals of the stratified bootstrap")
        )
    if found.ranks is not None:
        notes.append(
            f"mean rank over {found.ranks.settings} settings: {found.ranks.describe()}; critical difference "
            f"{found.ranks.critical:.2f} (Nemenyi, {100 * found.ranks.level:.2g} %)"
        )
    return notes


def _format_wins(one: Improvement) -> str:
    return f"{one.wins:g} of {one.pairs}: {one.wins / one.pairs:.2f}{_bracket(one.interval)}"


def _format_mean(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def _bracket(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval.low:.2f} .. {interval.high:.2f})"


def format_report(found: Comparison) -> str:
    """Format the comparison as Markdown."""
    return "\n".join(
        [
            f"**{found.sweep}: difference to {found.to}: {found.title}**",
            "",
            *_format_table([list_columns(found.confidence), *format_lines(found)]),
            "",
            *(f"- {note}" for note in list_notes(found)),
            "",
            "**over all settings**",
            "",
            *_format_table([list_all_columns(found), *format_all(found)]),
            "",
            *(f"- {note}" for note in list_all_notes(found)),
            "",
        ]
    )


def _format_table(grid: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table, whose first row is its header."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    head, *lines = (
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in grid
    )
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines]
