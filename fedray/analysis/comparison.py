"""All comparisons of a sweep's methods with one of them: `fedray compare SWEEP [SWEEP ...] [--reference fedavg]`.

Paired: for every method and setting the differences from the reference in the same setting and with the same seed (same
data, partition and cohorts), their mean, its interval, and the paired t-test's p, adjusted by Holm's method for the
methods of a setting. Over all settings: the pairs that it wins. Beside them each method's mean, and what its training
cost.
"""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from fedray.analysis.data.axes import (
    FINISHED,
    find_columns,
    find_keys,
    find_label,
    label_cells,
    list_unlike,
    unknown_row,
)
from fedray.analysis.data.collect import SweepTable, collect, list_plugins, parse
from fedray.analysis.data.metrics import (
    NEVER,
    count_digits,
    describe_doubts,
    describe_target,
    find_mean,
    is_smaller_better,
    make_title,
    read_values,
)
from fedray.analysis.statistics import (
    BOOTSTRAP_SEEDS,
    MOST_SEEDS,
    POWER,
    Interval,
    apply_holm,
    bootstrap,
    bound_mean,
    bound_proportion,
    compute_p,
    count_seeds,
    find_effect,
    flip_signs,
)
from fedray.cells.metric import DEFAULT, FEWEST_SEEDS, Metric, describe_few_seeds
from fedray.cells.status import Status
from fedray.common.entry import Json, format_json
from fedray.common.errors import UserError, format_count
from fedray.common.output import escape_markdown, format_grid, write_or_print
from fedray.engine.sampling import draw_cohort
from fedray.sweep.draws import count_of_client

DIFFERENCE_HEADER = ("method", "setting", "n", "mean", "difference")
COSTS = ("gradients", "megabytes")
DETECTED = {
    "detectable": "the smallest true difference that so many seeds of this spread show with a probability of "
    f"{100 * POWER:g} %, at the level of the first of Holm's tests",
    "n needed": f"seeds to tell a difference of this size and spread apart with a probability of {100 * POWER:g} %",
}
"""Column -> what it is."""
FLIPS = "sign-flip p"
ACROSS = 120
"""Maximum number of letters in a line of the printed table."""


@dataclass(frozen=True)
class Difference:
    """Method minus reference over paired seeds of one setting.

    Attributes:
        pairs: a difference for each seed that both have. Of rounds to a target it is infinite if only one of the two
            never arrives, NaN if neither does.
        unpaired: seeds of the method or of the reference whose partner has no value.
        p: p of the paired t-test.
        adjusted: p by Holm's method among the `family` methods of the setting.
    """

    row: str
    column: str
    pairs: tuple[float, ...]
    unpaired: int
    confidence: float
    p: float | None = None
    adjusted: float | None = None
    family: int = 1

    @property
    def gaps(self) -> tuple[float, ...]:
        """The differences that are numbers."""
        return tuple(gap for gap in self.pairs if math.isfinite(gap))

    @property
    def n(self) -> int:
        return len(self.gaps)

    @property
    def never(self) -> int:
        """Number of pairs in which one never arrives, or neither."""
        return len(self.pairs) - self.n

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.gaps)) if self.gaps else None

    @property
    def tested(self) -> tuple[float, ...]:
        """The differences that intervals and tests take: none if they are too few, or of those alone that arrive."""
        return self.gaps if self.n >= FEWEST_SEEDS and not self.never else ()

    def count_late(self) -> dict[str, int]:
        """Return in how many pairs one of the two never arrives, the method or the reference, and in how many both."""
        ours, theirs = self.pairs.count(math.inf), self.pairs.count(-math.inf)
        return {"never": ours, "reference never": theirs, "neither": self.never - ours - theirs}

    @property
    def interval(self) -> Interval | None:
        return bound_mean(self.tested, self.confidence)

    @cached_property
    def flips(self) -> float | None:
        """p of the sign-flip test."""
        return flip_signs(self.tested)

    @property
    def spread(self) -> float:
        """Sample standard deviation of the differences; 0 for equal ones, but for the last bits."""
        return float(np.std(self.gaps, ddof=1)) if self.interval else 0.0

    @property
    def decided(self) -> tuple[float, ...]:
        """The pairs in which at least one arrives."""
        return tuple(gap for gap in self.pairs if not math.isnan(gap))

    def count_won(self, lower: bool) -> float:
        """Return how many of `decided` the method wins; a tie counts half, and who never arrives loses."""
        return sum(0.5 if gap == 0 else float((gap < 0) == lower) for gap in self.decided)

    def find_detectable(self) -> float | None:
        """Smallest true difference that as many seeds of this spread tell apart; None without a spread.

        At the level of the first of Holm's tests; a smaller one is more likely missed than found.
        """
        return find_effect(self.n, (1 - self.confidence) / self.family) * self.spread if self.spread else None

    def count_needed_seeds(self) -> int | None:
        """Seeds needed to tell a difference of this size and spread apart, as `detectable`; None above 1000."""
        return None if self.mean is None else count_seeds(self.mean, self.spread, (1 - self.confidence) / self.family)

    def judge(self, lower: bool) -> str:
        """Return `better` or `worse` if the adjusted p is at most 1 - confidence, otherwise `not told apart`."""
        if self.adjusted is None or self.mean is None:
            wins = f"; wins {self.count_won(lower):g} of {len(self.decided)}" if self.decided else ""
            return f"no test{wins}" if len(self.pairs) >= FEWEST_SEEDS else "too few seeds"
        if self.adjusted > 1 - self.confidence + 1e-12:
            return "not told apart"
        return "better" if (self.mean < 0) == lower else "worse"


