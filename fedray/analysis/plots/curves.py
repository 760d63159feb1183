"""Learning curves: a panel per setting, and below it a zoom on the last rounds; of many lines it alone has bands."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.analysis.data.axes import FINISHED, WITH_CURVE, label_finished, list_dotted
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import list_by_round, make_title
from fedray.analysis.plots.style import (
    Figures,
    choose_styles,
    describe_seeds,
    iter_methods,
    join_runs,
    level_panels,
    make_blocks,
    make_panels,
    set_round_ticks,
    split_figures,
    styled,
    thin_markers,
    with_legend,
)
from fedray.cells.metric import list_last_rounds
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_count, unknown
from fedray.config.evaluation import describe_late_start

ZOOMED = 3
"""Minimum number of evaluated rounds in a zoom."""
FEWEST = 9
"""Minimum number of evaluated rounds of a curve with a zoom."""
BANDED = 6
"""Maximum number of lines in a panel with bands; more hide each other, and get a panel each as well."""
SQUEEZED = 0.4
"""Part of a zoom that most lines must fill; if they fill less, the few beyond the widest gap are outside of it."""
UNIT = re.compile(r"(?:in |\()(%|degrees)\)?$")
"""End of a title."""
SECONDS = "seconds"
"""A run's rounds in seconds of training: their number times `seconds_per_round`."""
Logged = dict[str, dict[str, dict[int, float]]]
"""Metric -> run -> round -> value."""


@styled
def draw_curves(
    sweep: SweepTable, metric: str = "test_accuracy", band: str = "seeds", smooth: int = 1, x: str = "round"
) -> Figures:
    """Draw metrics by round, or by another metric that grows from round to round.

    metric: names; a comma separates panels with axes of their own, `+` adds a metric to the same panels. band: `seeds`,
    the sample standard deviation over seeds; or `clients`, the metric's `_std`, which is over clients, averaged over
    seeds (a metric without `_std` next to one that has it gets the band over seeds). smooth: each point is the mean of
    this many evaluated rounds, ending with its own. x: `round`, `seconds` of training, or a metric; each method's mean
    over its seeds is used. Methods end at different seconds and values, so there is no zoom; with several axes there is
    none either. Raises UserError if no run logs the metric by round, or no run has finished.
    """
    statuses = FINISHED if x == SECONDS else WITH_CURVE  # a run that `stop` ended has no `seconds_per_round`
    cells, quantities = label_finished(sweep, statuses=statuses), [part.split("+") for part in metric.split(",")]
    across = [] if x == "round" else [x]
    wanted = [name for names in quantities for name in names]
    logged = _read(sweep, cells, wanted, across)
    of_clients = _read_deviations(sweep, cells, wanted) if band == "clients" else {}
    many = f" (mean of {smooth} evaluations)" if smooth > 1 else ""
    said = [_describe_all(names, cells) + many for names in quantities]
    methods = _list_methods(cells)
    looks = choose_styles(
        (_label(row, name, names), methods[row]) for names in quantities for row, name in product(methods, names)
    )
    has_stopped = Status.STOPPED in {*cells["status"]}
    figures, many_ends = {}, "; a line ends with the first of its seeds" * has_stopped
    for figure_name, settings in split_figures(cells):
        drawn_by = [logged[name] for name in wanted if _list_rounds(settings, logged[name])]
        if not drawn_by:
            continue
        rounds = _list_rounds(settings, drawn_by[0])
        start = None if across or len(quantities) > 1 else _find_start(settings, drawn_by[0])
        every = make_blocks(
            [setting for setting, _ in settings],
            _describe(x, cells) if across else x,
            said,
            zoom=start is not None,
            level=False,
        )
        seeds, lines, far = [], [], list[tuple[str, Axes, tuple[float, float]]]()
        for (names, drawn), (setting, panel) in product(zip(quantities, every, strict=True), settings):
            pairs, reach = list(product(iter_methods(cells, panel), names)), dict[str, tuple[float, float]]()
            for place, ((method, group), name) in enumerate(pairs):
                mean, spread, count = _average(logged, of_clients, group, name, across, smooth)
                if not count:
                    continue
                label = _label(method, name, names)
                style = {"label": label, "markevery": thin_markers(len(mean), place, len(pairs)), **looks[label]}
                drawn.main[setting].plot(mean.index, mean, **style)
                lines.append(count)
                # Of many lines only the zoom has bands, where they are apart.
                banded = [areas for areas in (drawn.main if len(pairs) <= BANDED else {}, drawn.zoom) if areas]
                seeds += [count] if banded and name not in of_clients else []
                for areas in banded if spread.notna().any() else ():
                    low, high = (
                        (mean + sign * spread).loc[None if areas is drawn.main else start :] for sign in (-1, 1)
                    )
                    areas[setting].fill_between(low.index, low, high, color=style["color"], alpha=0.12, linewidth=0)
                if start is not None:
                    late, half = mean.loc[start:], spread.loc[start:].fillna(0)
                    reach[label] = float((late - half).min()), float((late + half).max())
                    style["markevery"] = thin_markers(len(late), place, len(pairs))
                    drawn.zoom[setting].plot(late.index, late, **style)
            if start is not None:
                left_out = _leave_out_far(drawn.zoom[setting], reach)
                far += [(label, drawn.zoom[setting], reach[label]) for label in left_out]
        if not across:
            _set_ticks(list(every[0].main.values()), list(every[0].zoom.values()), rounds, start)
        level = [level_panels([*drawn.main.values()]) for drawn in every]
        of_zooms = [level_panels([*drawn.zoom.values()]) for drawn in every if drawn.zoom]
        apart = "" if all(of_zooms) else "; y axes of the lower panels differ"
        apart = apart if all(level) else "; y axes differ"
        panels = [area for drawn in every for area in drawn.main.values()]
        are_many = len(methods) * max(map(len, quantities)) > BANDED
        note = _note(of_clients, seeds)
        note += " in the lower panels" if note.startswith("band") and are_many else ""
        if are_many and start is None:
            note = f"{describe_seeds(lines, '')}; no bands with more than {BANDED} lines"
        shaded = "" if start is None else "; shaded: rounds that tables average"
        which = "the lower panel" if len(settings) == 1 else "a lower panel"
        limits = {zoom: zoom.get_ylim() for _, zoom, _ in far}
        outside = dict.fromkeys(name for name, of, (low, high) in far if high < limits[of][0] or low > limits[of][1])
        shaded += f"; outside of {which}: {', '.join(outside)}" if outside else ""
        every[0].figure.set_label(note + shaded + many_ends + apart)
        figures[figure_name] = with_legend(every[0].figure, *panels)
    return figures


