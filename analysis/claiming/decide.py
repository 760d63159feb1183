"""Whether results bear a claim out.

A comparison is a method and a rival in a column; its gaps are paired by seed and turned so that more is better. Every
comparison has a region of gaps that bear the claim out. The claim holds where all 95 % intervals lie inside their
regions: all of them have to, so no correction is needed. It does not hold where an interval lies outside; there one is
enough, so those intervals are corrected for the number of comparisons (Bonferroni). Otherwise it is not told apart.

Seeds whose runs diverged, were ended or never reached the target have no gap and never will. What is left would say how
the methods compare where both go well, so it decides nothing: the claim has no number.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.compare import one_per_seed
from analysis.reading.axes import labels, separating
from analysis.reading.collect import SweepTable
from analysis.reading.metrics import COUNTED, lower_is_better
from analysis.statistics.intervals import Interval, student
from analysis.tables import averaged_over
from analysis.tabling.published import best_others, printed_values, tables
from fedray.common.errors import UserError
from fedray.sweep.file.claims import Claim

HOLDS, REFUTED, OPEN, NOT_RUN, LOST = "holds", "does not hold", "not told apart", "not run yet", "no number"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Pair:
    """A method against a rival in a column. gaps: by seed, positive in the claim's favour; printed: the paper's."""

    column: str
    row: str
    rival: str
    gaps: tuple[float, ...]
    printed: float | None = None
    exact: bool = False
    """Whether the metric is counted, not measured, so that no seed changes it."""
    lost: int = 0
    """Seeds without a gap for good: a run of them has ended without a number."""

    @property
    def mean(self) -> float | None:
        return sum(self.gaps) / len(self.gaps) if self.gaps else None

    @property
    def interval(self) -> Interval | None:
        return self.bounds(CONFIDENCE)

    def bounds(self, confidence: float) -> Interval | None:
        """Student's interval; a point where no seed changes the number."""
        if self.exact and self.mean is not None:
            return Interval(self.mean, self.mean)
        return student(self.gaps, confidence)


