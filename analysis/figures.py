"""Figures from MLflow: `python -m analysis.figures SWEEP [--kind curves|sensitivity] [--x algorithm.rho] [--out DIR]`.

curves: a metric by round, a file per setting, a line per method. sensitivity: a table's metric by a hyper-parameter,
the heterogeneity or the participation, a file per setting. A line is the mean over the finished seeds, the band (the
bars) the sample standard deviation. Methods differ by dashes and markers, not only by colour. PNG and PDF.
"""

import re
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.axes import labels, separating
from analysis.collect import Collected, collect
from analysis.metrics import DEFAULT, NEVER, history, title, values
from fedray.errors import UserError, unknown
from fedray.sweepfile import SYMBOLS

WIDTH = 3.3
"""Inches: a column of a two-column paper."""
STYLE: Any = {
    "font.size": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.0, "lines.markersize": 3.0, "pdf.fonttype": 42,
    "legend.fontsize": 6, "legend.frameon": False, "axes.grid": True, "grid.linewidth": 0.3, "grid.alpha": 0.5}
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f", "#e69f00")
"""Okabe and Ito's, told apart by colour-blind readers."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PER_ROUND = ("test_accuracy", "test_loss", "train_loss")


@mpl.rc_context(STYLE)
def curves(sweep: Collected, metric: str = "test_accuracy") -> dict[str, Figure]:
    """Setting -> learning curves. Raises UserError for a metric that is not logged by round, or no finished run."""
    logged = {run_id: history(sweep, run_id, metric) for run_id in _finished(sweep)["run_id"]}
    if not any(logged.values()):
        raise UserError(f"--metric: found {metric!r}; the runs log {', '.join(PER_ROUND)} by round")
    cells = _labelled(sweep)
    figures = {}
    for setting, panel in cells.groupby("_column", sort=False):
        figure, axes = _axes("round", title(metric).removesuffix(" of the last round"), str(setting))
        for style, (method, group) in zip(styles(), _methods(cells, panel), strict=False):
            if len(group):
                runs = pd.DataFrame({run_id: logged[run_id] for run_id in group["run_id"]}).sort_index().dropna()
                rounds, mean, std = runs.index.to_numpy(), runs.mean(axis=1), runs.std(axis=1)
                axes.plot(rounds, mean, label=method, markevery=max(1, len(rounds) // 8), **style)
                if runs.shape[1] > 1:
                    axes.fill_between(rounds, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
        figures[str(setting)] = _with_legend(figure, axes)
    return figures


@mpl.rc_context(STYLE)
def sensitivity(sweep: Collected, x: str, metric: str = DEFAULT) -> dict[str, Figure]:
    """Setting -> the metric against a dotted key, whose numbers are the x axis.

    What takes no such option (fedavg has no ρ) is a horizontal line. Raises UserError for a key that does not vary or
    is not a number.
    """
    if x not in sweep.cells:
        raise unknown("--x", x, [str(key) for key in sweep.cells if "." in str(key) and "metrics." not in str(key)])
    numbers = pd.to_numeric(sweep.cells[x], errors="coerce")
    if (numbers.isna() & sweep.cells[x].notna()).any():
        raise UserError(f"--x: the values of {x} are not numbers: {', '.join(sorted(set(sweep.cells[x].dropna())))}")
    if numbers.nunique() < 2:
        raise UserError(f"--x: {x} has one value in this sweep; a key that varies is required")
    cells = _labelled(sweep, without=x).assign(_x=numbers, _value=values(sweep, metric))
    cells = cells[cells["_value"].notna() & (cells["_value"] != NEVER)]
    figures = {}
    for setting, panel in cells.groupby("_column", sort=False):
        figure, axes = _axes(SYMBOLS.get(x.rpartition(".")[2], x.rpartition(".")[2]), title(metric), str(setting))
        for style, (method, group) in zip(styles(), _methods(cells, panel), strict=False):
            at = group.dropna(subset="_x").groupby("_x")["_value"]
            if at.ngroups:
                axes.errorbar(at.mean().index, at.mean(), yerr=at.std().fillna(0), capsize=2, label=method, **style)
            elif len(group):
                axes.axhline(group["_value"].mean(), label=method, **{**style, "marker": ""})
        if numbers.min() > 0 and numbers.max() >= 20 * numbers.min():
            axes.set_xscale("log")
        figures[str(setting)] = _with_legend(figure, axes)
    return figures


@mpl.rc_context(STYLE)
def save(figures: dict[str, Figure], out: Path, stem: str) -> list[Path]:
    """Write `OUT/STEM-SETTING.png` and `.pdf`; without the setting where there is only one."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for setting, figure in figures.items():
        name = stem if len(figures) == 1 else f"{stem}-{setting}"
        name = re.sub(r"[^\w.=-]+", "-", name.replace("α", "alpha"))
        for suffix in (".png", ".pdf"):
            paths.append(out / f"{name}{suffix}")
            figure.savefig(paths[-1], dpi=300)
    return paths