def explain_missing_zoom(sweep: SweepTable, metric: str = "test_accuracy", x: str = "round") -> str:
    """Return why a figure of `draw_curves` has no zoom on the last rounds; empty if each has one."""
    if x != "round":
        return f"found curves by {x}, which end at different values; curves by round have one"
    if "," in metric:
        return f"found {metric}, with panels each; one metric has a zoom, or several joined by +"
    cells, first = label_finished(sweep, statuses=WITH_CURVE), metric.partition("+")[0]
    runs = _read(sweep, cells, [first], [])[first]
    without = [settings for _, settings in split_figures(cells) if _find_start(settings, runs) is None]
    fewest = min(filter(None, (len(_list_rounds(settings, runs)) for settings in without)), default=0)
    few = f"found {format_count(fewest, 'evaluated round')}; {FEWEST} are required"
    return few if 0 < fewest < FEWEST else "found settings that end in other rounds, or are not finished" * bool(fewest)


def explain_late_start(sweep: SweepTable, metric: str = "test_accuracy") -> str:
    """Return a line if the curves of `draw_curves` by round begin late; empty if they do not."""
    cells, name = label_finished(sweep, statuses=WITH_CURVE), metric.replace("+", ",").partition(",")[0]
    runs = zip(cells["run_id"], cells["training.rounds"], strict=True) if "training.rounds" in cells else ()
    logged = ((sweep.get_history(run, name), rounds) for run, rounds in runs)
    return describe_late_start((min(found), rounds) for found, rounds in logged if found)


