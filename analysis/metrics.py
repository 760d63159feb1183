"""What a table can show: a number per run, how it is called, and which way is better."""

import re

import numpy as np
import pandas as pd

from analysis.collect import Collected
from fedray.errors import UserError, unknown

DEFAULT = "last10_test_accuracy"
NAMES = {
    "last10_test_accuracy": "test accuracy in %, mean of the last 10 evaluated rounds",
    "test_accuracy": "test accuracy in % of the last round",
    "best_test_accuracy": "test accuracy in % of the best round ON THE TEST SET (an optimistic protocol)",
    "test_loss": "test loss of the last round",
    "last10_test_loss": "test loss, mean of the last 10 evaluated rounds",
    "train_loss": "training loss of the last round",
    "seconds_per_round": "seconds per round",
}
LOWER_IS_BETTER = ("loss", "seconds", "rounds")
NEVER = float("inf")
"""The round of a target that a run has never reached."""


def values(sweep: Collected, metric: str) -> pd.Series:
    """A float per cell, NaN where the run has not finished; NEVER where it has but not reached the target.

    Raises UserError for a metric that a finished run lacks.
    """
    cells = sweep.cells
    finished = cells["status"] == "finished"
    if (target := rounds_target(metric)) is not None:
        return pd.Series([_first_round(sweep, run_id, target) if done else np.nan
                          for run_id, done in zip(cells["run_id"], finished, strict=True)], cells.index)
    column = f"metrics.{metric}"
    if metric in ("test_accuracy", "test_loss", "train_loss"):
        column = f"metrics.final_{metric}"
    if finished.any() and (column not in cells or cells.loc[finished, column].isna().any()):
        have = [str(name).removeprefix("metrics.") for name in cells if str(name).startswith("metrics.")]
        raise unknown("--metric", metric, [*have, "rounds_to:PERCENT"])
    return cells[column].where(finished) if column in cells else pd.Series(np.nan, cells.index)


def history(sweep: Collected, run_id: str, metric: str) -> dict[int, float]:
    """Evaluated round -> value, in order; empty where the run has not logged the metric."""
    return dict(sorted((m.step, float(m.value)) for m in sweep.client.get_metric_history(run_id, metric)))


def rounds_target(metric: str) -> float | None:
    """80.0 of `rounds_to:80`, None of any other metric. Raises UserError where it is not a percentage."""
    name, _, target = metric.partition(":")
    if name != "rounds_to":
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", target) or not 0 < float(target) <= 100:
        raise UserError(f"--metric: found {metric!r}; rounds_to:PERCENT with a test accuracy up to 100 is required")
    return float(target)


def title(metric: str) -> str:
    """The metric in words."""
    target = rounds_target(metric)
    return NAMES.get(metric, metric) if target is None else \
        f"first evaluated round with a test accuracy of at least {target:g} %"


def lower_is_better(metric: str) -> bool:
    """Whether the smallest entry is the best one."""
    return any(word in metric for word in LOWER_IS_BETTER)


def _first_round(sweep: Collected, run_id: str, target: float) -> float:
    return next((float(t) for t, value in history(sweep, run_id, "test_accuracy").items() if value >= target), NEVER)