def styles() -> Iterator[dict[str, Any]]:
    """Endless; the first 40 differ in dashes or marker, so also in grey."""
    for colour, dashes, marker in zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
        yield {"color": colour, "linestyle": dashes, "marker": marker}


def _finished(sweep: Collected) -> pd.DataFrame:
    done = sweep.cells[sweep.cells["status"] == "finished"]
    if not len(done):
        raise UserError(f"sweep: {sweep.name!r} has no finished run")
    return done


def _labelled(sweep: Collected, without: str = "") -> pd.DataFrame:
    """The finished cells with `_row` (the method) and `_column` (the setting), neither naming the key `without`."""
    cells = _finished(sweep).drop(columns=[without], errors="ignore")
    rows = labels(cells, "algorithm")
    return cells.assign(_row=rows, _column=labels(cells, separating(cells, "partition", rows)))


def _methods(cells: pd.DataFrame, panel: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every method of the sweep, so that it has the same style in each figure; its cells of this one, if any."""
    for method in dict.fromkeys(cells["_row"]):
        yield str(method), panel[panel["_row"] == method]


def _axes(x: str, y: str, name: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 0.75 * WIDTH), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y.partition(",")[0], title=name)
    return figure, axes


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    count = len(axes.get_legend_handles_labels()[1])
    if count > 6:  # beside many lines there is no room inside
        figure.set_size_inches(WIDTH, 0.75 * WIDTH + 0.11 * int(np.ceil(count / 2)))
        figure.legend(loc="outside lower center", ncols=2)
    else:
        axes.legend()
    return figure


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    kind: Annotated[str, typer.Option(help="curves | sensitivity")] = "curves",
    x: Annotated[str, typer.Option(help="sensitivity: a dotted key, e.g. algorithm.rho, partition.alpha")] = "",
    metric: Annotated[str, typer.Option(help="curves: logged by round; sensitivity: as in tables")] = "",
    out: Annotated[Path, typer.Option(help="folder for the PNG and PDF files")] = Path("figures"),
) -> None:
    """Draw a sweep."""
    if kind not in ("curves", "sensitivity"):
        raise unknown("--kind", kind, ("curves", "sensitivity"))
    if kind == "sensitivity" and not x:
        raise UserError("--x: sensitivity needs a key, such as algorithm.rho, partition.alpha or clients.per_round")
    sweep = collect(name)
    figures = curves(sweep, metric or "test_accuracy") if kind == "curves" else \
        sensitivity(sweep, x, metric or DEFAULT)
    for path in save(figures, out, f"{name}-{kind}" + (f"-{x}" if x else "")):
        sys.stdout.write(f"{path}\n")
    left = sweep.cells[sweep.cells["status"] != "finished"]
    for status, group in left.groupby("status"):
        sys.stdout.write(f"not drawn, {status}: {'; '.join(group['label'])}\n")


if __name__ == "__main__":
    from fedray.cli import entry

    entry(main)
