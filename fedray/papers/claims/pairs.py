"""Comparisons that a claim makes, each with a difference for every seed that both of its sides have."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import pandas as pd

from fedray.analysis.comparison import tabulate_by_seed
from fedray.analysis.data.axes import find_columns, label_cells
from fedray.analysis.data.collect import SweepTable, iter_specs
from fedray.analysis.data.metrics import COUNTED, is_smaller_better
from fedray.analysis.statistics import Interval, bound_mean
from fedray.analysis.tables.build import drop_keys
from fedray.analysis.tables.published import find_best_others, find_printed_values
from fedray.common.errors import UserError
from fedray.sweep.file.claims import Claim

CONFIDENCE = 0.95
BEST_OTHER = "the best other"
Entry = tuple[str, str]
"""Row and column of the sweep's table."""


@dataclass(frozen=True)
class Pair:
    """A method against a rival in a column. gaps: by seed, positive if in the claim's favour; printed: the paper's."""

    column: str
    row: str
    rival: str
    gaps: tuple[float, ...]
    printed: float | None = None
    exact: bool = False
    """True if the metric is counted, not measured, so that no seed changes it."""
    lost: int = 0
    """Seeds that will never have a gap: one of their runs ended without a number."""

    @property
    def mean(self) -> float | None:
        return sum(self.gaps) / len(self.gaps) if self.gaps else None

    @property
    def interval(self) -> Interval | None:
        return self.get_interval(CONFIDENCE)

    def get_interval(self, confidence: float) -> Interval | None:
        """Return Student's interval; a single point if no seed changes the number."""
        if self.exact and self.mean is not None:
            return Interval(self.mean, self.mean)
        return bound_mean(self.gaps, confidence)


@dataclass(frozen=True)
class Side:
    """One side of a comparison, computed from entries of the table.

    `value`: the entry; `drop`: the first minus the second; `spread`: the largest minus the smallest.
    """

    entries: tuple[Entry, ...]
    form: Literal["value", "drop", "spread"] = "value"

    def get_by_seed(self, found: Mapping[Entry, Mapping[str, float]]) -> dict[str, float]:
        """Return the number of each seed that all entries have."""
        first, *others = [found.get(entry, {}) for entry in self.entries]
        of = {
            seed: [first[seed], *(other[seed] for other in others)] for seed in first if all(seed in o for o in others)
        }
        if self.form == "spread":
            return {seed: max(values) - min(values) for seed, values in of.items()}
        return {seed: values[0] - values[1] if self.form == "drop" else values[0] for seed, values in of.items()}


@dataclass(frozen=True)
class Duel:
    """The two sides that a pair compares; `theirs` has no entries if the rival is a number."""

    column: str
    row: str
    rival: str
    ours: Side
    theirs: Side

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.ours.entries, *self.theirs.entries)


@dataclass(frozen=True)
class Numbers:
    """The sweep's numbers by entry and seed.

    values: the numbers that exist; for a run that never reached its target, its number of rounds. never: the seeds of
    such runs. lost: seeds whose run was ended.
    """

    values: Mapping[Entry, Mapping[str, float]]
    never: Mapping[Entry, set[str]]
    lost: Mapping[Entry, set[str]]


def make_pairs(claim: Claim, sweep: SweepTable, published: str) -> tuple[list[Pair], pd.DataFrame]:
    """Return the pairs of a claim, and the cells that they are based on.

    Args:
        claim: the claim.
        sweep: the sweep whose runs decide.
        published: the printed table to compare with; empty for none.

    Raises:
        UserError: the sweep lacks a method, rival or column, or its runs cannot be paired.
    """
    cells = _select_cells(claim, sweep)
    present = set(zip(cells["_row"], cells["_column"], strict=True))
    found = {"falls": _oppose_falls, "smaller_drop": _oppose_drops, "steadier": _oppose_spreads}.get(
        claim.relation, _oppose_values
    )(claim, cells)
    duels, lower = [duel for duel in found if set(duel.entries) <= present], is_smaller_better(claim.metric, cells)
    numbers, printed = _collect_numbers(claim, cells), _find_printed(claim, cells, duels, published, lower)
    used = {entry for duel in duels for entry in duel.entries}
    keys = pd.Series(list(zip(cells["_row"], cells["_column"], strict=True)), cells.index)
    pairs = [_make_pair(claim, duel, numbers, printed.get(duel), lower) for duel in duels]
    return pairs, cells[keys.isin(used)] if claim.against != "best" else cells[cells["_row"] != BEST_OTHER]


