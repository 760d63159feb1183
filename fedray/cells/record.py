"""The record of a run: what it leaves when it ends, and what the store has of it."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from fedray.cells.metric import BEST, BY_ROUND, FINAL, LAST, OF_CLASSES, Metric, find_last_values, mean
from fedray.cells.status import Ending
from fedray.common.errors import UserError, join_lines, truncate_repr

if TYPE_CHECKING:
    import numpy as np

Rows = Sequence[Mapping[str, float]]
"""A row per evaluated round, name -> value; its `round` counts from 1."""


@dataclass(frozen=True)
class Record:
    """All that a run leaves when it ends: made by the engine or by the driver, logged by the tracker, read again.

    Attributes:
        ending: how it ended.
        history: its evaluated rounds; not of a record that the store gives back.
        totals: metrics of the whole run, such as `seconds_per_round`; of the store all its latest metrics.
        hashes: `theta_sha256` and `state_sha256`; empty unless it finished.
        tables: name -> column -> values, from the last evaluation.
        profile: part -> seconds of each round, if it was profiled.
        run_id: the run's id in the store; empty before it is there, and for a cell that is trained but not logged.
        start: when the store has it begin, milliseconds since 1970.
        tags: the run's in the store; before it is there, those of the machine that trained it.
    """

    ending: Ending
    history: Rows = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    profile: Rows = ()
    run_id: str = ""
    start: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_round(self) -> int:
        """The last evaluated round, 1-based; 0 for none."""
        return int(self.history[-1]["round"]) if self.history else 0

    def summarise(self) -> dict[str, float]:
        """Return what is logged once: `totals`, the round of a divergence, and summaries of a run that succeeded."""
        diverged = {} if self.ending.diverged_round is None else {"diverged_round": self.ending.diverged_round}
        return (summarise_rounds(self.history) if self.ending.status.is_success else {}) | {**self.totals, **diverged}


UNSUMMARISED = ("round", "lr", "megabytes_sent", "dropped_clients")
"""Keys of a row whose value in the last round says nothing of the run."""


def summarise_rounds(history: Rows) -> dict[str, float]:
    """Return `final_*` (the last round), `last10_*` (mean over `list_last_rounds`) and `best_*` of fedray's accuracies.

    A metric that is undefined in all these rounds has none. If samples are held out, `best_round` is that of the best
    validation accuracy, and `best_*` is each accuracy in the best such round that has it: the test set selects nothing.
    Without them `best_round` is that of the best test accuracy, and each `best_*` is its own largest value.
    """
    if not history:
        return {}
    validated = "validation_accuracy" in history[-1]
    selects = "validation_accuracy" if validated else "test_accuracy"
    result: dict[str, float] = {}
    names = dict.fromkeys(key for row in (history[-1], *history) for key in row)
    for name in [name for name in names if name not in UNSUMMARISED]:
        result |= {f"{FINAL}{name}": history[-1][name]} if name in history[-1] else {}
        result |= {f"{LAST}{name}": mean(values)} if (values := find_last_values(history, name).values()) else {}
        plain = Metric.parse(name).plain
        if plain in BY_ROUND and plain.endswith(("_accuracy", *OF_CLASSES)):
            having = [row for row in history if name in row]
            result[f"{BEST}{name}"] = max(having, key=itemgetter(selects if validated else name))[name]
    return result | {"best_round": max(history, key=itemgetter(selects))["round"]}


def format_table(table: Mapping[str, Sequence[float]]) -> str:
    """Return columns as CSV; whole numbers have no decimal point."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows([f"{value:.10g}" for value in row] for row in zip(*table.values(), strict=True))
    return file.getvalue()


def parse_table(name: str, content: bytes) -> "dict[str, np.ndarray]":
    """Return the columns of a table that `format_table` wrote: int64 if all are whole numbers, else float64."""
    import numpy as np  # here: commands that list a store do without it

    try:
        header, *rows = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        columns = dict(zip(header, np.array(rows, dtype=np.float64).reshape(-1, len(header)).T, strict=True))
    except (ValueError, csv.Error) as error:
        raise UserError(f"is not a table of numbers: {join_lines(error)}") from None
    wanted = ["client", "samples", "accuracy"]
    if name == "confusion":
        wanted = ["class", *(f"predicted_{k}" for k in range(max(1, len(header) - 1)))]
    if header[: len(wanted)] != wanted or not rows:
        raise UserError(f"has {len(rows)} rows of {truncate_repr(header)}; {', '.join(wanted[:3])} are required")
    for column, values in columns.items():
        whole = (np.abs(values) <= 2**53) & (values == np.floor(values))
        if column.endswith("accuracy"):  # NaN: a test that the client does not take
            good = ((values >= 0) & (values <= 100)) | (np.isnan(values) & (column != "accuracy"))
        elif column in (*wanted, "unseen"):
            good = whole & (values >= 0) & ((values <= 1) | (column != "unseen"))
        else:
            good = np.ones_like(whole)
        if not good.all():
            raise UserError(f"line {int(np.argmin(good)) + 2}: {column} is {values[np.argmin(good)]:g}")
        columns[column] = values.astype(np.int64) if whole.all() else values
    ids = columns[wanted[0]].tolist()
    if len(set(ids)) < len(ids) or (name == "confusion" and ids != [*range(min(len(ids), len(wanted) - 1))]):
        raise UserError(f"its column {wanted[0]} is {truncate_repr(ids)}; each {wanted[0]} once is required")
    return columns