def tabulate_by_seed(sweep: SweepTable, metric: str, rows: str, columns: str) -> pd.DataFrame:
    """Return the cells with `_row`, `_column` and `_value`: NaN if a cell has not finished or the metric is undefined,
    NEVER if it has never reached the target.

    Raises UserError if a metric or key is unknown, the metric is a ratio of runs, or several runs share method, setting
    and seed.
    """
    if "," in metric:
        raise UserError(f"--metric: found {metric!r}; a comparison takes one metric")
    if (ratio := Metric.parse(metric)).reference:
        raise UserError(f"--metric: found {metric!r}, which compares runs already; {ratio.rounds} is allowed")
    cells = sweep.cells.assign(_value=read_values(sweep, metric), _row=label_cells(sweep.cells, rows))
    columns = columns or find_columns(cells, cells["_row"])
    cells = cells.assign(_column=label_cells(cells, columns))
    if cells.duplicated(["_row", "_column", "seed"]).any():
        raise UserError(f"--cols: with {columns!r} several runs share method, setting and seed; name what differs")
    return cells


def pair_by_seed(cells: pd.DataFrame, to: str, confidence: float) -> list[Difference]:
    """Compare every method and setting of `tabulate_by_seed`'s cells with the reference row `to`.

    Raises UserError if the row is unknown, or the confidence is outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise UserError(f"--confidence: expected a number between 0 and 1, got {confidence}")
    if not to:
        raise UserError(
            f"--reference: fedavg is not a row; one of these is required: {', '.join(cells['_row'].unique())}"
        )
    if to not in set(cells["_row"]):
        raise unknown_row("--reference", to, cells["_row"])
    by_seed = {key: group.set_index("seed")["_value"] for key, group in cells.groupby(["_row", "_column"], sort=False)}
    nothing = pd.Series(dtype=float)
    found = []
    for (row, column), ours in by_seed.items():
        if row != to:
            theirs = by_seed.get((to, column), nothing)
            both = pd.concat([ours.rename("ours"), theirs.rename("theirs")], axis=1)
            pairs = both.dropna().astype(float)
            gaps = tuple((pairs["ours"] - pairs["theirs"]).round(9) + 0.0)  # means of the same counts are equal
            unpaired = int(both.notna().any(axis=1).sum()) - len(pairs)
            one = Difference(str(row), str(column), gaps, unpaired, confidence)
            found.append(replace(one, p=compute_p(one.tested)))
    return adjust_p_values(found)


def adjust_p_values(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with Holm's p within their setting."""
    families: dict[str, list[int]] = {}
    for index, one in enumerate(differences):
        if one.p is not None:
            families.setdefault(one.column, []).append(index)
    result = list(differences)
    for family in families.values():
        p_values = apply_holm([p for index in family if (p := differences[index].p) is not None])
        for index, p in zip(family, p_values, strict=True):
            result[index] = replace(result[index], adjusted=p, family=len(family))
    return result


