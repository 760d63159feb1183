"""A table of results, independent of its format."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import pandas as pd

from fedray.analysis.data.axes import unknown_row
from fedray.analysis.data.metrics import NEVER, find_mean, name_metrics
from fedray.analysis.tables.published import BEST, PublishedNumber
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count

T = TypeVar("T")
Key = tuple[str, str]
"""Row and column of an entry."""
UNPAIRED = "without a counterpart"
LEGEND = "best bold, second best underlined"
"""What the marks of a table mean."""


@dataclass(frozen=True)
class Entry:
    """One entry of a table. mean and std are over the finished seeds; std is None for a single one."""

    mean: float | None
    std: float | None
    seeds: int
    others: Counter[str]
    """Number of seeds with each other outcome (missing, failed, diverged, stopped, running, interrupted, never)."""
    change: float | None = None
    """Difference from the reference, or for rounds the speed-up; None if either is incomplete."""
    printed: PublishedNumber | None = None
    digits: int = 2
    """Number of printed digits after the point."""
    is_round: bool = False
    """True for a number of rounds, whose change is a speed-up."""
    apart: int = 0
    """Number of its seeds if they are others than most of its rivals have; else 0."""

    @property
    def whole(self) -> bool:
        return self.mean is not None and not self.others

    @property
    def ranked(self) -> bool:
        return self.whole and not self.apart

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.mean is None or self.printed is None or self.printed.value is None:
            return None
        return self.mean - self.printed.value

    @property
    def note(self) -> str:
        """`(1 diverged, 2 missing)`, or nothing for a complete entry."""
        return f"({', '.join(f'{n} {status}' for status, n in sorted(self.others.items()))})" if self.others else ""

    @property
    def seeds_note(self) -> str:
        """`(2 seeds)` if it has other seeds than most; else empty."""
        return f"({format_count(self.apart, 'seed')})" if self.apart else ""


@dataclass(frozen=True)
class ResultTable:
    """Rows x columns of entries, with notes."""

    title: str
    rows: list[str]
    columns: list[str]
    entries: dict[Key, Entry]
    ranks: dict[Key, int]
    """1 for the best complete entry of a setting, 2 for the second best (equal values share a rank)."""
    notes: list[str]
    reference: str = ""
    """The row that `Entry.change` refers to."""
    paper: str = ""
    """The published table next to ours."""
    label: str = ""
    """LaTeX's label; empty for none."""
    caption: str = ""
    """LaTeX's caption, as LaTeX reads it; empty for the title."""
    captioned: list[str] = field(default_factory=list)
    """Those of the notes without which a caption would mislead."""
    is_joined: bool = False
    """True if each column is of a setting and a metric: `iid: test_loss`."""

    @cached_property
    def seeds_notes(self) -> dict[str, str]:
        """Row or column -> what all its entries say of their seeds, which then stands behind its name; else empty."""
        found = defaultdict[str, set[str]](set)
        for row, column in self.entries:
            for name in (row, column):
                found[name].add(self.entries[row, column].seeds_note)
        return {name: "".join(found[name]) if len(found[name]) == 1 else "" for name in (*self.rows, *self.columns)}


def make_entry(group: pd.DataFrame) -> Entry:
    """Return the entry of cells (`_value`, `status`) that differ by the seed: mean and sample standard deviation."""
    counted = (group["status"] == Status.FINISHED) | group["_value"].notna()
    others, values = Counter(map(str, group.loc[~counted, "status"])), group.loc[counted, "_value"]
    if untold := int(values.isna().sum()):
        others[UNPAIRED] = untold
    if never := int((values == NEVER).sum()):
        others["never"] = never
    return _summarise(values[(values != NEVER) & values.notna()], others)


def average(group: pd.DataFrame, settings: int) -> Entry:
    """Return an entry of each seed's mean over `settings` settings; incomplete seeds are left out."""
    means, others = [], Counter[str]()
    for _, cells in group.groupby("seed"):
        entry = make_entry(cells)
        if entry.others or len(cells) != settings:
            others += Counter({*entry.others} or ["missing"])
        else:
            means.append(entry.mean)
    return _summarise(pd.Series(means, dtype=float), others)


