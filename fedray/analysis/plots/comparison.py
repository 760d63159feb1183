"""Plots of differences, of probabilities and of shares of runs with their intervals, and of ranks."""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedray.analysis.comparison import Comparison, collect_scores, tabulate_by_seed
from fedray.analysis.data.axes import label_figures
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import is_smaller_better, make_title
from fedray.analysis.plots.style import LETTER, WIDTH, iter_styles, make_axes, styled, thin_markers, with_legend
from fedray.analysis.statistics import Ranks, bound_profile, compute_profile, find_lack
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError

POINTS = 201
"""Number of values at which a profile is drawn."""
NOTHING_WHOLE = "no setting has a value for every seed of every method"


@styled
def draw_forests(found: Comparison) -> dict[str, Figure]:
    """Return setting -> figure of each method's mean difference and t interval; filled if Holm's p tells it apart."""
    figures = {}
    for setting in dict.fromkeys(one.column for one in found.differences):
        drawn = [one for one in found.differences if one.column == setting and one.mean is not None]
        if not drawn:
            continue
        figure, area = make_axes(f"difference to {found.to}", "", setting, 0.25 + 0.06 * len(drawn))
        for place, one in enumerate(drawn):
            told = one.judge(found.lower) in ("better", "worse")
            mean = float(one.mean or 0)
            bounds = (one.interval.low, one.interval.high) if one.interval else (mean, mean)
            area.plot(bounds, (place, place), color="0.3", linewidth=0.8)
            area.plot(mean, place, "o", color="0", markerfacecolor="0" if told else "white")
        area.axvline(0, color="0.5", linewidth=0.6, linestyle="--")
        for fill, name in (("0", f"p < {1 - found.confidence:.2g} (Holm)"), ("white", "not told apart")):
            area.plot([], [], "o", color="0", markerfacecolor=fill, label=name)
        area.set_yticks(range(len(drawn)), [one.row for one in drawn])
        area.set_ylim(len(drawn) - 0.5, -0.5)
        area.grid(axis="y", visible=False)
        figures[setting] = with_legend(figure, area, note=f"line: {found.confidence:.0%} interval of the mean")
    return figures


@styled
def draw_radar(means: pd.DataFrame, title: str, lower: bool) -> Figure:
    """Draw a polygon per method with a corner per setting: the rim is its best method, the centre its worst.

    Args:
        means: a row per method and a column per setting.
        title: of the metric.
        lower: the smallest value is the best.

    Raises:
        UserError: there are fewer than three settings that every method has finished.
    """
    means = means.dropna(axis="columns")
    if means.shape[1] < 3:
        raise UserError(f"--kind radar: found {means.shape[1]} settings that all methods finished; allowed: 3 or more")
    worst, best = (means.max(), means.min()) if lower else (means.min(), means.max())
    shares = (means - worst) / (best - worst).replace(0, 1)
    angles = np.linspace(0, 2 * np.pi, means.shape[1], endpoint=False)
    figure = Figure(figsize=(WIDTH, WIDTH), layout="constrained")
    area = figure.subplots(subplot_kw={"projection": "polar"})
    for (method, values), style in zip(shares.iterrows(), iter_styles(), strict=False):
        area.plot([*angles, angles[0]], [*values, values.iloc[0]], label=str(method), **style)
    ends = zip(means, worst, best, strict=True)
    area.set_xticks(angles, [f"{name}\n{low:.4g} to {high:.4g}" for name, low, high in ends])
    area.set(yticks=[0.5, 1], yticklabels=[], ylim=(-0.1, 1.05))
    return with_legend(figure, area, note=f"{title.partition(',')[0]}; rim: the best method of a setting")


@styled
def draw_ranks(ranks: Ranks) -> Figure:
    """Draw mean ranks on a line, 1 on the left; a bar joins methods that are not told apart (Demšar 2006, figure 1)."""
    names, count = list(ranks.mean), len(ranks.mean)
    half = (count + 1) // 2
    cliques = ranks.find_cliques()
    depth = 0.35 * len(cliques) + 0.4
    figure = Figure(figsize=(WIDTH * 1.3, 0.5 + 0.14 * (half + 2 * len(cliques))), layout="constrained")
    area = figure.subplots()
    area.set(xlim=(1 - 0.55 * (count - 1), count + 0.55 * (count - 1)), ylim=(-depth - half, 1.6))
    area.axis("off")
    area.plot((1, count), (0, 0), color="0", linewidth=0.8)
    for tick in range(1, count + 1):
        area.plot((tick, tick), (0, 0.15), color="0", linewidth=0.8)
        area.text(tick, 0.25, str(tick), ha="center", va="bottom")
    area.plot((1, 1 + ranks.critical), (1.2, 1.2), color="0", linewidth=1.2)
    area.text(1 + ranks.critical + 0.05 * count, 1.2, f"critical difference {ranks.critical:.2f}", va="center")
    for place, name in enumerate(names):
        left = place < half
        level = -depth - (place if left else count - 1 - place)
        edge = 1 - 0.05 * count if left else count + 0.05 * count
        area.plot((ranks.mean[name], ranks.mean[name], edge), (0, level, level), color="0.4", linewidth=0.6)
        area.text(edge, level, f" {name} ({ranks.mean[name]:.2f}) ", ha="right" if left else "left", va="center")
    for place, clique in enumerate(cliques):
        level = -0.3 - 0.35 * place
        area.plot((ranks.mean[clique[0]] - 0.04, ranks.mean[clique[-1]] + 0.04), (level, level), color="0", linewidth=2)
    area.text(
        0.5,
        0,
        textwrap.fill(ranks.describe(), int(0.8 * figure.get_figwidth() / LETTER)),
        transform=area.transAxes,
        ha="center",
        va="top",
        fontsize=6,
    )
    return figure


