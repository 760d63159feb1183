"""Plots of paired differences with their intervals."""

from statistics import median

from matplotlib.figure import Figure

from fedray.analysis.comparison import Comparison
from fedray.analysis.plots.style import make_axes, styled, with_legend

WIDE = 4
"""An interval of more than so many times the median length ends in an arrow: one row would squeeze all others."""


@styled
def draw_forests(found: Comparison) -> dict[str, Figure]:
    """Return setting -> figure of each method's mean difference and t interval; filled if Holm's p tells it apart."""
    figures = {}
    for setting in dict.fromkeys(one.column for one in found.differences):
        drawn = [one for one in found.differences if one.column == setting and one.mean is not None]
        if not drawn:
            continue
        figure, area = make_axes(f"difference to {found.to}\n{found.title}", "", setting, 0.25 + 0.06 * len(drawn))
        means = [float(one.mean or 0) for one in drawn]
        halves = [(one.interval.high - one.interval.low) / 2 if one.interval else 0.0 for one in drawn]
        usual = median([half for half in halves if half] or [0.0])
        shown = [min(half, WIDE * usual) for half in halves]
        left = min(0.0, *(mean - half for mean, half in zip(means, shown, strict=True)))
        right = max(0.0, *(mean + half for mean, half in zip(means, shown, strict=True)))
        for place, (one, mean, half) in enumerate(zip(drawn, means, halves, strict=True)):
            told = one.judge(found.lower) in ("better", "worse")
            area.plot((max(mean - half, left), min(mean + half, right)), (place, place), color="0.3", linewidth=0.8)
            for arrow, end, cut in (("<", left, mean - half < left), (">", right, mean + half > right)):
                if cut:
                    area.plot(end, place, arrow, color="0.3", markersize=4)
            area.plot(mean, place, "o", color="0", markerfacecolor="0" if told else "white")
        area.axvline(0, color="0.5", linewidth=0.6, linestyle="--")
        for fill, name in (("0", f"p < {1 - found.confidence:.2g} (Holm)"), ("white", "not told apart")):
            area.plot([], [], "o", color="0", markerfacecolor=fill, label=name)
        area.set_yticks(range(len(drawn)), [one.row for one in drawn])
        area.set_ylim(len(drawn) - 0.5, -0.5)
        area.grid(axis="y", visible=False)
        cut = max(halves) > max(shown)
        note = f"line: {found.confidence:.0%} interval of the mean" + ("; an arrow: it goes on" if cut else "")
        figures[setting] = with_legend(figure, area, note=note)
    return figures
