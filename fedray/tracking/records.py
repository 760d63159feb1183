"""What is known of a cell's run, without MLflow."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from fedray.runs.last_rounds import last_values, mean
from fedray.runs.metric import BEST, FINAL, LAST
from fedray.runs.status import Status


@dataclass(frozen=True)
class Outcome:
    """A cell in MLflow: its status, the rule that stopped it early if one did, its last metrics."""

    status: Status
    stopper: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class CellRun:
    """A cell's run in MLflow.

    Attributes:
        id: empty until the store has made or found it.
        start: milliseconds since 1970 at which it was made; rows are stamped from there.
        logged: the last round that the store has.
        history: the rows reported so far.
        began: when the cell was started here, by the monotonic clock in seconds.
        ended: when it ended, by the same clock; None: when the run is closed.
        new: whether this process has made the run.
    """

    id: str = ""
    start: int = 0
    logged: int = 0
    history: list[Mapping[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    new: bool = False


def final_metrics(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a run over its evaluated rounds.

    Args:
        history: of each evaluated round, name -> value.

    Returns:
        `final_*` (the last round), `last10_*` (mean over `last_rounds`), and `best_*` of accuracies. If samples are
        held out, `best_round` is that of the best validation accuracy, and `best_*` is each accuracy in the best such
        round that has it: the test set selects nothing. Without them `best_round` is that of the best test accuracy,
        and each `best_*` is its own largest value.
    """
    if not history:
        return {}
    validated = "validation_accuracy" in history[-1]
    selects = "validation_accuracy" if validated else "test_accuracy"
    result: dict[str, float] = {}
    for name in [key for key in history[-1] if key not in ("round", "lr", "megabytes_sent")]:
        result[f"{FINAL}{name}"] = history[-1][name]
        result[f"{LAST}{name}"] = mean(last_values(history, name).values())
        if name.endswith("_accuracy"):
            having = [row for row in history if name in row]
            result[f"{BEST}{name}"] = max(having, key=itemgetter(selects if validated else name))[name]
    return result | {"best_round": max(history, key=itemgetter(selects))["round"]}
