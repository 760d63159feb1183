"""Text of a sweep's page in MLflow."""

from collections.abc import Mapping

import yaml

from fedray.cells.last_rounds import mean
from fedray.sweep.plan.plan import Plan

LONGEST = 5000
"""Characters of a tag's value that MLflow takes."""
ROWS = 25
"""Rows of the table."""


def describe_results(plan: Plan, accuracies: Mapping[str, float]) -> str:
    """Return Markdown with the best setting, a table and the parameters; empty before a cell has finished.

    Args:
        plan: of the sweep.
        accuracies: hash -> the accuracy that tables show, in %, of the cells that have finished.
    """
    found: dict[str, list[float]] = {}
    for cell in plan.cells.values():
        if cell.hash in accuracies:
            found.setdefault(cell.label.removesuffix(f" s{cell.run.seed}"), []).append(accuracies[cell.hash])
    if not found:
        return ""
    best, *_ = ranked = sorted(found, key=lambda label: -mean(found[label]))
    rows = [f"| {label} | {mean(found[label]):.2f} | {len(found[label])} |" for label in ranked[:ROWS]]
    more = [f"| and {len(ranked) - ROWS} more: `fedray tables {plan.sweep.name}` | | |"] if ranked[ROWS:] else []
    head = [plan.sweep.description, "", f"**Best: {best}, test accuracy {mean(found[best]):.2f} %**", ""]
    table = ["| method and setting | test accuracy % | seeds |", "|---|---:|---:|", *rows, *more]
    given = plan.sweep.model_dump(mode="json", include={"base", "grid", "cases", "search"}, exclude_defaults=True)
    written = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
    text = "\n".join([*head, *table, ""])
    whole = f"{text}\n```yaml\n{written}```"
    return whole if len(whole) <= LONGEST else text[:LONGEST]
