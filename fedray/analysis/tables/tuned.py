"""Notes in a final stage's table on the choice of its configurations (docs/tuning.md)."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedray.analysis.data.axes import find_symbol
from fedray.analysis.data.collect import SweepTable
from fedray.cells.metric import Metric
from fedray.components.base import format_value


def list_notes(sweep: SweepTable, cells: pd.DataFrame) -> list[str]:
    """Return notes: how the rows were tuned, the chosen values with their ranges, and a warning for values on an edge.

    Args:
        sweep: the final stage; there are no notes for other sweeps.
        cells: its cells with `_row` and `_column`.
    """
    chosen = {
        (str(cell["_row"]), str(cell["_column"])): sweep.tuned[cell["cell"]]
        for _, cell in cells.iterrows()
        if cell["cell"] in sweep.tuned
    }
    if not chosen:
        return []
    said = list(dict.fromkeys(_describe_choice(one) for one in chosen.values()))
    said += [
        f"chosen for {row} ({column}): {_format_values(one, cells)}; {_format_budget(one)}"
        for (row, column), one in chosen.items()
    ]
    said += [
        f"WARNING: {find_symbol(key, cells)}={format_value(one['values'][key])} of {row} ({column}) is on the edge of "
        f"{one['ranges'][key]}: nothing was tried beyond it"
        for (row, column), one in chosen.items()
        for key in one["edges"]
    ]
    return said


def describe_selection(sweep: SweepTable) -> str:
    """Return the addition to a title if a final stage's configurations were chosen by the test set."""
    on_test_set = any(Metric.parse(one["select"]).is_on_test_set for one in sweep.tuned.values())
    return " (selected on the test set)" if on_test_set else ""


def _describe_choice(one: Mapping[str, Any]) -> str:
    held, seeds = one["held_out"], ", ".join(map(str, one["seeds"]))
    how = f"tuned by {one['stage']}: best {one['select']} of {one['searcher']} draws, mean over seeds {seeds}"
    if one.get("equal_budget") == "gradients":
        how += ", as many draws as make the gradients equal"
    if held is None:
        return f"{how}; SELECTED ON THE TEST SET, nothing was held out"
    whose = "every client's samples" if held["from"] == "clients" else "the training set"
    what = "all of them" if one["train_on"] == "all" else "the others alone"
    pruned = f"; cells ended early by {one['scheduler']}" if one["scheduler"] else ""
    return f"{how}, on {100 * held['fraction']:g} % of {whose}, held out; these runs train on {what}{pruned}"


def _format_values(one: Mapping[str, Any], cells: pd.DataFrame) -> str:
    values = (
        f"{find_symbol(key, cells)}={format_value(value)} of {one['ranges'][key]}"
        for key, value in one["values"].items()
    )
    return ", ".join(values) or "nothing to draw"


def _format_budget(one: Mapping[str, Any]) -> str:
    most = "at most " if one["scheduler"] else ""  # cells that a scheduler ended early are counted whole
    gradients = "" if one["gradients"] is None else f", {most}{one['gradients']:.3g} gradients of a batch"
    lost = "" if one["finished"] == one["draws"] else f" ({one['draws'] - one['finished']} did not finish)"
    return f"{one['draws']} draws{lost}, {most}{one['rounds']} rounds{gradients}; scored {one['score']:.2f}"