@dataclass(frozen=True)
class Comparison:
    """All methods of a sweep against one, in each setting and over all settings.

    title: the metric in words. lower: True if its smallest value is the best. notes: on the metric and the cells.
    means: a line per method and setting with the mean over its finished runs of the metric (`_value`), the batch
    gradients and the megabytes to and from the clients (NaN if they are not known); `never`: how many of them have no
    value because they never arrive; `diverged`: how many others diverged.
    """

    sweep: str
    to: str
    metric: str
    title: str
    lower: bool
    notes: list[str]
    confidence: float
    differences: list[Difference]
    means: pd.DataFrame

    @property
    def digits(self) -> int:
        """Digits after the point, as in tables."""
        return count_digits(self.means["_value"], self.metric)

    @property
    def lacks_seeds(self) -> bool:
        """True if no method has enough seeds for an interval or a test."""
        return bool(self.differences) and all(len(one.pairs) < FEWEST_SEEDS for one in self.differences)


def find_reference(cells: pd.DataFrame, given: str, found: Iterable[str], rows: str = "algorithm") -> str:
    """Return the row that is the reference: the given one, or else fedavg if it is among those found; empty if not."""
    label = find_label(cells, given or "fedavg", rows)
    return label if given or label in set(found) else ""


def compare(
    sweep: SweepTable,
    to: str = "",
    metric: str = DEFAULT,
    confidence: float = 0.95,
    rows: str = "algorithm",
    columns: str = "",
) -> Comparison:
    """Compare every method with the reference row `to`, by default fedavg if it is a row.

    Raises UserError if a row, metric or key is unknown, there is no reference, the confidence is outside (0, 1), or
    several runs share method, setting and seed.
    """
    rows, columns = (find_keys(keys, sweep.cells) for keys in (rows, columns))
    cells = tabulate_by_seed(sweep, metric, rows, columns)
    to = find_reference(sweep.cells, to, cells["_row"], rows)
    notes = [*describe_target(sweep, metric, cells, never=False), *list_unlike(cells, rows, columns)]
    notes += describe_doubts(sweep, metric)
    differences, lower = pair_by_seed(cells, to, confidence), is_smaller_better(metric, sweep.cells)
    cells = cells.assign(
        _value=cells["_value"].replace(NEVER, math.nan),
        never=cells["_value"] == NEVER,
        diverged=(cells["status"] == Status.DIVERGED) & cells["_value"].isna(),
    )
    title = make_title(metric, sweep.cells)
    return Comparison(sweep.name, to, metric, title, lower, notes, confidence, differences, _average(sweep, cells))


def _average(sweep: SweepTable, cells: pd.DataFrame) -> pd.DataFrame:
    sent = [f"metrics.megabytes_{way}" for way in ("down", "up")]
    megabytes = cells[sent].sum(axis=1, skipna=False) if {*sent} <= {*cells} else math.nan
    cells = cells.assign(gradients=count_gradients(sweep), megabytes=megabytes)
    of_entry = cells.groupby(["_row", "_column"], sort=False)
    means: pd.DataFrame = of_entry[["_value", *COSTS]].agg(find_mean)
    return means.assign(never=of_entry["never"].sum(), diverged=of_entry["diverged"].sum())