def _list_rounds(settings: Sequence[tuple[str, pd.DataFrame]], runs: Mapping[str, Mapping[int, float]]) -> list[int]:
    """Return the rounds in which any run of a figure was evaluated."""
    return sorted({t for _, panel in settings for run in panel["run_id"] for t in runs[run]})


def _find_start(settings: Sequence[tuple[str, pd.DataFrame]], runs: Mapping[str, Mapping[int, float]]) -> int | None:
    """Return the first round of a figure's zoom; None if tables average other rounds of one panel than of another."""
    drawn = [one for one in settings if _list_rounds([one], runs)]
    done = [[(setting, panel[panel["status"].isin(FINISHED)])] for setting, panel in drawn]
    ends = {max(_list_rounds(one, runs), default=0) for one in (drawn, *done)}
    return find_zoom(_list_rounds(drawn, runs)) if len(ends) == 1 else None


def _list_methods(cells: pd.DataFrame) -> dict[str, str]:
    """Return row -> its method, in the order of the cells, in which lines get their colours."""
    return dict(zip(map(str, cells["_row"]), map(str, cells["algorithm.name"]), strict=True))


def count_lines(sweep: SweepTable) -> int:
    """Return the number of curves in a panel of all methods; many are read more easily by `draw_multiples`."""
    return int(label_finished(sweep, statuses=WITH_CURVE)["_row"].nunique())


@styled
def draw_multiples(sweep: SweepTable, metric: str = "test_accuracy") -> dict[str, Figure]:
    """Return setting -> figure of a metric by round, a panel per method, in which the other methods are grey."""
    cells = label_finished(sweep, statuses=WITH_CURVE)
    logged, figures = _read(sweep, cells, [metric], []), {}
    looks = choose_styles(_list_methods(cells).items())
    for model, settings in split_figures(cells):
        for setting, panel in settings:
            means = {
                method: found
                for method, group in iter_methods(cells, panel)
                if len(found := _average(logged, {}, group, metric, [], 1)[0])
            }
            if not means:
                continue
            panels = make_panels(list(means), "round", _describe(metric, cells), height=1.1)
            seeds = panel[panel["_row"].isin(means)].groupby("_row")["seed"].nunique()
            rounds = sorted({t for mean in means.values() for t in mean.index})
            for method, area in panels.main.items():
                own = means[method], {"color": looks[method]["color"], "linewidth": 1.4}
                for mean, look in (*((mean, {"color": "0.82", "linewidth": 0.6}) for mean in means.values()), own):
                    area.plot(mean.index, mean, marker="o" if len(mean) == 1 else "", **look)
                set_round_ticks(area, rounds[0], rounds[-1], most=3)
            panels.figure.set_label(f"grey: the other methods; {describe_seeds(seeds, '')}")
            figures[" ".join(filter(None, (model, setting)))] = panels.figure
    return figures


def _read(sweep: SweepTable, cells: pd.DataFrame, wanted: Sequence[str], across: Sequence[str]) -> Logged:
    names = [name for name in (*wanted, *across) if name != SECONDS]
    logged = {name: {str(run): sweep.get_history(run, name) for run in cells["run_id"]} for name in names}
    if SECONDS in across:
        each = zip(cells["run_id"].astype(str), cells["metrics.seconds_per_round"], strict=True)
        logged[SECONDS] = {run: {t: t * seconds for name in wanted for t in logged[name][run]} for run, seconds in each}
    for name, runs in logged.items():
        if not any(runs.values()):
            option = "--x" if name in across else "--metric"
            keys = [key for key in list_dotted(cells) if option == "--x" and f".{key}".endswith(f".{name}")]
            meant = f"--kind sensitivity --x {keys[0]}" if keys else ""
            raise unknown(option, name, list_by_round(sweep), "`fedray list metrics`", meant)
    return logged


def _read_deviations(sweep: SweepTable, cells: pd.DataFrame, wanted: Sequence[str]) -> Logged:
    """Return the `_std` of the metrics that have one; that of `personal_accuracy_e1` is `personal_std_e1`."""
    names = list_by_round(sweep)
    found = [
        (one, re.sub(end, r"_std\1", one, count=1)) for one in names for end in (r"(?:_accuracy)?(_e\d+)?$", "()$")
    ]
    logged = {name: deviation for name, deviation in found if deviation in names}
    if have := [name for name in wanted if name in logged]:
        return {name: {str(run): sweep.get_history(run, logged[name]) for run in cells["run_id"]} for name in have}
    raise UserError(
        f"--band: found clients; no run logs a deviation over clients of {' or '.join(wanted)}; metrics that have one: "
        f"{', '.join(logged) or 'none'}"
    )