@styled
def draw_improvements(found: Comparison) -> Figure:
    """Draw the probability that a run of each method is better than one of the reference, with its interval.

    Raises:
        UserError: no method but the reference has runs, or no setting is finished.
    """
    drawn = [one for one in found.aggregates if one.row != found.to]
    if not drawn:
        raise UserError(f"--kind improvement: {NOTHING_WHOLE} besides {found.to}")
    figure, area = make_axes(f"probability of improvement over {found.to}", "", "", 0.25 + 0.06 * len(drawn))
    for place, one in enumerate(drawn):
        if one.bounds is not None:
            area.plot((one.bounds.low, one.bounds.high), (place, place), color="0.3", linewidth=0.8)
        area.plot(one.improvement, place, "o", color="0")
    area.axvline(0.5, color="0.5", linewidth=0.6, linestyle="--")
    area.plot([], [], "o-", color="0", linewidth=0.8, label="any two runs of a setting")
    area.set_yticks(range(len(drawn)), [one.row for one in drawn])
    area.set(xlim=(-0.03, 1.03), ylim=(len(drawn) - 0.5, -0.5))
    area.grid(axis="y", visible=False)
    return with_legend(figure, area, note=_describe_scores(drawn[0].scores, "line", found.confidence))


def draw_profiles(sweep: SweepTable, metric: str = DEFAULT) -> dict[str, Figure]:
    """Return data set and model -> figure of the share of each method's runs that are better than a value.

    Raises:
        UserError: there is no setting in which every method has a value for every seed.
    """
    cells, title = tabulate_by_seed(sweep, metric), make_title(metric, sweep.cells)
    lower = is_smaller_better(metric, sweep.cells)
    groups = cells.groupby(label_figures(cells), sort=False)
    found = {str(name): scores for name, group in groups if (scores := collect_scores(group))}
    if not found:
        raise UserError(f"--kind profiles: {NOTHING_WHOLE}")
    return {name: _draw_profile(scores, title, lower) for name, scores in found.items()}


@styled
def _draw_profile(scores: Mapping[str, np.ndarray], title: str, lower: bool, confidence: float = 0.95) -> Figure:
    """Draw the shares of one figure.

    Args:
        scores: method -> `(seeds, settings)`, as in `fedray.analysis.statistics`.
        title: of the metric.
        lower: the smallest value is the best.
        confidence: level of the bands at each value.
    """
    finite = np.concatenate([one[np.isfinite(one)] for one in scores.values()])
    ends = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    margin = 0.03 * (ends[1] - ends[0]) or 1.0
    values = np.linspace(ends[0] - margin, ends[1] + margin, POINTS)
    unit = title.partition(",")[0]
    figure, area = make_axes(unit, "share of runs " + ("below" if lower else "above"), "")
    for place, ((method, one), style) in enumerate(zip(scores.items(), iter_styles(), strict=False)):
        every = thin_markers(POINTS, place, len(scores))
        area.plot(values, compute_profile(one, values, lower), label=method, markevery=every, **style)
        if (bounds := bound_profile(one, values, lower, confidence)) is not None:
            area.fill_between(values, *bounds, color=style["color"], alpha=0.15, linewidth=0)
    area.set(xlim=(values[0], values[-1]), ylim=(-0.03, 1.03))
    return with_legend(figure, area, note=_describe_scores(next(iter(scores.values())), "band", confidence))


def _describe_scores(scores: np.ndarray, what: str, confidence: float) -> str:
    """Return the note of a figure: numbers of runs, and what its intervals are or why there are none."""
    seeds, settings = scores.shape
    lack = find_lack(scores)
    said = f"no {what}: {lack}" if lack else f"{what}: {confidence:.0%} stratified bootstrap"
    return f"{seeds * settings} runs each: {settings} setting{'s' * (settings > 1)}, {seeds} seeds\n{said}"
