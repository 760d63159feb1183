"""Bars: the parts of a metric at a round, a table's metric for each method, paired differences with their intervals."""

import textwrap
from statistics import median

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedray.analysis.comparison import Comparison, Difference
from fedray.analysis.data.axes import WITH_CURVE, label_finished
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import (
    NEVER,
    count_digits,
    describe_omitted,
    describe_target,
    find_mean,
    list_parts,
    make_title,
    read_values,
)
from fedray.analysis.plots.style import (
    DASHES,
    HATCHES,
    UPRIGHT,
    Figures,
    choose_styles,
    describe_seeds,
    iter_methods,
    make_axes,
    make_panels,
    make_rows,
    split_figures,
    styled,
    with_legend,
)
from fedray.cells.looks import COLOURS
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError, format_count

UPRIGHT_LETTERS = 40
"""Names with fewer letters than this are upright along an axis."""
HEIGHT = 2.0
"""Inches: height of a panel with a bar for each method, without names that are turned."""
UPRIGHT_BARS = 10
"""Numbers at more bars than this are turned: they are wider than a bar."""


@styled
def draw_bars(sweep: SweepTable, metric: str, at: int | None = None) -> dict[str, Figure]:
    """Return setting -> figure: every metric `METRIC_PART` as bars, side by side for the methods that log them."""
    cells, parts = label_finished(sweep), list_parts(sweep, metric)
    read = {
        (run_id, part): sweep.get_history(run_id, f"{metric}_{part}") for run_id in cells["run_id"] for part in parts
    }
    last = {run_id: max(sweep.get_history(run_id, "test_accuracy"), default=0) for run_id in cells["run_id"]}
    value = {key: found[at or last[key[0]]] for key, found in read.items() if (at or last[key[0]]) in found}
    if not value:
        rounds = sorted({round for found in read.values() for round in found})
        raise UserError(
            f"--round: found {at or 'the last one'}; {metric}_{parts[0]} was logged at {', '.join(map(str, rounds))}"
        )
    figures, logged = {}, {run_id for run_id, _ in value}
    for setting, panel in cells.groupby("_column", sort=False):
        groups = [
            (method, [run_id for run_id in group["run_id"] if run_id in logged])
            for method, group in iter_methods(cells, panel)
        ]
        drawn = [(k, method, ids) for k, (method, ids) in enumerate(groups) if ids]
        when = "the last evaluated round" if at is None else f"round {at}"
        what = make_title(f"{metric}_", cells).removesuffix(" of the last round").rstrip("_ ")
        figure, area = make_axes(f"{metric}_*, {when}", what, str(setting))
        for place, (k, method, ids) in enumerate(drawn):
            heights = pd.DataFrame([[value.get((run_id, part), np.nan) for part in parts] for run_id in ids])
            spread = heights.std() if len(ids) > 1 else None
            area.bar(
                np.arange(len(parts)) + 0.8 * ((place + 0.5) / len(drawn) - 0.5),
                heights.mean(),
                0.8 / len(drawn),
                yerr=spread,
                label=method,
                capsize=1.5,
                facecolor="white" if k % len(HATCHES) else "0.35",
                edgecolor=COLOURS[k % len(COLOURS)],
                linewidth=0.6,
                hatch=HATCHES[k % len(HATCHES)],
                error_kw={"elinewidth": 0.6},
            )
        turned = 0 if sum(map(len, parts)) < UPRIGHT_LETTERS else 90 if len(parts) > 6 else 30
        area.set_xticks(range(len(parts)), parts, rotation=turned, ha="center")
        area.grid(axis="x", visible=False)
        seeds = (len(ids) for _, _, ids in drawn)
        figure.set_label(describe_seeds(seeds, "error bars", panel[panel["run_id"].isin(logged)]))
        figures[str(setting)] = with_legend(figure, area)
    return figures


