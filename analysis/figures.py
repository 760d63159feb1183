"""Figures from MLflow: `python -m analysis.figures SWEEP [--kind ...] [--metric ...] [--x algorithm.rho] [--out DIR]`.

Without --kind: curves, and the sensitivity to every number of the configuration by which alone runs differ.
- curves: metrics by round (by what was sent: `--x megabytes_sent`), a panel per setting, a line per method, and below
  a zoom on the last rounds.
- sensitivity: a table's metric by a hyper-parameter, the heterogeneity or the participation, a panel per setting.
- bars: a metric of many parts, such as the layers' Λ, at a round; a file per setting.
- methods: a table's metric, a bar for each method; a file per setting.
- classes: each class's accuracy by round, a file per setting and method.
- fairness: how the accuracy is distributed over the clients, a panel per setting (evaluation.personal).
- confusion: what each class is taken for, a file per setting and method.
- partition: samples per client and class, from the configuration alone.
- search: best so far by rounds trained, each trial by key, pairs of keys, importance; also of a grid's options.
A line is the mean over the finished seeds, the band (the bars) the sample standard deviation. Methods differ by
dashes, markers and hatches, not only by colour. Panels share their axes. Settings of another data set or model are a
file of their own. PNG and PDF.
"""

import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.drawing import search
from analysis.drawing.clients import confusion, fairness
from analysis.drawing.curves import curves
from analysis.drawing.panels import by_run, labelled, methods_of
from analysis.drawing.sensitivity import sensitivity, varied
from analysis.drawing.style import COLOURS, HATCHES, WIDTH, axes, over_seeds, save, styled, with_legend
from analysis.reading.axes import labels
from analysis.reading.collect import Collected, collect
from analysis.reading.metrics import DEFAULT, NEVER, is_rounds, of_parts, title, values
from analysis.reading.plugins import refuse_foreign
from fedray.common.component import Component
from fedray.common.errors import UserError, unknown
from fedray.datasets import data_source
from fedray.partitions import partition
from fedray.partitions.heterogeneity import heatmap

KINDS = ("curves", "sensitivity", "bars", "methods", "classes", "fairness", "confusion", "partition", "search")


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
    read = {(run_id, part): sweep.history(run_id, f"{metric}_{part}") for run_id in cells["run_id"] for part in parts}
    value = {key: found[at or max(found)] for key, found in read.items() if found and (at is None or at in found)}
    if not value:
        rounds = sorted({round for found in read.values() for round in found})
        raise UserError(f"--round: found {at}; {metric}_{parts[0]} was logged at {', '.join(map(str, rounds))}")
    figures, logged = {}, {run_id for run_id, _ in value}
    for setting, panel in cells.groupby("_column", sort=False):
        groups = [
            (method, [run_id for run_id in group["run_id"] if run_id in logged])
            for method, group in methods_of(cells, panel)
        ]
        drawn = [(k, method, ids) for k, (method, ids) in enumerate(groups) if ids]
        when = "the last evaluated round" if at is None else f"round {at}"
        figure, area = axes("", f"{Component.symbol(metric)} at {when}", str(setting))
        for place, (k, method, ids) in enumerate(drawn):
            heights = pd.DataFrame([[value.get((run_id, part), np.nan) for part in parts] for run_id in ids])
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
        note = over_seeds((len(ids) for _, _, ids in drawn), "bars")
        figures[str(setting)] = with_legend(figure, area, note=note)
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
    try:
        cells, parts = labelled(sweep), of_parts(sweep, "accuracy_class")
    except UserError:
        raise UserError("--kind: classes needs runs with the probe: evaluation.probes: [classes]") from None
    figures = {}
    for (setting, method), group in cells.groupby(["_column", "_row"], sort=False):
        rows = [
            by_run({run_id: sweep.history(run_id, f"accuracy_class_{part}") for run_id in group["run_id"]}, group).mean(
                axis=1
            )
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
        UserError: the data are not here, or data or partition are classes of your own.
    """
    cells = sweep.cells.assign(
        _setting=labels(sweep.cells, "data,partition"), _clients=sweep.cells.get("clients.total", "")
    ).drop_duplicates(["_setting", "_clients"])
    figures = {}
    for cell, setting, clients in zip(cells["cell"], cells["_setting"], cells["_clients"], strict=True):
        config = sweep.configs[cell]
        refuse_foreign("--kind partition", {name: config[name] for name in ("data", "partition")})
        data = data_source(config["data"]).load()
        shards = partition(config["partition"]).split(data, config["clients"]["total"], config["seed"])
        name = f"{setting} {clients} clients" if cells["_clients"].nunique() > 1 else setting
        figures[name] = figure = heatmap(shards.label_counts(data.y_train, data.num_classes), title=name)
        figure.set_size_inches(WIDTH, WIDTH * (0.45 + 0.02 * min(data.num_classes, 20)))
        figure.axes[0].grid(visible=False)
    return figures


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
    if kind == "fairness":
        drawn["fairness"] = fairness(sweep)
    if kind == "confusion":
        drawn["confusion"] = confusion(sweep)
    if kind == "partition":
        drawn["partition"] = partitions(sweep)
    if not drawn:
        raise UserError("--x: no finished runs of this sweep differ by a number of the configuration alone")
    for what, figures in drawn.items():
        for path in save(figures, out, "-".join(filter(None, (name, what, metric.replace(",", "-"))))):
            sys.stdout.write(f"{path}\n")
    for what, names in _left_out(sweep, drawn, metric):
        sys.stdout.write(f"not drawn, {what}: {'; '.join(names)}\n")


def _left_out(sweep: Collected, drawn: Collection[str], metric: str) -> Iterator[tuple[str, list[str]]]:
    """Why -> the labels of the cells that the figures, by their names, do not contain."""
    cells = sweep.cells[:0] if "partition" in drawn else sweep.cells
    for status, group in cells[cells["status"] != "finished"].groupby("status"):
        yield str(status), list(group["label"])
    finished = cells[cells["status"] == "finished"]
    if any(name.startswith(("curves", "by-")) for name in drawn):
        for name in filter(None, metric.split(",")):
            if len(lacking := finished[finished[f"metrics.{name}"].isna()]):
                yield f"without {name}", list(lacking["label"])
    elif is_rounds(metric):
        rounds = values(sweep, metric)[finished.index]
        if len(lacking := finished[rounds.isna() | (rounds == NEVER)]):
            yield "never at the target, or without one", list(lacking["label"])


if __name__ == "__main__":
    from fedray.common.entry import entry

    entry(main)
