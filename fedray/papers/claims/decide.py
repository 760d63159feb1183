"""Decides whether results support a claim.

A comparison is a method and a rival in a column; its gaps are paired by seed and oriented so that more is better. Every
comparison has a region of gaps that support the claim. The claim holds if all 95 % intervals are inside their regions;
all of them have to be, so no correction is needed. It does not hold if an interval is outside its region; one is
enough, so these intervals are corrected for the number of comparisons (Bonferroni). Otherwise it is not told apart.

A claim on most columns, or on most comparisons, holds if it holds in more than half of them, each at a level corrected
for their number. It does not hold once that is impossible: it does not hold in at least half of them.

Seeds whose runs diverged or were ended have no gap and never will, and neither have seeds with which neither side
reached the target. The remaining seeds would only compare the methods where both do well, so they decide nothing: the
claim has no number. If only one side never reaches the target, it is the slower one (`fedray.papers.claims.pairs`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import holds_samples_out, make_title
from fedray.analysis.tables.published import list_tables
from fedray.papers.claims.pairs import CONFIDENCE, Pair, make_pairs
from fedray.sweep.file.claims import Claim

HOLDS, REFUTED, OPEN, NOT_RUN, LOST = "holds", "does not hold", "not told apart", "not run yet", "no number"


@dataclass(frozen=True)
class Verdict:
    """Decision on some pairs: on a whole claim, or on one of its columns."""

    status: str
    pairs: list[Pair]
    leads: bool
    """True if gaps should be large; for `within` and `insensitive` they should be small."""

    @property
    def closest(self) -> Pair | None:
        """The pair that contradicts the claim most: the smallest lead, or for `within` the widest gap."""
        ran = [pair for pair in self.pairs if pair.gaps]
        return min(ran, key=lambda pair: (pair.mean or 0.0) if self.leads else -abs(pair.mean or 0.0), default=None)

    @property
    def printed(self) -> float | None:
        """The paper's gap that contradicts the claim most."""
        gaps = [pair.printed for pair in self.pairs if pair.printed is not None]
        return min(gaps, default=None) if self.leads else max(gaps, key=abs, default=None)

    @property
    def seeds(self) -> tuple[int, int]:
        """Smallest and largest number of paired seeds."""
        counts = [len(pair.gaps) for pair in self.pairs]
        return min(counts, default=0), max(counts, default=0)


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict, the verdict of each column, and the cells that it is based on."""

    claim: Claim
    sweep: SweepTable
    whole: Verdict
    columns: dict[str, Verdict]
    cells: pd.DataFrame
    published: str = ""

    @property
    def metric(self) -> str:
        """The claim's metric in words."""
        held_out = holds_samples_out(self.sweep)
        names = (self.claim.metric, self.claim.minus or self.claim.mean_with)
        said = (make_title(name, self.sweep.cells, held_out) for name in names if name)
        return (", minus " if self.claim.minus else ", averaged with ").join(said)


def decide(claim: Claim, sweep: SweepTable) -> Decided:
    """Decide a claim on a sweep's runs.

    Raises:
        UserError: the sweep lacks a method, rival or column, or its runs cannot be paired.
    """
    published = claim.published or (sweep.name if sweep.name in list_tables() else "")
    pairs, cells = make_pairs(claim, sweep, published)
    leads = claim.relation not in ("within", "insensitive")
    columns = {
        column: Verdict(decide_pairs(claim, of_column, len(pairs)), of_column, leads)
        for column in dict.fromkeys(pair.column for pair in pairs)
        if (of_column := [pair for pair in pairs if pair.column == column])
    }
    groups = columns
    if claim.holds_in == "most_comparisons":
        each = {f"{pair.column}, {pair.row}, {pair.rival}": [pair] for pair in pairs}
        groups = {name: Verdict(decide_pairs(claim, pair, len(pairs)), pair, leads) for name, pair in each.items()}
    status = decide_pairs(claim, pairs, len(pairs)) if claim.holds_in == "every" else decide_most(claim, groups)
    return Decided(claim, sweep, Verdict(status, pairs, leads), columns, cells, published)


def decide_pairs(claim: Claim, pairs: Sequence[Pair], comparisons: int) -> str:
    """Return the status of pairs; `comparisons` is the claim's total number of pairs."""
    if not any(pair.gaps or pair.lost for pair in pairs):
        return NOT_RUN
    low, high = _get_region(claim)
    strict = 1 - (1 - CONFIDENCE) / comparisons
    for pair in pairs:
        found = pair.get_interval(strict)
        if not pair.lost and found is not None and (found.high < low or found.low > high):
            return REFUTED
    if not all(pair.gaps or pair.lost for pair in pairs):
        return NOT_RUN
    if any(pair.lost for pair in pairs):
        return LOST
    return HOLDS if _are_inside(claim, pairs, CONFIDENCE) else OPEN


def decide_most(claim: Claim, groups: Mapping[str, Verdict]) -> str:
    """Return the status of a claim on most columns or comparisons, from their verdicts."""
    if not groups:
        return NOT_RUN
    strict, statuses = 1 - (1 - CONFIDENCE) / len(groups), [found.status for found in groups.values()]
    held = [found.status == HOLDS and _are_inside(claim, found.pairs, strict) for found in groups.values()]
    if sum(held) > len(groups) / 2:
        return HOLDS
    if statuses.count(REFUTED) >= len(groups) / 2:
        return REFUTED
    return next((status for status in (NOT_RUN, LOST) if status in statuses), OPEN)


def _get_region(claim: Claim) -> tuple[float, float]:
    """Return the gaps that support a claim."""
    return (-claim.by, claim.by) if claim.relation in ("within", "insensitive") else (claim.by, math.inf)


def _are_inside(claim: Claim, pairs: Sequence[Pair], confidence: float) -> bool:
    low, high = _get_region(claim)
    bounds = [pair.get_interval(confidence) for pair in pairs]
    return all(found is not None and found.low > low and found.high < high for found in bounds)
