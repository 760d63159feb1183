"""Readers of a drawn axis."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def ticks(axes: Axes) -> dict[float, str]:
    """Place -> label of the ticks across, from left to right."""
    places = [float(place) for place in axes.xaxis.get_major_locator()()]
    return dict(zip(places, axes.xaxis.get_major_formatter().format_ticks(places), strict=True))


def note(figure: Figure) -> str:
    """The legend's explanation of bands and bars."""
    (legend,) = figure.legends
    return legend.get_title().get_text().replace("\n", " ")
