"""Plots of paired differences with their intervals."""

from matplotlib.figure import Figure

from fedray.analysis.comparison import Comparison
from fedray.analysis.plots.style import make_axes, styled, with_legend


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
