"""Plots of a search: its trials, by the rounds they took and by their keys.

A trial is a run of a method in a setting with values of the searched keys. Its value is the selection metric: the
accuracy on validation samples if some are held out, or else on the test set, which every title then says.
"""

import itertools

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedray.analysis.data.axes import find_columns, label_cells, list_names, title_axes
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import count_digits, find_selection_metric, is_smaller_better, make_title
from fedray.analysis.plots.style import (
    PLAIN,
    choose_styles,
    draw_fields,
    is_logarithmic,
    make_axes,
    sort_by_size,
    styled,
    to_numbers,
    with_legend,
)
from fedray.cells.metric import Metric
from fedray.cells.status import Status
from fedray.common.errors import UserError

TRIED = (Status.FINISHED, Status.STOPPED, Status.PRUNED)
"""Statuses of runs that have a value; only finished ones can be the best."""
STEPS = 12
"""Maximum number of values of a key for which a heatmap has rows or columns."""


def list_trials(sweep: SweepTable) -> pd.DataFrame:
    """Return the tried cells with `_method`, `_setting`, `_value`, `_rounds` (trained), in the order they ran.

    Raises UserError if none has run, or nothing is searched.
    """
    if not sweep.searched:
        raise UserError(
            f"--kind: found search; {sweep.name} has no `search`; --kind sensitivity and heatmap draw a grid's options"
        )
    cells = sweep.cells[sweep.cells["status"].isin(TRIED)]
    column = f"metrics.{find_selection_metric(sweep)}"
    if not len(cells) or column not in cells:
        raise UserError(f"sweep: {sweep.name!r} has no trial with a value yet")
    cells = cells[cells[column].notna()]
    plain = cells.drop(columns=list_keys(sweep))
    settings = label_cells(plain, find_columns(plain, plain["algorithm.name"]))
    return cells.assign(
        _method=cells["algorithm.name"].replace(list_names(cells)),
        _setting=settings,
        _value=cells[column],
        _rounds=[max(sweep.get_history(run_id, "test_accuracy"), default=0) for run_id in cells["run_id"]],
        _order=[sweep.sheet.records[cell].start for cell in cells["cell"]],
    ).sort_values("_order", kind="stable")


def list_keys(sweep: SweepTable) -> list[str]:
    """Return the searched keys that any method has."""
    return [key for key in sweep.searched if key in sweep.cells]


@styled
def draw_best_so_far(sweep: SweepTable) -> dict[str, Figure]:
    """Return setting -> figure of each method's best finished trial by rounds trained, including pruned trials."""
    found, figures = list_trials(sweep), dict[str, Figure]()
    styles = choose_styles((method, method) for method in map(str, found["_method"]))
    by = find_selection_metric(sweep)
    title = f"best {_title_value(sweep)}" + "\n(selected on the test set)" * Metric.parse(by).is_on_test_set
    for setting, panel in found.groupby("_setting", sort=False):
        figure, area = make_axes("rounds trained", title, str(setting))
        for method, group in panel.groupby("_method", sort=False):
            style = styles[str(method)]
            done = group["_value"].where(group["status"] == Status.FINISHED)
            best = done.cummin() if is_smaller_better(by, sweep.cells) else done.cummax()
            area.step(group["_rounds"].cumsum(), best.ffill(), where="post", label=str(method), **style)
        figure.set_label("the best finished run, of one seed; rounds are of all runs, also those that ended early")
        figures[str(setting)] = with_legend(figure, area)
    return figures


@styled
def draw_scatters(sweep: SweepTable) -> dict[str, Figure]:
    """Return key and setting -> figure of every trial's value by the key, on the key's own scale; hollow if pruned."""
    found, figures = list_trials(sweep), dict[str, Figure]()
    styles = choose_styles((method, method) for method in map(str, found["_method"]))
    for key in list_keys(sweep):
        for setting, panel in found[found[key].notna()].groupby("_setting", sort=False):
            figure, area = make_axes(title_axes([key], sweep.cells)[0], _title_value(sweep), str(setting))
            at = _scale(area, panel[key], "x")
            for method, group in panel.groupby("_method", sort=False):
                style = styles[str(method)]
                whole = group["status"] == Status.FINISHED
                look = {"color": style["color"], "marker": style["marker"], "linestyle": ""}
                area.plot(at[group.index[whole]], group["_value"][whole], label=str(method), **look)
                area.plot(at[group.index[~whole]], group["_value"][~whole], markerfacecolor="white", **look)
            figure.set_label("a mark is a run, of one seed; hollow: ended early")
            figures[f"{key} {setting}"] = with_legend(figure, area)
    return figures


@styled
def draw_heatmaps(sweep: SweepTable) -> dict[str, Figure]:
    """Return two keys, method and setting -> figure of the mean value by both, or a point per trial for many values."""
    found, figures = list_trials(sweep), dict[str, Figure]()
    for first, second in itertools.combinations(list_keys(sweep), 2):
        both = found[found[first].notna() & found[second].notna() & (found["status"] == Status.FINISHED)]
        for (setting, method), group in both.groupby(["_setting", "_method"], sort=False):
            if min(group[first].nunique(), group[second].nunique()) > 1:
                x, y = title_axes((first, second), sweep.cells)
                figure, area = make_axes(x, y, f"{method}, {setting}")
                figure.set_label("a mark is a finished run, of one seed")
                if max(group[first].nunique(), group[second].nunique()) <= STEPS:
                    table = group.pivot_table(values="_value", index=second, columns=first, aggfunc="mean")
                    table = table.loc[sort_by_size(table.index), sort_by_size(table.columns)]
                    area.set_xticks(range(len(table.columns)), list(table.columns))
                    area.set_yticks(range(len(table.index)), list(table.index))
                    runs = " or ".join(map(str, sorted({*group.groupby([first, second]).size()})))
                    figure.set_label(f"finished runs behind the mean of a field: {runs}; hatched: none")
                    image: ScalarMappable = draw_fields(area, table.to_numpy(), count_digits(table.to_numpy().ravel()))
                else:
                    at = _scale(area, group[first], "x"), _scale(area, group[second], "y")
                    image = area.scatter(*at, c=group["_value"], cmap="viridis", edgecolors="0", linewidths=0.4)
                figure.colorbar(image, label=_title_value(sweep))
                area.grid(visible=False)
                figures[f"{first} {second} {method} {setting}"] = figure
    return figures


def _scale(area: Axes, values: pd.Series, axis: str) -> pd.Series:
    """Return the values as numbers, and set the axis' scale: logarithmic if suitable, by name for words."""
    numbers = to_numbers(values)
    if numbers.isna().any():
        names = sorted(set(map(str, values)))
        area.set(**{f"{axis}ticks": range(len(names)), f"{axis}ticklabels": names})
        return values.map(str).map(names.index)
    if is_logarithmic(numbers):
        area.set(**{f"{axis}scale": "log"})
        line = area.xaxis if axis == "x" else area.yaxis
        line.set_major_locator(LogLocator(subs=(1, 2, 5) if numbers.max() < 1000 * numbers.min() else (1,)))
        line.set_major_formatter(PLAIN)
        line.set_minor_formatter(NullFormatter())
    return numbers


def draw_all(sweep: SweepTable) -> dict[str, dict[str, Figure]]:
    """Return every figure of a search: kind -> subject -> figure."""
    return {"best-so-far": draw_best_so_far(sweep), "trials": draw_scatters(sweep), "heatmap": draw_heatmaps(sweep)}


def _title_value(sweep: SweepTable) -> str:
    return make_title(find_selection_metric(sweep), sweep.cells).partition(",")[0]