def tabulate(found: Comparison) -> list[list[str]]:
    """Return a header and a line per method and setting, as text: setting by setting, the reference first.

    Columns that say nothing are left out: intervals and verdicts of too few seeds, unknown costs, one `n` or cost for
    all, which is in `list_notes`.
    """
    header = [
        *DIFFERENCE_HEADER,
        "verdict",
        f"{100 * found.confidence:g} % t interval",
        "Holm's p",
        "bootstrap interval",
        FLIPS,
        *DETECTED,
        *COSTS,
    ]
    lines, columns = list[list[str]](), [*dict.fromkeys(one.column for one in found.differences)]
    for one in sorted(found.differences, key=lambda one: columns.index(one.column)):
        if (not lines or lines[-1][1] != one.column) and (found.to, one.column) in found.means.index:
            value, *costs = _list_means(found, found.to, one.column)
            lines.append([found.to, one.column, "", value, "", "reference", *[""] * 6, *costs])
        value, *costs = _list_means(found, one.row, one.column)
        detectable, few = one.find_detectable(), "-" if one.never else "too few seeds"
        late = {what.replace("reference", found.to): k for what, k in one.count_late().items()}
        apart = [f"{what}: {k}" for what, k in (("unpaired", one.unpaired), *late.items()) if k]
        lines.append(
            [
                one.row,
                one.column,
                " ".join(filter(None, [f"{one.n}", f"({', '.join(apart)})" if apart else ""])),
                value,
                "-" if one.mean is None else f"{one.mean:+z.{found.digits}f}",
                one.judge(found.lower),
                one.interval.format(found.digits) if one.interval else "-",
                _format_p(one.adjusted),
                drawn.format(found.digits) if (drawn := bootstrap(one.tested, found.confidence)) else few,
                _format_p(one.flips),
                f"{detectable:.{found.digits}f}" if detectable else "-",
                "-" if one.adjusted is None or one.spread == 0 else str(one.count_needed_seeds() or f"> {MOST_SEEDS}"),
                *costs,
            ]
        )
    if not lines:
        return [header]
    tested = {*DIFFERENCE_HEADER, *COSTS} if found.lacks_seeds else {*header}
    tested -= {FLIPS} if _are_flips_lowest(found) else set()
    said = [
        name in tested
        and any(text not in ("", "-", "too few seeds") for text in texts)
        and not (name in ("n", *COSTS) and len(lines) > 2 and len({*texts} - {""}) == 1)
        for name, texts in zip(header, zip(*lines, strict=True), strict=True)
    ]
    return [[text for text, kept in zip(line, said, strict=True) if kept] for line in (header, *lines)]


def _list_means(found: Comparison, row: str, column: str) -> list[str]:
    value, *costs, never, _ = map(float, found.means.loc[[(row, column)]].to_numpy()[0])
    texts = [f"{value:.{found.digits}f}", *(f"{cost:,.0f}" if cost > 99 else f"{cost:.3g}" for cost in costs)]
    mean, *told = ("-" if text == "nan" else text for text in texts)
    return [f"{mean} ({never:g} never)" if never else mean, *told]


def _are_flips_lowest(found: Comparison) -> bool:
    """Return True if no method's p of sign flips is above the least that its number of seeds can give."""
    return all(one.flips is None or one.flips <= 2.0 ** (1 - one.n) for one in found.differences)


