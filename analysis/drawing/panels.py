"""What the figures of a sweep share: which runs there are, by method and setting, and which settings share axes."""

from collections.abc import Iterator

import pandas as pd

from analysis.reading.axes import labels, methods_and_settings
from analysis.reading.collect import Collected
from fedray.common.errors import UserError
from fedray.sweep.grid import COMPONENTS


def labelled(sweep: Collected, without: str = "") -> pd.DataFrame:
    """The finished cells with `_row` (the method) and `_column` (the setting), neither naming the key `without`.

    `_figure` is what a figure is of: a data set and model. Settings of others have accuracies of another order, so they
    share no axes.

    Raises:
        UserError: no cell has finished.
    """
    cells = sweep.cells[sweep.cells["status"] == "finished"].drop(columns=[without], errors="ignore")
    if not len(cells):
        raise UserError(f"sweep: {sweep.name!r} has no finished run")
    methods, settings = methods_and_settings(cells)
    apart = [name for name in COMPONENTS if name in ("data", "model") and _differs(cells, name)]
    return cells.assign(
        _row=methods,
        _column=settings,
        _figure=labels(cells, ",".join(apart)) if apart else "",
    )


def _differs(cells: pd.DataFrame, section: str) -> bool:
    return f"{section}.name" in cells and labels(cells, section).nunique() > 1


def figures_of(cells: pd.DataFrame) -> Iterator[tuple[str, list[tuple[str, pd.DataFrame]]]]:
    """Data set and model -> settings with their cells; the first is empty where all runs share both."""
    for name, group in cells.groupby("_figure", sort=False):
        yield str(name), [(str(setting), panel) for setting, panel in group.groupby("_column", sort=False)]


def methods_of(cells: pd.DataFrame, panel: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every method of the sweep, so that it has the same style in each figure; its cells of this panel, if any."""
    for method in dict.fromkeys(cells["_row"]):
        yield str(method), panel[panel["_row"] == method]


def by_run(logged: dict[str, dict[int, float]], group: pd.DataFrame, smooth: int = 1) -> pd.DataFrame:
    """Rounds x runs, the rounds that all runs have that log anything."""
    runs = pd.DataFrame({run_id: logged[run_id] for run_id in group["run_id"] if logged[run_id]}, dtype=float)
    return runs.sort_index().dropna().rolling(smooth, min_periods=1).mean()
