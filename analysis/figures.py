"""Figures from MLflow: `python -m analysis.figures SWEEP [--kind ...] [--metric ...] [--x algorithm.rho] [--out DIR]`.

Without --kind: curves, and the sensitivity to every number of the configuration by which alone runs differ.
- curves: metrics by round (by what was sent: `--x megabytes_sent`), a file per setting, a line per method.
- sensitivity: a table's metric by a hyper-parameter, the heterogeneity or the participation, a file per setting.
- bars: a metric of many parts, such as the layers' Λ, at a round; a file per setting.
- methods: a table's metric, a bar for each method; a file per setting.
- classes: each class's accuracy by round, a file per setting and method.
- partition: samples per client and class, from the configuration alone.
- search: best so far by rounds trained, each trial by key, pairs of keys, importance; also of a grid's options.
A line is the mean over the finished seeds, the band (the whiskers) the sample standard deviation. Methods differ by
dashes, markers and hatches, not only by colour. PNG and PDF.
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.axes import labels, separating, symbol
from analysis.collect import Collected, collect
from analysis.drawing import search
from analysis.metrics import DEFAULT, NEVER, by_round, history, of_parts, title, values
from analysis.style import COLOURS, HATCHES, WIDTH, axes, save, styled, styles, with_legend
from fedray.common.component import Component
from fedray.common.errors import UserError, unknown
from fedray.datasets import data_source
from fedray.partitions import partition
from fedray.partitions.heterogeneity import heatmap

KINDS = ("curves", "sensitivity", "bars", "methods", "classes", "partition", "search")


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
        x: `round`, or a metric; of that each method's mean over its seeds.

    Returns:
        Setting -> figure.

    Raises:
        UserError: no run logs the metric by round, or no run has finished.
    """
    cells, wanted = labelled(sweep), metric.split(",")
    across = [] if x == "round" else [x]
    logged = {
        name: {run_id: history(sweep, run_id, name) for run_id in cells["run_id"]}
        for name in (*wanted, *across, *(f"{name}_std" for name in wanted if band == "clients"))
    }
    for name in logged:
        if not any(logged[name].values()):
            raise unknown("--metric", name, by_round(sweep))
    figures = {}
    for setting, panel in cells.groupby("_column", sort=False):
        what = title(wanted[0], cells).removesuffix(" of the last round") if len(wanted) == 1 else " and ".join(wanted)
        along = title(x, cells).removesuffix(" of the last round") if across else x
        figure, area = axes(along, what + (f" (mean of {smooth} evaluations)" if smooth > 1 else ""), str(setting))
        for style, ((method, group), name) in zip(styles(), product(_methods(cells, panel), wanted), strict=False):
            runs = _frame(logged[name], group, smooth)
            if not len(runs):
                continue
            mean, spread = runs.mean(axis=1), runs.std(axis=1)
            if band == "clients":
                spread = _frame(logged[f"{name}_std"], group, smooth).mean(axis=1).reindex(mean.index)
            at = (_frame(logged[x], group, 1).mean(axis=1).reindex(runs.index) if across else runs.index).to_numpy()
            area.plot(
                at,
                mean,
                label=method if len(wanted) == 1 else f"{method}: {name}",
                markevery=max(1, len(at) // 8),
                **style,
            )
            if spread.notna().any():
                area.fill_between(at, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
        area.xaxis.set_major_locator(MaxNLocator(integer=not across))
        figures[str(setting)] = with_legend(figure, area)
    return figures


@styled
def sensitivity(sweep: Collected, x: str, metric: str = DEFAULT) -> dict[str, Figure]:
    """Draw the metric against a key whose numbers are the x axis.

    A method without such an option (fedavg has no ρ) is a horizontal line. A method that ran with only one value of it,
    since another key varies there, is left out.

    Args:
        sweep: the collected sweep.
        x: the dotted key.
        metric: as for tables.

    Returns:
        Setting -> figure.

    Raises:
        UserError: the key is not a number, or never varies by itself.
    """
    if x not in sweep.cells:
        raise unknown("--x", x, [str(key) for key in sweep.cells if "." in str(key) and "metrics." not in str(key)])
    numbers = pd.to_numeric(sweep.cells[x], errors="coerce")
    if (numbers.isna() & sweep.cells[x].notna()).any():
        raise UserError(f"--x: the values of {x} are not numbers: {', '.join(sorted(set(sweep.cells[x].dropna())))}")
    if numbers.nunique() < 2:
        raise UserError(f"--x: {x} has one value in this sweep; a key that varies is required")
    cells = labelled(sweep, without=x).assign(_x=numbers, _value=values(sweep, metric))
    cells = cells[cells["_value"].notna() & (cells["_value"] != NEVER)]
    count = cells.groupby(["_column", "_row"])["_x"].transform("nunique")
    if not (count > 1).any():
        raise UserError(f"--x: no finished runs differ by {x} alone")
    cells = cells[count != 1]
    figures = {}
    for setting, panel in cells[cells["_column"].isin(cells.loc[cells["_x"].notna(), "_column"])].groupby(
        "_column", sort=False
    ):
        figure, area = axes(symbol(x, sweep.cells), title(metric, sweep.cells), str(setting))
        for style, (method, group) in zip(styles(), _methods(cells, panel), strict=False):
            at = group.dropna(subset="_x").groupby("_x")["_value"]
            if at.ngroups:
                area.errorbar(at.mean().index, at.mean(), yerr=at.std().fillna(0), capsize=2, label=method, **style)
            elif len(group):
                area.axhline(group["_value"].mean(), label=method, **{**style, "marker": ""})
        if numbers.min() > 0 and numbers.max() >= 20 * numbers.min():
            area.set_xscale("log")
        figures[str(setting)] = with_legend(figure, area)
    return figures


def varied(sweep: Collected) -> list[str]:
    """The dotted keys for which `sensitivity` has something to draw: numbers by which alone finished runs differ."""
    cells = labelled(sweep)
    keys = [
        key
        for key in map(str, cells)
        if "." in key
        and not key.startswith("metrics.")
        and cells[key].nunique() > 1
        and pd.to_numeric(cells[key].dropna(), errors="coerce").notna().all()
    ]
    alike = {key: labelled(sweep, without=key).assign(_x=cells[key]).groupby(["_column", "_row"]) for key in keys}
    return [key for key, groups in alike.items() if groups["_x"].nunique().max() > 1]


@styled
def bars(sweep: Collected, metric: str, at: int | None = None) -> dict[str, Figure]:
    """Draw every metric `METRIC_PART` as bars, side by side for the methods that log them.

    Args:
        sweep: the collected sweep.
        metric: what the names of the metrics begin with.
        at: the round; default the last evaluated one.

    Returns:
        Setting -> figure.

    Raises:
        UserError: no run logs such metrics, or none at that round.
    """
    cells, parts = labelled(sweep), of_parts(sweep, metric)
    read = {(run_id, part): history(sweep, run_id, f"{metric}_{part}") for run_id in cells["run_id"] for part in parts}
    value = {key: found[at or max(found)] for key, found in read.items() if found and (at is None or at in found)}
    if not value:
        rounds = sorted({round for found in read.values() for round in found})
        raise UserError(f"--round: found {at}; {metric}_{parts[0]} was logged at {', '.join(map(str, rounds))}")
    figures = {}
    for setting, panel in cells.groupby("_column", sort=False):
        groups = [
            (method, [run_id for run_id in group["run_id"] if (run_id, parts[0]) in value])
            for method, group in _methods(cells, panel)
        ]
        drawn = [(k, method, ids) for k, (method, ids) in enumerate(groups) if ids]
        when = "the last evaluated round" if at is None else f"round {at}"
        figure, area = axes("", f"{Component.symbol(metric)} at {when}", str(setting))
        for place, (k, method, ids) in enumerate(drawn):
            heights = pd.DataFrame([[value[run_id, part] for part in parts] for run_id in ids])
            area.bar(
                np.arange(len(parts)) + 0.8 * ((place + 0.5) / len(drawn) - 0.5),
                heights.mean(),
                0.8 / len(drawn),
                yerr=heights.std() if len(ids) > 1 else None,
                label=method,
                capsize=1.5,
                facecolor="white" if k % len(HATCHES) else "0.35",
                edgecolor=COLOURS[k % len(COLOURS)],
                linewidth=0.6,
                hatch=HATCHES[k % len(HATCHES)],
                error_kw={"elinewidth": 0.6},
            )
        area.set_xticks(range(len(parts)), parts, rotation=90 if len(parts) > 6 else 30, ha="center")
        area.grid(axis="x", visible=False)
        figures[str(setting)] = with_legend(figure, area)
    return figures


@styled
def methods(sweep: Collected, metric: str = DEFAULT) -> dict[str, Figure]:
    """Draw a table's metric as one bar for each method, mean over seeds.

    Returns:
        Setting -> figure.
    """
    cells = labelled(sweep).assign(_value=values(sweep, metric))
    figures = {}
    for setting, panel in cells[cells["_value"] != NEVER].groupby("_column", sort=False):
        found = panel.groupby("_row", sort=False)["_value"]
        figure, area = axes("", title(metric, cells), str(setting))
        heights = found.mean().dropna()
        spread = found.std().reindex(heights.index).fillna(0)
        area.bar(
            heights.index, heights, 0.7, yerr=spread, capsize=1.5, facecolor="0.75", edgecolor="black", linewidth=0.6
        )
        area.tick_params(axis="x", rotation=90 if len(heights) > 4 else 0)
        area.grid(axis="x", visible=False)
        figures[str(setting)] = figure
    return figures


@styled
def classes(sweep: Collected) -> dict[str, Figure]:
    """Draw the accuracy of each class (down) by round (across), mean over seeds.

    Returns:
        Setting and method -> figure.

    Raises:
        UserError: no run has logged `accuracy_class_C` (evaluation.probes: [classes]).
    """
    cells, parts = labelled(sweep), of_parts(sweep, "accuracy_class")
    figures = {}
    for (setting, method), group in cells.groupby(["_column", "_row"], sort=False):
        rows = [
            _frame(
                {run_id: history(sweep, run_id, f"accuracy_class_{part}") for run_id in group["run_id"]}, group
            ).mean(axis=1)
            for part in parts
        ]
        grid = pd.DataFrame(dict(zip(parts, rows, strict=True))).dropna(how="all")
        if not len(grid):
            continue
        figure, area = axes("round", "class", f"{method}, {setting}", 0.4 + 0.04 * min(len(parts), 20))
        edges = np.concatenate([[grid.index[0] - 0.5], (grid.index[1:] + grid.index[:-1]) / 2, [grid.index[-1] + 0.5]])
        image = area.pcolormesh(
            edges, np.arange(len(parts) + 1) - 0.5, grid.to_numpy().T, cmap="Greys_r", vmin=0, vmax=100, rasterized=True
        )
        area.grid(visible=False)
        area.invert_yaxis()
        area.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, label="test accuracy in %")
        figures[f"{method} {setting}"] = figure
    return figures


@styled
def partitions(sweep: Collected) -> dict[str, Figure]:
    """Draw the samples per client and class, of the first seed. No run is needed.

    Returns:
        Data, partition and number of clients -> figure.

    Raises:
        UserError: the data are not here.
    """
    cells = sweep.cells.assign(
        _setting=labels(sweep.cells, "data,partition"), _clients=sweep.cells.get("clients.total", "")
    ).drop_duplicates(["_setting", "_clients"])
    figures = {}
    for cell, setting, clients in zip(cells["cell"], cells["_setting"], cells["_clients"], strict=True):
        config = sweep.configs[cell]
        data = data_source(config["data"]).load()
        shards = partition(config["partition"]).split(data, config["clients"]["total"], config["seed"])
        name = f"{setting} {clients} clients" if cells["_clients"].nunique() > 1 else setting
        figures[name] = figure = heatmap(shards.label_counts(data.y_train, data.num_classes), title=name)
        figure.set_size_inches(WIDTH, WIDTH * (0.45 + 0.02 * min(data.num_classes, 20)))
        figure.axes[0].grid(visible=False)
    return figures


def labelled(sweep: Collected, without: str = "") -> pd.DataFrame:
    """The finished cells with `_row` (the method) and `_column` (the setting), neither naming the key `without`.

    Raises:
        UserError: no cell has finished.
    """
    cells = sweep.cells[sweep.cells["status"] == "finished"].drop(columns=[without], errors="ignore")
    if not len(cells):
        raise UserError(f"sweep: {sweep.name!r} has no finished run")
    rows = labels(cells, "algorithm")
    return cells.assign(_row=rows, _column=labels(cells, separating(cells, "partition", rows)))


def _frame(logged: dict[str, dict[int, float]], group: pd.DataFrame, smooth: int = 1) -> pd.DataFrame:
    """Rounds x runs, the rounds that all runs have that log anything."""
    runs = pd.DataFrame({run_id: logged[run_id] for run_id in group["run_id"] if logged[run_id]}, dtype=float)
    return runs.sort_index().dropna().rolling(smooth, min_periods=1).mean()


def _methods(cells: pd.DataFrame, panel: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every method of the sweep, so that it has the same style in each figure; its cells of this one, if any."""
    for method in dict.fromkeys(cells["_row"]):
        yield str(method), panel[panel["_row"] == method]


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    kind: Annotated[str, typer.Option(help=" | ".join(KINDS))] = "",
    x: Annotated[
        str,
        typer.Option(
            help="sensitivity: a key, algorithm.rho, say; default each that varies; curves: megabytes_sent, say"
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="curves: logged by round, several with commas; sensitivity, methods: as in tables; "
            "bars: what its parts begin with"
        ),
    ] = "",
    band: Annotated[str, typer.Option(help="curves: seeds | clients")] = "seeds",
    smooth: Annotated[int, typer.Option(min=1, help="curves: mean of so many evaluated rounds")] = 1,
    round: Annotated[int | None, typer.Option(min=1, help="bars: of this round; default the last evaluated")] = None,
    out: Annotated[Path, typer.Option(help="folder for the PNG and PDF files")] = Path("figures"),
) -> None:
    """Draw a sweep."""
    if kind and kind not in KINDS:
        raise unknown("--kind", kind, KINDS)
    if band not in ("seeds", "clients"):
        raise unknown("--band", band, ("seeds", "clients"))
    sweep, drawn = collect(name), dict[str, dict[str, Figure]]()
    if kind in ("", "curves"):
        by = x if kind and x else "round"
        drawn["curves" if by == "round" else f"by-{by}"] = curves(sweep, metric or "test_accuracy", band, smooth, by)
    if kind in ("", "sensitivity"):
        keys = [x] if x else varied(sweep)
        drawn |= {f"sensitivity-{key}": sensitivity(sweep, key, (metric if kind else "") or DEFAULT) for key in keys}
    if kind == "bars":
        drawn["bars"] = bars(sweep, metric or "lambda", round)
    if kind == "methods":
        drawn["methods"] = methods(sweep, metric or DEFAULT)
    if kind == "classes":
        drawn["classes"] = classes(sweep)
    if kind == "search" or (not kind and sweep.search.keys):
        drawn |= {f"search-{what}": figures for what, figures in search.drawn(sweep).items()}
    if kind == "partition":
        drawn["partition"] = partitions(sweep)
    if not drawn:
        raise UserError("--x: no finished runs of this sweep differ by a number of the configuration alone")
    for what, figures in drawn.items():
        for path in save(figures, out, "-".join(filter(None, (name, what, metric.replace(",", "-"))))):
            sys.stdout.write(f"{path}\n")
    for what, names in _left_out(sweep, kind, metric):
        sys.stdout.write(f"not drawn, {what}: {'; '.join(names)}\n")


def _left_out(sweep: Collected, kind: str, metric: str) -> Iterator[tuple[str, list[str]]]:
    """Why -> the labels of the cells that the figures do not contain."""
    cells = sweep.cells[:0] if kind == "partition" else sweep.cells
    for status, group in cells[cells["status"] != "finished"].groupby("status"):
        yield str(status), list(group["label"])
    finished = cells[cells["status"] == "finished"]
    for name in metric.split(",") if kind in ("", "curves") and metric else ():
        if len(lacking := finished[finished[f"metrics.{name}"].isna()]):
            yield f"without {name}", list(lacking["label"])


if __name__ == "__main__":
    from fedray.common.entry import entry

    entry(main)