def _summarise(values: pd.Series, others: Counter[str]) -> Entry:
    count = len(values)
    spread = round(float(values.std()), 9) if count > 1 else None  # equal ones deviate by 0, but for the last bits
    return Entry(find_mean(values) if count else None, spread, count, others)


def list_alike(seeds: Mapping[T, Iterable[int]]) -> set[T]:
    """Return the keys with the most frequent seeds; of equally frequent ones, with more seeds."""
    groups = defaultdict[frozenset[int], set[T]](set)
    for key, of_key in seeds.items():
        groups[frozenset(of_key)].add(key)
    return max(groups.items(), key=lambda group: (len(group[1]), len(group[0])), default=(frozenset(), set[T]()))[1]


def add_best(cells: pd.DataFrame, leave_out: Sequence[str], lower: bool) -> tuple[pd.DataFrame, str]:
    """Add, for each setting, the cells of the best complete entry once more, as the row `best baseline`.

    Return all cells, and the best row of each setting in words.
    """
    for row in leave_out:
        if row not in set(cells["_row"]):
            raise unknown_row("--best-except", row, [*cells["_row"], *cells["algorithm.name"]])
    candidates = cells[~cells["_row"].isin(leave_out)]
    if not len(candidates):
        raise UserError("--best-except: leaves no row to choose the best from")
    copies, said, ranked = [], defaultdict[str, list[str]](list), set[str]()
    for setting, panel in candidates.groupby("_setting", sort=False):
        alike = list_alike(dict(iter(cells[cells["_setting"] == setting].groupby("_row")["seed"])))
        whole = {
            row: one.mean
            for row, one in (
                (row, make_entry(group)) for row, group in panel.groupby("_row", sort=False) if row in alike
            )
            if one.whole and one.mean is not None
        }
        ranked |= {str(row) for row in whole}
        best = (min if lower else max)(whole, key=lambda row: whole[row]) if whole else None
        copies.append(panel[panel["_row"] == best].assign(_row=BEST))
        said["none" if best is None else str(best)].append(str(setting))
    here = [f"{row} ({', '.join(of)})" for row, of in said.items()] if len(said) > 1 else [*said]
    unranked = ", ".join(dict.fromkeys(row for row in candidates["_row"] if row not in ranked))
    without = f"; not ranked: {unranked}" if unranked else ""
    return pd.concat([cells, *copies]), f"here {', '.join(here)}{without}"


def join_tables(tables: Mapping[str, ResultTable]) -> ResultTable:
    """Join metric -> table into one table: for each setting a column per metric."""
    first = next(iter(tables.values()))
    entries, ranks = dict[Key, Entry](), dict[Key, int]()
    for name, table in tables.items():
        entries |= {(row, f"{column}: {name}"): entry for (row, column), entry in table.entries.items()}
        ranks |= {(row, f"{column}: {name}"): rank for (row, column), rank in table.ranks.items()}
    parts = [table.title.partition(": ")[2].partition(", ") for table in tables.values()]
    rests = {rest for _, _, rest in parts}
    alike = len(rests) == 1 and "" not in rests  # `test accuracy in % and test loss, mean of rounds 91 to 100`
    titles = [" and ".join(name for name, _, _ in parts) + "".join(parts[0][1:])] if alike else map("".join, parts)
    return replace(
        first,
        title=f"{first.title.partition(': ')[0]}: {'; '.join(titles)}",
        columns=[f"{column}: {name}" for column in first.columns for name in tables],
        is_joined=True,
        entries=entries,
        ranks=ranks,
        notes=list(dict.fromkeys(table.notes[0] for table in tables.values()))
        + _join_notes({name: table.notes[1:] for name, table in tables.items()}),
        captioned=_join_notes({name: table.captioned for name, table in tables.items()}),
    )


def _join_notes(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return metric -> notes as one list; a note that is not of all metrics begins with its own."""
    counts, names = Counter(note for of in notes.values() for note in of), name_metrics(notes)
    told = (
        note if counts[note] == len(notes) else f"{names[name]}: {note}" for name, of in notes.items() for note in of
    )
    return list(dict.fromkeys(told))