def _average(
    logged: Logged, of_clients: Logged, group: pd.DataFrame, name: str, across: Sequence[str], smooth: int
) -> tuple[pd.Series, pd.Series, int]:
    """Return the mean over a method's runs by round or by the metric across, the band's half width, their number."""
    runs = join_runs(logged[name], group, smooth)
    mean, spread = runs.mean(axis=1), runs.std(axis=1)
    if name in of_clients:
        spread = join_runs(of_clients[name], group, smooth).mean(axis=1).reindex(mean.index)
    for metric in across:
        mean.index = spread.index = join_runs(logged[metric], group).mean(axis=1).reindex(runs.index)
    return mean, spread, runs.shape[1] if len(runs) else 0


def _describe(metric: str, cells: pd.DataFrame) -> str:
    return make_title(metric, cells).removesuffix(" of the last round")


def _describe_all(names: Sequence[str], cells: pd.DataFrame) -> str:
    """Return the title of one metric; for several their common unit, or their names if units differ."""
    if len(names) == 1:
        return _describe(names[0], cells)
    units = {found[1] if (found := UNIT.search(_describe(name, cells))) else "" for name in names}
    return " and ".join(names) if len(units) > 1 or "" in units else units.pop()


def _label(method: str, name: str, names: Sequence[str]) -> str:
    """Return the label of a line in a panel with these metrics."""
    return method if len(names) == 1 else f"{method}: {name}"


def _note(of_clients: Logged, seeds: Sequence[int]) -> str:
    """Return the explanation of the bands. seeds: numbers of seeds of the lines whose band is over seeds."""
    if not of_clients:
        return describe_seeds(seeds, "band")
    note = "band: ± standard deviation over clients"
    return f"{note} for {', '.join(of_clients)}; {describe_seeds(seeds, 'others')}" if seeds else note


def find_zoom(rounds: list[int]) -> int | None:
    """Return the first round of the zoom, which shows the last fifth of the rounds; None for a short curve.

    It includes all rounds that tables average (`list_last_rounds`).
    """
    if len(rounds) < FEWEST:
        return None
    late = sum(t > rounds[-1] - rounds[-1] // 5 for t in rounds)
    return rounds[-max(ZOOMED, late)]


def _leave_out_far(zoom: Axes, reach: Mapping[str, tuple[float, float]]) -> list[str]:
    """Limit a zoom to most lines if these fill little of it; return the labels of the others.

    reach: label -> the lowest and highest point of a line with its band. Of fewer than three lines none is far.
    """
    if len(reach) < 3:
        return []
    order = sorted(reach, key=lambda label: sum(reach[label]))
    gaps = [reach[upper][0] - reach[lower][1] for lower, upper in pairwise(order)]
    cut = max(range(len(gaps)), key=gaps.__getitem__) + 1
    most, others = sorted((order[:cut], order[cut:]), key=len, reverse=True)
    low, high = (min(reach[label][0] for label in most), max(reach[label][1] for label in most))
    whole = max(top for _, top in reach.values()) - min(bottom for bottom, _ in reach.values())
    if len(most) < 2 * len(others) or not 0 < high - low < SQUEEZED * whole:
        return []
    margin = 0.05 * (high - low)
    zoom.set_ylim(low - margin, high + margin)
    return others


def _set_ticks(main: list[Axes], zooms: list[Axes], rounds: list[int], start: int | None) -> None:
    """Set ticks, including the last round, and shade the rounds that tables average."""
    set_round_ticks(main[0], rounds[0], rounds[-1])
    for area, zoom in zip(main, zooms, strict=False):
        area.axvspan(list_last_rounds(rounds[-1])[0] - 0.5, rounds[-1], color="0.93", zorder=0)
        set_round_ticks(zoom, start or 0, rounds[-1], most=4)