@styled
def draw_methods(sweep: SweepTable, metric: str = DEFAULT) -> Figures:
    """Draw a table's metric as one bar for each method with its number, the mean over seeds."""
    cells = label_finished(sweep, statuses=WITH_CURVE).assign(_value=read_values(sweep, metric))
    title, figures = make_title(metric, cells), {}
    for name, settings in split_figures(cells):
        whole = pd.concat([panel for _, panel in settings])
        every = whole[whole["_value"].notna() & (whole["_value"] != NEVER)]
        if not len(every):
            continue
        methods = every.drop_duplicates("_row").set_index("_row")["algorithm.name"]
        looks = choose_styles((str(row), str(method)) for row, method in methods.items())
        places = {row: place for place, row in enumerate(methods.index)}
        texts = [textwrap.fill(row, UPRIGHT_LETTERS) for row in places]
        below = min(max(map(len, places)), UPRIGHT_LETTERS)  # letters of a turned name
        below *= len(places) > 4 or sum(map(len, places)) > UPRIGHT_LETTERS
        shown = [setting for setting, _ in settings if setting in {*every["_column"]}]
        drawn = make_panels(shown, "", title, HEIGHT + below * UPRIGHT)
        digits, turned = count_digits(every["_value"], metric), 90 * (len(places) > UPRIGHT_BARS)
        for setting, area in drawn.main.items():
            found = every[every["_column"] == setting].groupby("_row", sort=False)["_value"]
            heights, spread = found.agg(find_mean), found.std()  # NaN of one seed, which has no bar
            bars = area.bar(
                [places[row] for row in heights.index],
                heights,
                0.7,
                yerr=spread if spread.any() else None,
                capsize=1.5,
                color=[looks[str(row)]["color"] for row in heights.index],
                hatch=[HATCHES[DASHES.index(looks[str(row)]["linestyle"])] for row in heights.index],
                edgecolor="black",
                linewidth=0.6,
            )
            area.bar_label(bars, [f"{height:.{digits}f}" for height in heights], fontsize=5, padding=2, rotation=turned)
            area.margins(y=0.25 if turned else 0.12)  # room for the numbers
            area.set_xticks([*places.values()], texts, rotation=90 if below else 0)
            area.grid(axis="x", visible=False)
        if title.partition(",")[0].endswith(" in %"):
            low, high = area.get_ylim()
            area.set_yticks([tick for tick in area.get_yticks() if low <= tick <= min(high, 100)])
        of_bar = every.groupby(["_column", "_row"])
        seeds = of_bar["seed"].nunique()
        note = describe_seeds(seeds, "error bars" if of_bar["_value"].std().any() else "", every)
        said = describe_target(sweep, metric, whole)
        few = seeds[seeds < seeds.max()].reset_index().itertuples(index=False)
        said += [f"{row} ({setting}): {format_count(n, 'seed')}" for setting, row, n in few]
        drawn.figure.set_label("; ".join([note + describe_omitted([metric], cells), *said]))
        figures[name] = drawn.figure
    return figures


WIDE = 4
"""An interval of more than so many times the median length ends in an arrow: one row would squeeze all others."""


@styled
def draw_forests(found: Comparison) -> dict[str, Figure]:
    """Draw each method's mean difference and t interval, a panel per setting; filled if Holm's p tells it apart.

    With too few seeds for an interval there are the means alone. Return a figure under an empty name; nothing without
    differences.
    """
    halves, ends = dict[str, dict[Difference, float]](), [0.0]
    for one in found.differences:
        if one.mean is not None:
            bound = one.interval
            halves.setdefault(one.column, {})[one] = (bound.high - bound.low) / 2 if bound else 0.0
    for rows in halves.values():
        most = WIDE * median([half for half in rows.values() if half] or [0.0])
        ends += [float(one.mean or 0) + sign * min(half, most) for one, half in rows.items() for sign in (-1, 1)]
    if not halves:
        return {}
    left, right = min(ends), max(ends)
    margin, cut = 0.05 * (right - left) or 1.0, False
    names = list(dict.fromkeys(one.row for rows in halves.values() for one in rows))
    title, _, rounds = found.title.replace(" in %", " in points", 1).partition(", ")
    drawn = make_rows([*halves], f"difference to {found.to}\n{title}", names)
    for setting, area in drawn.main.items():
        for one, half in halves[setting].items():
            mean, place = float(one.mean or 0), names.index(one.row)
            told = one.judge(found.lower) in ("better", "worse")
            area.plot((max(mean - half, left), min(mean + half, right)), (place, place), color="0.3", linewidth=0.8)
            for arrow, end, beyond in (("<", left, mean - half < left), (">", right, mean + half > right)):
                if beyond:
                    cut = True
                    area.plot(end, place, arrow, color="0.3", markersize=4)
            area.plot(mean, place, "o", color="0", markerfacecolor="0" if told else "white")
        area.axvline(0, color="0.5", linewidth=0.6, linestyle="--")
    area.set_xlim(left - margin, right + margin)
    untested = ", or too few pairs" * any(one.adjusted is None for rows in halves.values() for one in rows)
    marks = {"white": f"not told apart{untested}", "0": f"p ≤ {1 - found.confidence:.2g} (Holm)"}
    used = {str(line.get_markerfacecolor()) for area in drawn.main.values() for line in area.lines}
    marks = {fill: name for fill, name in marks.items() if fill in used}
    for fill, name in ({"white": "too few seeds for an interval"} if found.lacks_seeds else marks).items():
        area.plot([], [], "o", color="0", markerfacecolor=fill, label=name)
    seeds = describe_seeds((one.n for rows in halves.values() for one in rows), "")
    far = [f"never: {k} of {len(one.pairs)}, {one.row} ({one.column})" for one in found.differences if (k := one.never)]
    line = f"; line: its {found.confidence:.0%} interval, uncorrected" + ("; an arrow: it goes on" if cut else "")
    drawn.figure.set_label("; ".join(filter(None, (seeds + (line if not found.lacks_seeds else ""), rounds, *far))))
    return {"": with_legend(drawn.figure, area)}