@dataclass(frozen=True)
class Verdict:
    """What was decided on some pairs; of a whole claim, or of one of its columns."""

    status: str
    pairs: list[Pair]
    leads: bool
    """Whether the gaps are to be large; of `within` and `insensitive` they are to be small."""

    @property
    def closest(self) -> Pair | None:
        """The pair that speaks most against the claim: the smallest lead, or of `within` the widest gap."""
        ran = [pair for pair in self.pairs if pair.gaps]
        return min(ran, key=lambda pair: (pair.mean or 0.0) if self.leads else -abs(pair.mean or 0.0), default=None)

    @property
    def printed(self) -> float | None:
        """The paper's gap where it speaks most against the claim."""
        gaps = [pair.printed for pair in self.pairs if pair.printed is not None]
        return min(gaps, default=None) if self.leads else max(gaps, key=abs, default=None)

    @property
    def seeds(self) -> tuple[int, int]:
        """Fewest and most paired seeds."""
        counts = [len(pair.gaps) for pair in self.pairs]
        return min(counts, default=0), max(counts, default=0)


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict, that of each column, and the cells that it rests on."""

    claim: Claim
    sweep: SweepTable
    whole: Verdict
    columns: dict[str, Verdict]
    cells: pd.DataFrame
    published: str = ""


def decide(claim: Claim, sweep: SweepTable) -> Decided:
    """Decide a claim on a sweep's runs.

    Raises:
        UserError: for a method, rival or column that the sweep does not have, or runs that cannot be paired.
    """
    cells = _values(claim, sweep)
    pairs = _pairs(claim, cells)
    published = claim.published or (sweep.name if sweep.name in tables() else "")
    if published:
        pairs = _with_printed(claim, cells, pairs, published)
    leads = claim.relation == "better"
    columns = {
        column: Verdict(verdict(claim, of_column, len(pairs)), of_column, leads)
        for column in dict.fromkeys(pair.column for pair in pairs)
        if (of_column := [pair for pair in pairs if pair.column == column])
    }
    used = cells[
        cells["_column"].isin(columns)
        & cells["_row"].isin({pair.row for pair in pairs} | {pair.rival for pair in pairs})
    ]
    return Decided(claim, sweep, Verdict(verdict(claim, pairs, len(pairs)), pairs, leads), columns, used, published)


def verdict(claim: Claim, pairs: Sequence[Pair], comparisons: int) -> str:
    """The status of pairs, `comparisons` of which the claim has in all."""
    if not any(pair.gaps or pair.lost for pair in pairs):
        return NOT_RUN
    low, high = (claim.by, math.inf) if claim.relation == "better" else (-claim.by, claim.by)
    strict = 1 - (1 - CONFIDENCE) / comparisons
    for pair in pairs:
        found = pair.bounds(strict)
        if not pair.lost and found is not None and (found.high < low or found.low > high):
            return REFUTED
    if not all(pair.gaps or pair.lost for pair in pairs):
        return NOT_RUN
    if any(pair.lost for pair in pairs):
        return LOST
    bounds = [pair.interval for pair in pairs]
    inside = [found is not None and found.low > low and found.high < high for found in bounds]
    return HOLDS if all(inside) else OPEN


def _values(claim: Claim, sweep: SweepTable) -> pd.DataFrame:
    """The cells with `_row`, `_setting`, `_column` and `_value`; only the columns that the claim is about."""
    keys = separating(sweep.cells, labels(sweep.cells, "algorithm"))
    cells = one_per_seed(sweep, claim.metric, "algorithm", keys)
    cells = cells.assign(_setting=cells["_column"])
    if claim.over:
        cells = cells.assign(_column=averaged_over(cells, keys, claim.over))
    if claim.columns == "every":
        return cells
    wanted = {name for words in claim.columns for name in _matching(words, cells["_column"], claim, "columns")}
    return cells[cells["_column"].isin(wanted)]


def _matching(words: str, names: pd.Series, claim: Claim, option: str) -> list[str]:
    """The names that are `words`, else those that contain each of the words. Raises UserError for none."""
    known = list(dict.fromkeys(map(str, names)))
    if words in known:
        return [words]
    found = [name for name in known if set(words.split()) <= set(name.split())]
    if not found:
        raise UserError(f"claims.{claim.name}.{option}: {words!r} is none of {', '.join(known)}")
    return found


def _pairs(claim: Claim, cells: pd.DataFrame) -> list[Pair]:
    methods = _matching(claim.method, cells["_row"], claim, "method")
    if claim.relation == "insensitive":
        if len(methods) < 2:
            raise UserError(f"claims.{claim.name}.method: {claim.method!r} is one row; insensitive compares several")
        duels = list(itertools.combinations(methods, 2))
    else:
        if len(methods) > 1:
            raise UserError(f"claims.{claim.name}.method: {claim.method!r} may be {' or '.join(methods)}; name one")
        rivals = (
            dict.fromkeys(map(str, cells["_row"]))
            if claim.against == "all"
            else {name: None for words in claim.against for name in _matching(words, cells["_row"], claim, "against")}
        )
        duels = [(methods[0], rival) for rival in rivals if rival != methods[0]]
    settings = {str(column): g["_setting"].nunique() for column, g in cells.groupby("_column", sort=False)}
    value = {
        (str(row), str(column)): _by_seed(group, settings[str(column)])
        for (row, column), group in cells.groupby(["_row", "_column"], sort=False)
    }
    lost = {
        (str(row), str(column)): set(group.loc[group["_lost"], "seed"])
        for (row, column), group in cells.groupby(["_row", "_column"], sort=False)
    }
    lower = lower_is_better(claim.metric, cells)
    return [
        _pair(claim, (column, row, rival), (value[row, column], value[rival, column]), lost, lower)
        for column in settings
        for row, rival in duels
        if (row, column) in value and (rival, column) in value
    ]


def _by_seed(group: pd.DataFrame, settings: int) -> pd.Series:
    """Seed -> the mean over the settings of a column; a seed that lacks one of them is left out."""
    by_seed = group.dropna(subset="_value").groupby("seed")["_value"]
    return by_seed.mean()[by_seed.count() == settings]


def _pair(
    claim: Claim,
    names: tuple[str, str, str],
    values: tuple[pd.Series, pd.Series],
    lost: Mapping[tuple[str, str], set[str]],
    lower: bool,
) -> Pair:
    """The pair of a column, a row and a rival, from seed -> value of row and rival, and the seeds that are lost."""
    column, row, rival = names
    both = pd.concat([values[0].rename("ours"), values[1].rename("theirs")], axis=1).dropna()
    turned = [_turned(claim, float(a), float(b), lower) for a, b in zip(both["ours"], both["theirs"], strict=True)]
    gaps = tuple(gap for gap in turned if gap is not None)
    without = len(lost[row, column] | lost[rival, column]) + len(turned) - len(gaps)
    alike = claim.metric.startswith("megabytes_") and len(gaps) > 1 and len(set(gaps)) == 1
    return Pair(column, row, rival, gaps, exact=claim.metric in COUNTED or alike, lost=without)


def _turned(claim: Claim, ours: float, theirs: float, lower: bool) -> float | None:
    """The gap in the claim's unit, positive where ours is better; None for a percentage of 0."""
    gap = (ours - theirs) * (-1 if lower else 1)
    if claim.unit == "points":
        return gap
    return 100 * gap / abs(theirs) if theirs else None


def _with_printed(claim: Claim, cells: pd.DataFrame, pairs: list[Pair], published: str) -> list[Pair]:
    """The pairs with the paper's gaps: to the rival, or for `against: all` to the best other row that it prints."""
    groups = {(str(row), str(column)): group for (row, column), group in cells.groupby(["_row", "_column"], sort=False)}
    lower = lower_is_better(claim.metric, cells)
    values = printed_values(published, claim.metric, groups, bool(claim.over))
    others = best_others(published, claim.metric, groups, bool(claim.over), lower)
    result = []
    for pair in pairs:
        ours, theirs = values.get((pair.row, pair.column)), values.get((pair.rival, pair.column))
        if claim.against == "all" and claim.relation == "better":
            theirs = others.get((pair.row, pair.column))
        gap = None if ours is None or theirs is None else _turned(claim, ours, theirs, lower)
        result.append(replace(pair, printed=gap))
    return result