def _format_p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def list_notes(found: Comparison, shown: Sequence[str]) -> list[str]:
    """Return notes that explain the numbers; `shown`: the header of `tabulate`."""
    level = 100 * (1 - found.confidence)
    seeds = sorted({len(one.pairs) for one in found.differences})
    paired = f"paired by {format_count(seeds[0], 'seed')}" if len(seeds) == 1 else "paired by seed"
    costs = " and ".join(name for name in COSTS if found.means[name].nunique() > 1)
    what = "of a run's training, all clients and rounds, mean over its seeds"
    is_known = found.means[[*COSTS]].notna().all(axis=None)
    what += "" if is_known else "; -: not known, as of a class of yours, or no run has finished"
    known = [f"{costs}: {what}"] if costs else []
    drawn = f", the bootstrap, of {BOOTSTRAP_SEEDS} seeds and more, does not" if "bootstrap interval" in shown else ""
    alone = (
        "each interval stands alone, without correction, so one without 0 may stand beside `not told apart`; the t "
        f"interval assumes normal differences{drawn}"
    )
    equal = any(one.tested and one.spread == 0 for one in found.differences)
    late = any(one.never for one in found.differences)
    flips = FLIPS + ("" if FLIPS in shown else ", each the least possible")
    flips += ": exact, without assuming normality, at least 2^(1 - n): 5 % needs six seeds or more"
    unpaired = any(one.unpaired or one.never for one in found.differences)
    known = [*describe_diverged(found), *known]
    of_pairs = ["n: pairs with two numbers; the difference is of these, a mean of all runs with one"] * unpaired
    of_pairs += ["never, neither: runs, or both runs of a pair, that do not reach the target"] * late
    if found.lacks_seeds:
        return [describe_few_seeds(seeds[-1], "paired seed"), *of_pairs, *known, *found.notes]
    return [
        f"{paired}; better or worse where the adjusted p is at most {level:.2g} %: the paired t-test's p, "
        f"corrected by Holm's method for the methods of a setting, so at most {level:.2g} % of settings without any "
        "difference show one; settings are not corrected for each other",
        *([alone] if any(one.interval for one in found.differences) else []),
        *([flips] if any(one.flips is not None for one in found.differences) else []),
        *of_pairs,
        *(f"{name}: {what}" for name, what in DETECTED.items() if name in shown),
        *(["-: equal differences have no spread; their p is that of sign flips"] if equal else []),
        *_describe_wins(found),
        *known,
        *found.notes,
    ]


def describe_diverged(found: Comparison) -> list[str]:
    """Return a note with the rows and settings that had runs that diverged."""
    lost = found.means[found.means["diverged"] > 0].reset_index()
    told = zip(lost["_row"], lost["_column"], lost["diverged"], strict=True)
    said = [f"{row} ({column}) ({count} diverged)" for row, column, count in told]
    return [f"runs that diverged are in no mean and no pair: {', '.join(said)}"] if said else []


def _describe_wins(found: Comparison) -> list[str]:
    """Return a note with the pairs of all settings that each method wins; methods with equal numbers share them."""
    rows, tie, late = dict[str, list[str]](), "", ""
    for row in dict.fromkeys(one.row for one in found.differences):
        of_row = [one for one in found.differences if one.row == row]
        if pairs := sum(len(one.decided) for one in of_row):
            won = sum(one.count_won(found.lower) for one in of_row)
            bound = bound_proportion(won, pairs, found.confidence)
            share = f"{won / pairs:.2f} ({bound.low:.2f} .. {bound.high:.2f})"
            rows.setdefault(f"{won:g} of {pairs}: {share}", []).append(row)
            tie = "; a tie counts half" if won % 1 else tie
            late = "; who never arrives loses, neither is left out" if any(one.never for one in of_row) else late
    about = f"pairs with the same setting and seed that beat {found.to} (Clopper and Pearson's interval{tie}{late})"
    return [f"{about}: " + "; ".join(f"{said} by {', '.join(of)}" for said, of in rows.items())] if rows else []


def format_report(found: Comparison) -> str:
    """Format the comparison as Markdown."""
    grid, title = tabulate(found), f"{found.sweep.replace(' ', ' and ')}: difference to {found.to}: {found.title}"
    return "\n".join(
        [
            f"**{escape_markdown(title)}**",
            "",
            *_fold_table([grid[0], *([*map(escape_markdown, row[:2]), *row[2:]] for row in grid[1:])]),
            *(f"- {note}" for note in list_notes(found, grid[0])),
            "",
        ]
    )


def _fold_table(grid: list[list[str]]) -> list[str]:
    """Return the lines of as many Markdown tables as fit below each other; each begins with method and setting."""
    columns = [list(column) for column in zip(*grid, strict=True)]
    first, rest, lines = columns[:2], columns[2:], list[str]()
    while rest or not lines:
        count = len(rest)
        while len((table := format_grid([*map(list, zip(*first, *rest[:count], strict=True))]))[0]) > ACROSS:
            if count < 2:
                break
            count -= 1
        if len(rest) == count + 1 > 2:  # a table of the last column alone is hard to read
            count -= 1
            table = format_grid([*map(list, zip(*first, *rest[:count], strict=True))])
        lines += [*table, ""]
        rest = rest[count:]
    return lines


