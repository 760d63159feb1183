"""Plots of clients' accuracies and of the model's confusion of classes."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import Collected
from fedray.analysis.plots.panels import iter_methods, split_figures
from fedray.analysis.plots.style import make_axes, make_panels, styled, with_legend
from fedray.analysis.tables.clients import is_unseen, measure_fairness, read_accuracies, read_confusions

ANNOTATED = 12
"""Largest number of classes for which a confusion matrix shows numbers."""
SPREAD = 0.27
"""Vertical scatter of the clients of a row, in rows."""
GOLDEN = 0.618
"""Multiples of it fill an interval evenly, for any number of them."""


@styled
def draw_fairness(sweep: Collected) -> dict[str, Figure]:
    """Draw each client's accuracy, their mean and deviation, and the means of the worst and the best tenth.

    Returns:
        Data set and model -> figure with a panel per setting; the key is empty if all runs share both.

    Raises:
        UserError: no finished run tests its clients.
    """
    cells = label_finished(sweep)
    clients = read_accuracies(sweep, cells)
    found = {(one["setting"], one["method"]): one for one in measure_fairness(clients).to_dict("records")}
    figures = {}
    for name, settings in split_figures(cells):
        names = [setting for setting, _ in settings]
        methods = [method for method, _ in iter_methods(cells, cells) if any((one, method) in found for one in names)]
        drawn = make_panels(names, "personal accuracy in %", "", height=0.5 + 0.22 * len(methods))
        for setting, area in drawn.main.items():
            for place, method in enumerate(methods):
                if (setting, method) in found:
                    of_both = clients[(clients["setting"] == setting) & (clients["method"] == method)]
                    new = is_unseen(of_both)
                    known, unseen = (of_both.loc[which, "accuracy"].to_numpy() for which in (~new, new))
                    _draw_row(area, place, known, found[setting, method])
                    if len(unseen):
                        said = "an unseen client, with the model it receives"
                        area.plot(
                            unseen, _scatter(place, len(unseen)), "x", color="#009e73", markersize=2.5, label=said
                        )
            area.set_yticks(range(len(methods)), methods)
            area.grid(axis="y", visible=False)
        first = next(iter(drawn.main.values()))
        first.set_ylim(len(methods) - 0.5, -0.5)
        first.set_xlim(max(first.get_xlim()[0], -2), 102)  # a deviation may reach beyond 100 %
        figures[name] = with_legend(drawn.figure, *drawn.main.values(), note=_count_seeds(found.values()))
    return figures


def _scatter(place: int, count: int) -> np.ndarray:
    """Return heights around a row, so that dots do not cover each other."""
    heights: np.ndarray = place + SPREAD * (2 * (np.arange(count) * GOLDEN % 1) - 1)
    return heights


def _draw_row(area: Axes, place: int, dots: np.ndarray, one: Mapping[Hashable, Any]) -> None:
    """Draw a method's clients, and their mean, deviation and tenths."""
    area.plot(
        dots, _scatter(place, len(dots)), ".", color="0.7", markersize=1.5, rasterized=len(dots) > 500, label="a client"
    )
    said = "mean ± standard deviation over clients"
    bar = {"xerr": one["deviation"], "fmt": "o", "color": "#000000", "capsize": 2, "elinewidth": 0.8}
    area.errorbar(one["mean"], place, label=said, **bar)
    area.plot(one["worst tenth"], place, "<", color="#d55e00", label="mean of the worst tenth")
    area.plot(one["best tenth"], place, ">", color="#0072b2", label="mean of the best tenth")


def _count_seeds(found: Iterable[Mapping[Hashable, Any]]) -> str:
    counts = sorted({one["seeds"] for one in found})
    if counts == [1]:
        return "one seed"
    return f"mean over {' to '.join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))} seeds"


@styled
def draw_confusion(sweep: Collected) -> dict[str, Figure]:
    """Draw the predicted classes of the final global model, in percent of the class's test samples, mean over seeds.

    Returns:
        Method and setting -> figure.

    Raises:
        UserError: no finished run has a confusion matrix.
    """
    figures = {}
    for (setting, method), percent in read_confusions(sweep, label_finished(sweep)).items():
        height = min(0.75 + 0.01 * max(len(percent) - 10, 0), 1.2)
        figure, area = make_axes("predicted class", "class", f"{method}, {setting}", height)
        image = area.imshow(percent, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        if len(percent) <= ANNOTATED:
            area.set_xticks(range(percent.shape[1]))
            area.set_yticks(range(len(percent)))
            for (row, column), value in np.ndenumerate(percent):
                if value >= 0.5:
                    colour = "white" if value > 60 else "black"
                    area.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=5)
        area.grid(visible=False)
        figure.colorbar(image, label="% of the class")
        figures[f"{method} {setting}"] = figure
    return figures