def _select_cells(claim: Claim, sweep: SweepTable) -> pd.DataFrame:
    """Return the cells with `_row`, `_setting`, `_column` and `_value`, only for the columns of the claim."""
    keys = find_columns(sweep.cells, label_cells(sweep.cells, "algorithm"))
    cells = tabulate_by_seed(sweep, claim.metric, "algorithm", keys)
    others = _find_best_others(claim, cells, claim.metric)
    if other := claim.minus or claim.mean_with:
        second = tabulate_by_seed(sweep, other, "algorithm", keys)
        for table, added in ((cells, second), (others, _find_best_others(claim, second, other))):
            together = table["_value"] - added["_value"] if claim.minus else (table["_value"] + added["_value"]) / 2
            table["_value"] = together
    cells = pd.concat([cells, others], ignore_index=True) if len(others) else cells
    cells = cells.assign(_setting=cells["_column"])
    if claim.average_over:
        cells = cells.assign(_column=drop_keys(cells, keys, claim.average_over))
    if claim.columns == "every":
        return cells
    wanted = {name for words in claim.columns for name in _match_names(words, cells["_column"], claim, "columns")}
    return cells[cells["_column"].isin(wanted)]


def _find_best_others(claim: Claim, cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return for `against: best` the cells, in each setting, of the other row with the best mean, all in one row.

    A setting in which another row still lacks a seed has no best one yet: its values are NaN.
    """
    if claim.against != "best":
        return cells.iloc[:0].copy()
    rest = cells[cells["_row"] != _match_one(claim.method, cells["_row"], claim, "method")]
    found, worst = [], math.inf if is_smaller_better(metric, cells) else -math.inf
    for _, setting in rest.groupby("_column", sort=False):
        means = setting.groupby("_row", sort=False)["_value"].mean().fillna(worst)
        best = setting[setting["_row"] == (means.idxmin() if worst > 0 else means.idxmax())].sort_values("seed")
        if setting["_value"].isna().any():
            best = best.assign(_value=math.nan, _lost=bool(setting["_lost"].any()))
        found.append(best.assign(_row=BEST_OTHER))
    return pd.concat(found, ignore_index=True)


def _match_names(words: str, names: pd.Series, claim: Claim, option: str) -> list[str]:
    """Return the names equal to `words`, else all that contain each of the words; METHOD also names METHOD@forms, which
    is what an older store calls it. Raises UserError for none.
    """
    known = list(dict.fromkeys(map(str, names)))
    if words in known:
        return [words]
    found = [name for name in known if set(words.split()) <= set(name.split())]
    found = found or [name for name in known if set(words.split()) <= set(name.replace("@forms", "").split())]
    if not found:
        raise UserError(f"claims.{claim.name}.{option}: {words!r} is none of {', '.join(known)}")
    return found


def _match_one(words: str, names: pd.Series, claim: Claim, option: str) -> str:
    """Return the only name that matches. Raises UserError for several."""
    found = _match_names(words, names, claim, option)
    if len(found) > 1:
        raise UserError(f"claims.{claim.name}.{option}: {words!r} may be {' or '.join(found)}; name one")
    return found[0]


def _list_rivals(claim: Claim, rows: pd.Series) -> list[str]:
    """Return the rows of `against`, in the table's order."""
    if claim.against == "best":
        return [BEST_OTHER]
    if claim.against == "all":
        return list(dict.fromkeys(map(str, rows)))
    return list(dict.fromkeys(name for words in claim.against for name in _match_names(words, rows, claim, "against")))


def _list_rows(claim: Claim, rows: pd.Series) -> list[str]:
    """Return the rows of `method`; `all` names every row."""
    if claim.method == "all":
        return list(dict.fromkeys(map(str, rows)))
    return _match_names(claim.method, rows, claim, "method")


def _oppose_values(claim: Claim, cells: pd.DataFrame) -> list[Duel]:
    """Compare a method with its rivals or a number, for `insensitive` its rows with each other, in every column."""
    rows, columns = cells["_row"], list(dict.fromkeys(map(str, cells["_column"])))
    if claim.to is not None:
        names = _list_rows(claim, rows)
        return [
            Duel(column, row, f"{claim.to:g}", Side(((row, column),)), Side(())) for column in columns for row in names
        ]
    if claim.relation == "insensitive":
        names = _match_several(claim.method, rows, claim, "method")
        couples = list(itertools.combinations(names, 2))
    else:
        method = _match_one(claim.method, rows, claim, "method")
        couples = [(method, rival) for rival in _list_rivals(claim, rows) if rival != method]
    return [
        Duel(column, row, rival, Side(((row, column),)), Side(((rival, column),)))
        for column in columns
        for row, rival in couples
    ]


def _match_several(words: str, rows: pd.Series, claim: Claim, option: str) -> list[str]:
    """Return the rows that match, at least two. Raises UserError for one."""
    found = _match_names(words, rows, claim, option)
    if len(found) < 2:
        raise UserError(f"claims.{claim.name}.{option}: {words!r} is one row; {claim.relation} compares several")
    return found


def _oppose_spreads(claim: Claim, cells: pd.DataFrame) -> list[Duel]:
    """Compare the range of the method's rows with that of the rivals' rows, in every column."""
    sides = {
        " ".join(words): list(
            dict.fromkeys(row for one in words for row in _match_several(one, cells["_row"], claim, option))
        )
        for words, option in (([claim.method], "method"), (claim.against, "against"))
    }
    (ours, rows), (theirs, rivals) = sides.items()
    return [
        Duel(
            column,
            ours,
            theirs,
            Side(tuple((row, column) for row in rows), "spread"),
            Side(tuple((row, column) for row in rivals), "spread"),
        )
        for column in dict.fromkeys(map(str, cells["_column"]))
    ]


def _oppose_drops(claim: Claim, cells: pd.DataFrame) -> list[Duel]:
    """Compare the method's drop from the first column to the second with that of each rival."""
    first, second = (_match_one(words, cells["_column"], claim, "columns") for words in claim.columns)
    method = _match_one(claim.method, cells["_row"], claim, "method")

    def side(row: str) -> Side:
        return Side(((row, first), (row, second)), "drop")

    return [
        Duel(f"{first} to {second}", method, rival, side(method), side(rival))
        for rival in _list_rivals(claim, cells["_row"])
        if rival != method
    ]


def _oppose_falls(claim: Claim, cells: pd.DataFrame) -> list[Duel]:
    """Compare each of the method's rows in every column except the last with the same row in the last."""
    names = _list_rows(claim, cells["_row"])
    *firsts, last = (_match_one(words, cells["_column"], claim, "columns") for words in claim.columns)
    return [
        Duel(f"{first} to {last}", row, row, Side(((row, first),)), Side(((row, last),)))
        for first in firsts
        for row in names
    ]


def _collect_numbers(claim: Claim, cells: pd.DataFrame) -> Numbers:
    """Return the runs' numbers by entry.

    A run that never reached the target counts with its number of rounds, as if the last one had reached it, which
    understates how slow it is. Averages over settings leave such runs out.
    """
    if not claim.average_over:
        rounds = pd.Series([spec.get("training.rounds") for spec in iter_specs(cells)], cells.index, dtype=float)
        cells = cells.assign(_value=cells["_value"].where(~cells["_never"], rounds))
    settings: dict[str, set[str]] = defaultdict(set)
    for column, setting in zip(cells["_column"], cells["_setting"], strict=True):
        settings[column].add(setting)
    found: dict[Entry, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    never: dict[Entry, set[str]] = defaultdict(set)
    lost: dict[Entry, set[str]] = defaultdict(set)
    columns = ("_row", "_column", "seed", "_value", "_never", "_lost")
    for row, column, seed, value, none, ended in zip(*(cells[name] for name in columns), strict=True):
        if pd.notna(value):
            found[row, column][seed].append(float(value))
        if none or ended:
            (never if none else lost)[row, column].add(seed)
    values = {
        (row, column): {seed: fmean(of) for seed, of in by_seed.items() if len(of) == len(settings[column])}
        for (row, column), by_seed in found.items()
    }
    return Numbers(values, never, lost)


def _make_pair(claim: Claim, duel: Duel, numbers: Numbers, printed: float | None, lower: bool) -> Pair:
    """Return the pair of a duel: a gap for each seed except lost ones."""
    ours, theirs = ([numbers.never[entry] for entry in side.entries] for side in (duel.ours, duel.theirs))
    plain = duel.ours.form == "value"
    nowhere = set.intersection(*ours, *theirs) if plain else set.union(*ours, *theirs)
    gaps = _compute_gaps(claim, duel, numbers.values, lower)
    lost = nowhere.union(*(numbers.lost[entry] for entry in duel.entries))
    lost |= {seed for seed, gap in gaps.items() if gap is None}
    if claim.average_over:
        lost = lost.union(*ours, *theirs)
    left = tuple(gap for seed, gap in gaps.items() if gap is not None and seed not in nowhere)
    alike = claim.metric.startswith("megabytes_") and len(left) > 1 and len(set(left)) == 1
    exact = claim.metric in COUNTED or alike
    return Pair(duel.column, duel.row, duel.rival, left, printed, exact, len(lost))


def _compute_gaps(
    claim: Claim, duel: Duel, found: Mapping[Entry, Mapping[str, float]], lower: bool
) -> dict[str, float | None]:
    """Return seed -> how much better ours is, in the claim's unit; None for a percentage of 0."""
    ours = duel.ours.get_by_seed(found)
    theirs = duel.theirs.get_by_seed(found) if claim.to is None else dict.fromkeys(ours, claim.to)
    lower = {"value": lower != (claim.relation == "worse"), "drop": not lower, "spread": True}[duel.ours.form]
    gaps: dict[str, float | None] = {}
    for seed in filter(theirs.__contains__, ours):
        other = theirs[seed]
        gap = (ours[seed] - other) * (-1 if lower else 1)
        gaps[seed] = gap if claim.unit == "points" else 100 * gap / abs(other) if other else None
    return gaps


def _find_printed(
    claim: Claim, cells: pd.DataFrame, duels: Sequence[Duel], published: str, lower: bool
) -> dict[Duel, float]:
    """Return the paper's gaps: to the rival, or for `against: all` or `best` to the best other row that it prints."""
    if not published:
        return {}
    groups = {
        (str(row), str(column)): list(configs)
        for (row, column), configs in cells.groupby(["_row", "_column"], sort=False)["spec"]
    }
    values = find_printed_values(published, claim.metric, groups, bool(claim.average_over))
    if name := claim.minus or claim.mean_with:
        second = find_printed_values(published, name, groups, bool(claim.average_over))
        sign, count = (-1, 1) if claim.minus else (1, 2)
        values = {entry: (values[entry] + sign * second[entry]) / count for entry in values.keys() & second.keys()}
    others = find_best_others(published, claim.metric, groups, bool(claim.average_over), lower)
    against_best = isinstance(claim.against, str) and claim.relation == "better" and not name and claim.to is None
    found = {}
    for duel in duels:
        known = {entry: {"paper": values[entry]} for entry in duel.entries if entry in values}
        if against_best and duel.ours.entries[0] in others:
            known[duel.theirs.entries[0]] = {"paper": others[duel.ours.entries[0]]}
        elif against_best:
            known.pop(duel.theirs.entries[0], None)
        if (gap := _compute_gaps(claim, duel, known, lower).get("paper")) is not None:
            found[duel] = gap
    return found
