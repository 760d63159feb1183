"""Picture of a leaderboard: mean accuracies with intervals, the best on top."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedray.analysis.plots.style import WIDTH, styled
from fedray.analysis.statistics.intervals import bound_mean
from fedray.papers.board import REFERENCE, Standing


@styled
def draw_standings(standings: Sequence[Standing], title: str) -> Figure:
    """Draw each ranked method's mean and its 95 % interval over seeds; FedAvg is filled and has a line."""
    ranked = [one for one in standings if one.rank is not None]
    figure = Figure(figsize=(1.5 * WIDTH, 0.6 + 0.15 * max(len(ranked), 3)), layout="constrained")
    area = figure.subplots()
    for place, one in enumerate(ranked):
        interval, is_reference = bound_mean(one.values), one.method == REFERENCE
        low, high = (interval.low, interval.high) if interval else (one.mean, one.mean)
        area.plot((low, high), (place, place), color="0.3", linewidth=0.8)
        area.plot(one.mean, place, "o", color="0", markerfacecolor="0" if is_reference else "white")
        if is_reference:
            area.axvline(one.mean, color="0.5", linewidth=0.6, linestyle="--")
    if not ranked:
        area.text(0.5, 0.5, "no method is trained with all seeds yet", ha="center", transform=area.transAxes)
    area.set_yticks(range(len(ranked)), [one.method for one in ranked])
    area.set_ylim(max(len(ranked), 1) - 0.5, -0.5)
    area.set(xlabel="accuracy in %, mean and 95 % interval over seeds", title=title)
    area.grid(axis="y", visible=False)
    return figure
