"""The record of a run: all that it leaves when it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from fedray.cells.ending import Ending
from fedray.cells.last_rounds import find_last_values, mean
from fedray.cells.metric import BEST, FINAL, LAST

Rows = Sequence[Mapping[str, float]]
"""A row per evaluated round, name -> value; its `round` counts from 1."""


@dataclass(frozen=True)
class RunRecord:
    """All that a run leaves when it ends; made by the engine or by the driver, logged by the tracker.

    Attributes:
        ending: how it ended.
        history: its evaluated rounds.
        totals: metrics of the whole run, such as `seconds_per_round`.
        hashes: `theta_sha256` and `state_sha256`; empty unless it finished.
        tables: name -> column -> values, from the last evaluation.
        profile: part -> seconds of each round, if it was profiled.
    """

    ending: Ending
    history: Rows = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    profile: Rows = ()

    @property
    def last_round(self) -> int:
        """The last evaluated round, 1-based; 0 for none."""
        return int(self.history[-1]["round"]) if self.history else 0

    def summarise(self) -> dict[str, float]:
        """Return what is logged once: `totals`, the round of a divergence, and summaries of a run that succeeded."""
        diverged = {} if self.ending.diverged_round is None else {"diverged_round": self.ending.diverged_round}
        return (summarise_rounds(self.history) if self.ending.status.is_success else {}) | {**self.totals, **diverged}


def summarise_rounds(history: Rows) -> dict[str, float]:
    """Return the metrics of a run over its evaluated rounds.

    Returns:
        `final_*` (the last round), `last10_*` (mean over `list_last_rounds`), and `best_*` of accuracies. If samples
        are held out, `best_round` is that of the best validation accuracy, and `best_*` is each accuracy in the best
        such round that has it: the test set selects nothing. Without them `best_round` is that of the best test
        accuracy, and each `best_*` is its own largest value.
    """
    if not history:
        return {}
    validated = "validation_accuracy" in history[-1]
    selects = "validation_accuracy" if validated else "test_accuracy"
    result: dict[str, float] = {}
    for name in [key for key in history[-1] if key not in ("round", "lr", "megabytes_sent")]:
        result[f"{FINAL}{name}"] = history[-1][name]
        result[f"{LAST}{name}"] = mean(find_last_values(history, name).values())
        if name.endswith(("_accuracy", "_macro_f1", "_auc")):
            having = [row for row in history if name in row]
            result[f"{BEST}{name}"] = max(having, key=itemgetter(selects if validated else name))[name]
    return result | {"best_round": max(history, key=itemgetter(selects))["round"]}
