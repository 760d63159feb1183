"""A table's metric over two keys: a field for each pair of values, the best framed, a panel per method."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from fedray.analysis.data.axes import WITH_CURVE, label_finished, refuse_one_value, title_axes, unknown_key
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import (
    NEVER,
    count_digits,
    describe_omitted,
    describe_target,
    find_mean,
    is_ranked,
    is_smaller_better,
    make_title,
    read_values,
)
from fedray.analysis.plots.style import (
    Figures,
    describe_seeds,
    draw_fields,
    make_panels,
    sort_by_size,
    split_figures,
    styled,
    wrap,
)
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError

FIELD, LOWEST = 0.32, 1.0
"""Inches: height of a row of fields, and minimum height of a panel."""


@styled
def draw_heatmap(sweep: SweepTable, x: str, y: str, metric: str = DEFAULT) -> Figures:
    """Draw the mean over seeds of a metric (as in tables) by two dotted keys, x across and y upwards.

    A panel is of a method and setting. Raises UserError if a key is missing, unknown or has one value, or no method
    varies in both.
    """
    for option, key in (("--x", x), ("--y", y)):
        if not key:
            other = "partition.alpha" if "algorithm.rho" in (x, y) else "algorithm.rho"
            raise UserError(f"{option} is required for a heatmap: a key, {other}, say")
        if key == "seed" or key.endswith(".name"):
            raise UserError(f"{option}: found {key}; fields are means over seeds, methods and settings have panels")
        if key not in sweep.cells:
            raise unknown_key(option, key, sweep.cells)
        refuse_one_value(option, key, sweep.cells[key])
    if x == y:
        raise UserError(f"--y: {y} is --x, too; another key is required")
    without = (x, y, *_find_followers(sweep.cells, x), *_find_followers(sweep.cells, y))
    cells = label_finished(sweep, without, statuses=WITH_CURVE)
    cells = whole = cells.assign(_x=sweep.cells[x], _y=sweep.cells[y], _value=read_values(sweep, metric))
    cells = cells[cells["_value"].notna() & (cells["_value"] != NEVER)].dropna(subset=["_x", "_y"])
    of_panel = cells.groupby(["_column", "_row"])
    both = (of_panel["_x"].transform("nunique") > 1) & (of_panel["_y"].transform("nunique") > 1)
    if not both.any():
        raise UserError(f"--y: no method's finished runs vary in both {x} and {y}")
    cells, lower = cells[both], is_smaller_better(metric, sweep.cells) if is_ranked(metric, sweep.cells) else None
    figures = {name: _draw_figure(sweep, settings, (x, y), metric, lower) for name, settings in split_figures(cells)}
    absent = [row for row in dict.fromkeys(whole["_row"]) if row not in {*cells["_row"]}]
    of_rows = whole[whole["_row"].isin(cells["_row"])]
    said = [f"without {', '.join(absent)}: one value of a key, or none"] if absent else []
    if lost := ", ".join(dict.fromkeys(of_rows.loc[of_rows[["_x", "_y"]].isna().any(axis=1), "_row"])):
        said.append(f"not drawn, runs that lack a key: {lost}")
    for figure in figures.values():
        figure.set_label("; ".join([str(figure.get_label()), *describe_target(sweep, metric, of_rows), *said]))
    return figures


def _find_followers(cells: pd.DataFrame, key: str) -> list[str]:
    """Return the section's other options that have one value for each of the key's, such as its `min_size`."""
    section = key.partition(".")[0]
    others = [
        str(one) for one in cells if str(one).startswith(f"{section}.") and str(one) not in (key, f"{section}.name")
    ]
    return [one for one in others if cells.groupby(key, dropna=False)[one].nunique(dropna=False).max() == 1]


def _draw_figure(
    sweep: SweepTable, settings: list[tuple[str, pd.DataFrame]], keys: tuple[str, str], metric: str, lower: bool | None
) -> Figure:
    tables = {
        (str(method), setting): group.pivot_table(values="_value", index="_y", columns="_x", aggfunc=find_mean)
        for setting, panel in settings
        for method, group in panel.groupby("_row", sort=False)
    }
    every = pd.concat([panel for _, panel in settings])
    rows, columns = sort_by_size(every["_y"]), sort_by_size(every["_x"])
    # A panel's title is what tells it from the others: the method (0), the setting (1), or both.
    apart = [k for k in (0, 1) if len({name[k] for name in tables}) > 1] or [0]
    grids = {
        "\n".join(name[k] for k in apart): table.reindex(index=rows, columns=columns).to_numpy()
        for name, table in tables.items()
    }
    numbers = np.concatenate([grid.ravel() for grid in grids.values()])
    scale, digits = Normalize(np.nanmin(numbers), np.nanmax(numbers)), count_digits(numbers)
    x, y = title_axes(keys, sweep.cells)
    drawn = make_panels(list(grids), x, y, height=max(LOWEST, FIELD * len(rows)))
    # Of hyper-parameters the best are shown for each value of what else varies, such as the heterogeneity.
    fixed = [not key.startswith(("algorithm.", "training.")) for key in keys]
    axis = None if fixed[0] == fixed[1] else int(fixed[1])
    images = [_draw_panel(drawn.main[name], grid, scale, lower, digits, axis) for name, grid in grids.items()]
    first = next(iter(drawn.main.values()))
    first.set_xticks(range(len(columns)), [_format(value) for value in columns])
    first.set_yticks(range(len(rows)), [_format(value) for value in rows])
    label = make_title(metric, sweep.cells).partition(",")[0]
    label = wrap(label, drawn.figure.get_figheight())
    drawn.figure.colorbar(images[0], ax=list(drawn.main.values()), label=label)
    seeds = every.groupby(["_column", "_row", "_x", "_y"])["seed"].nunique()
    note = describe_seeds(seeds, "") + describe_omitted([metric], sweep.cells)
    note += "; hatched: no number" * any(np.isnan(grid).any() for grid in grids.values())
    of = "a panel" if axis is None else "a row" if axis else "a column"
    drawn.figure.set_label(note + f"; the best of {of} is framed" * (lower is not None))
    return drawn.figure


def _format(value: object) -> str:
    """Format a number without redundant digits: `0.5`, `1e+06`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _draw_panel(
    area: Axes, grid: np.ndarray, scale: Normalize, lower: bool | None, digits: int, axis: int | None
) -> AxesImage:
    """Draw the fields with their numbers; the best along an axis, if any is, have a frame and a bold number."""
    shown = np.round(-grid if lower else grid, digits)
    most = np.where(np.isnan(shown), -np.inf, shown).max(axis=axis, keepdims=True)
    best = [] if lower is None else np.argwhere(shown == most).tolist()
    for row, column in best:
        area.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.5, zorder=3, clip_on=False
            )
        )
    return draw_fields(area, grid, digits, scale, best, size=6)