def count_gradients(sweep: SweepTable) -> pd.Series:
    """Return the batch gradients of each finished run's training, a forward pass counting as a third.

    The cohorts and shards are the real ones; the passes of a local step are measured (`engine.cost`). NaN for a
    run without its split in the store, and for a class of yours, which a store only names.
    """
    cells, counts, trained = sweep.cells, list[float](), dict[str, Counter[int]]()
    for spec, run_id, status in zip(cells["spec"], cells["run_id"], cells["status"], strict=True):
        shards = [spec.identity.get(key) or spec.get(key) for key in ("data", "partition")]
        drawn = json.dumps([*shards, *(spec.get(key) for key in ("seed", "clients", "training.rounds"))])
        if status not in FINISHED or list_plugins(spec.config):
            counts.append(math.nan)
            continue
        if drawn not in trained:  # methods of a setting and seed share their cohorts
            trained[drawn] = Counter()
            if (dealt := read_sizes(sweep, str(run_id))) is not None:
                run = parse(spec, "gradients")
                cohorts = (draw_cohort(run, dealt, t) for t in range(run.training.rounds))
                trained[drawn].update(int(dealt[i]) for cohort in cohorts for i in cohort)
        sizes = trained[drawn].items()
        counts.append(sum(n * count_of_client(parse(spec, "gradients"), size) for size, n in sizes) or math.nan)
    return pd.Series(counts, cells.index, dtype=float)


def read_sizes(sweep: SweepTable, run_id: str) -> np.ndarray | None:
    """Return the training samples of each client of a run; None without an intact split in the store."""
    content = sweep.read_artefact(run_id, "partition.npz")
    try:
        return None if content is None else np.diff(np.load(io.BytesIO(content), allow_pickle=False)["train_offsets"])
    except Exception:  # zipfile, zlib and NumPy raise their own types for damaged files
        return None


def main(
    name: Annotated[
        list[str], typer.Argument(help="the sweep's name, also of one with blocks; of several the rows of all")
    ],
    reference: Annotated[str, typer.Option(help="the row to compare with; default fedavg if it is a row")] = "",
    metric: Annotated[str, typer.Option(help="a metric of the runs, or rounds_to:PERCENT")] = DEFAULT,
    confidence: Annotated[
        float, typer.Option(help="confidence level of the intervals; the tests' level is 1 minus it")
    ] = 0.95,
    rows: Annotated[str, typer.Option(help="sections or dotted keys, with commas")] = "algorithm",
    cols: Annotated[str, typer.Option(help="the same; default partition and all keys that would mix")] = "",
    as_json: Json = False,
) -> None:
    """Print every method's paired difference from a reference."""
    sweep = collect(*name)
    found = compare(sweep, reference, metric, confidence, rows, cols)
    if found.differences and not any(one.pairs for one in found.differences):
        (more,) = describe_diverged(found) or ["--cols can name the settings"]
        raise UserError(f"compare: no finished run has the setting and seed of one of {found.to}; {more}")
    if as_json:
        keys = ("row", "column", "n", "mean", "p", "adjusted", "gaps", "unpaired")
        lines = [
            {key: getattr(one, key) for key in keys}
            | {what.replace(" ", "_"): count for what, count in one.count_late().items()}
            | {"low": one.interval and one.interval.low, "high": one.interval and one.interval.high}
            | {"sign_flip_p": one.flips, "detectable": one.find_detectable()}
            | {"n_needed": one.count_needed_seeds() if one.adjusted is not None and one.spread else None}
            | {"verdict": one.judge(found.lower)}
            for one in found.differences
        ]
        names = {"_row": "row", "_column": "column", "_value": "mean"}
        means = found.means.reset_index().rename(columns=names).to_dict("records")
        about = {"sweep": found.sweep, "reference": found.to, "metric": found.metric}
        print(format_json(about | {"differences": lines, "means": means}))
        return
    alone = f"{found.sweep}: {found.to} is the only row; another one is required to compare\n"
    write_or_print(format_report(found) if found.differences else alone, None)
