"""Shared by a sweep's figures: its runs by method and setting, and the settings that share axes."""

from collections.abc import Iterator

import pandas as pd


def split_figures(cells: pd.DataFrame) -> Iterator[tuple[str, list[tuple[str, pd.DataFrame]]]]:
    """Yield data set and model -> settings with their cells; the first is empty if all runs share both."""
    for name, group in cells.groupby("_figure", sort=False):
        yield str(name), [(str(setting), panel) for setting, panel in group.groupby("_column", sort=False)]


def iter_methods(cells: pd.DataFrame, panel: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield every method of the sweep, so that styles agree across figures, with its cells of this panel, if any."""
    for method in dict.fromkeys(cells["_row"]):
        yield str(method), panel[panel["_row"] == method]


def join_runs(logged: dict[str, dict[int, float]], group: pd.DataFrame, smooth: int = 1) -> pd.DataFrame:
    """Return rounds x runs, for the rounds in common to all runs that log anything."""
    runs = pd.DataFrame({run_id: logged[run_id] for run_id in group["run_id"] if logged[run_id]}, dtype=float)
    return runs.sort_index().dropna().rolling(smooth, min_periods=1).mean()
