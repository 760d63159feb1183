"""Learning curves: a panel per setting, below it a zoom on the last rounds, without bands."""

from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.analysis.data.axes import labelled
from fedray.analysis.data.collect import Collected
from fedray.analysis.data.metrics import by_round, title
from fedray.analysis.plots.panels import by_run, figures_of, methods_of
from fedray.analysis.plots.style import over_seeds, panels, round_ticks, sparse, styled, styles, with_legend
from fedray.common.errors import UserError, unknown

ZOOMED = 3
"""Evaluated rounds that a zoom shows at least."""
FEWEST = 9
"""Evaluated rounds of a curve that is zoomed into."""


@styled
def curves(
    sweep: Collected, metric: str = "test_accuracy", band: str = "seeds", smooth: int = 1, x: str = "round"
) -> dict[str, Figure]:
    """Draw a metric, or several with commas, by round, or by another metric that grows from round to round.

    Args:
        sweep: the collected sweep.
        metric: name, or names with commas.
        band: `seeds`, the sample standard deviation over seeds; or `clients`, the metric's `_std`, which is over
            clients, averaged over seeds.
        smooth: each point is the mean of this many evaluated rounds, itself the last.
        x: `round`, or a metric; of that each method's mean over its seeds. It ends elsewhere for each method, so there
            is no zoom.

    Returns:
        Data set and model -> figure with a panel per setting; the key is empty where all runs share both.

    Raises:
        UserError: no run logs the metric by round, or no run has finished.
    """
    cells, wanted = labelled(sweep), metric.split(",")
    across = [] if x == "round" else [x]
    logged = {
        name: {run_id: sweep.history(run_id, name) for run_id in cells["run_id"]}
        for name in (*wanted, *across, *(f"{name}_std" for name in wanted if band == "clients"))
    }
    for name in logged:
        if not any(logged[name].values()):
            if name not in (*wanted, *across):
                those = [one for one in by_round(sweep) if f"{one}_std" in by_round(sweep)]
                raise UserError(f"--band: found clients; no run logs {name}; metrics that have one: {', '.join(those)}")
            raise unknown("--x" if name in across else "--metric", name, by_round(sweep))
    what = title(wanted[0], cells).removesuffix(" of the last round") if len(wanted) == 1 else " and ".join(wanted)
    lines = len(wanted) * cells["_row"].nunique()
    figures = {}
    for figure_name, settings in figures_of(cells):
        rounds = sorted({t for _, panel in settings for run_id in panel["run_id"] for t in logged[wanted[0]][run_id]})
        start = None if across else zoom_from(rounds)
        drawn = panels(
            [setting for setting, _ in settings],
            title(x, cells).removesuffix(" of the last round") if across else x,
            what + (f" (mean of {smooth} evaluations)" if smooth > 1 else ""),
            zoom=start is not None,
        )
        seeds = []
        for setting, panel in settings:
            pairs = product(methods_of(cells, panel), wanted)
            for place, (style, ((method, group), name)) in enumerate(zip(styles(), pairs, strict=False)):
                runs = by_run(logged[name], group, smooth)
                mean, spread = runs.mean(axis=1), runs.std(axis=1)
                if band == "clients":
                    spread = by_run(logged[f"{name}_std"], group, smooth).mean(axis=1).reindex(mean.index)
                if not len(runs):
                    continue
                seeds.append(runs.shape[1])
                style["label"] = method if len(wanted) == 1 else f"{method}: {name}"
                if across:
                    mean.index = spread.index = by_run(logged[x], group).mean(axis=1).reindex(runs.index)
                area = drawn.main[setting]
                _line(area, mean, place, lines, style)
                if spread.notna().any():
                    low, high = mean - spread, mean + spread
                    area.fill_between(mean.index, low, high, color=style["color"], alpha=0.12, linewidth=0)
                if start is not None:
                    _line(drawn.zoom[setting], mean.loc[start:], place, lines, style)
        if not across:
            _axes(list(drawn.main.values()), list(drawn.zoom.values()), rounds, start)
        note = over_seeds(seeds, "band") if band == "seeds" else "band: ± standard deviation over clients"
        figures[figure_name] = with_legend(drawn.figure, *drawn.main.values(), note=note)
    return figures


def zoom_from(rounds: list[int]) -> int | None:
    """Return the first round of the zoom, which shows the last fifth of the rounds; None for a short curve.

    So it shows all rounds that tables average (`last_rounds`).
    """
    if len(rounds) < FEWEST:
        return None
    late = sum(t > rounds[-1] - rounds[-1] // 5 for t in rounds)
    return rounds[-max(ZOOMED, late)]


def _line(area: Axes, mean: pd.Series, place: int, lines: int, style: dict[str, Any]) -> None:
    area.plot(mean.index, mean, markevery=sparse(len(mean), place, lines), **style)


def _axes(main: list[Axes], zooms: list[Axes], rounds: list[int], start: int | None) -> None:
    """Ticks, the last round among them. Zooms have lines alone, so that these are told apart."""
    round_ticks(main[0], rounds[0], rounds[-1])
    for area, zoom in zip(main, zooms, strict=False):
        area.axvspan(start or 0, rounds[-1], color="0.93", zorder=0)
        round_ticks(zoom, start or 0, rounds[-1], most=4)
    if zooms:
        zooms[0].set_ylabel("last rounds")
