"""What the figures of a sweep share: which runs there are, by method and setting, and which settings share axes."""

from collections.abc import Iterator

import pandas as pd


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
