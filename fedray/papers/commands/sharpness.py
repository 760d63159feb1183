"""`fedray sharpness SWEEP [--cell CELL] [--plot eigen]`: the largest eigenvalues of the Hessian at models of runs."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

from fedray.analysis.data.stored import read_sweep
from fedray.analysis.plots.style import ACROSS, WIDE, WIDTH, make_panels, save, styled
from fedray.cells.status import Status
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, escape, unknown
from fedray.common.output import OutputFile
from fedray.papers.sharpness import PLANES, TrainedRun

WORDS = {"random": "random direction", "eigen": "eigenvector"}
HEIGHT = 2.0
"""Inches: of a panel."""


def main(
    sweep: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="the sweep whose runs are examined")] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL",
            help="a cell of the sweep: its number, hash, or a pattern of labels: 'fedavg*'; repeatable; default all",
        ),
    ] = None,
    run: Annotated[list[str] | None, typer.Option(help="in place of a sweep: a cell's run id in MLflow")] = None,
    plot: Annotated[
        str, typer.Option(help="none | random | eigen: the plane in which to draw the loss, a panel per run")
    ] = "none",
    samples: Annotated[int, typer.Option(min=1, help="training samples")] = 2000,
    points: Annotated[int, typer.Option(min=3, help="grid points per side")] = 25,
    reach: Annotated[
        float,
        typer.Option(help="the plane extends from -REACH to REACH, in units of the filters' or eigenvectors' lengths"),
    ] = 1.0,
    device: Annotated[str, typer.Option(help="cpu | cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for the files")] = Path("sharpness"),
    overwrite: Overwrite = False,
) -> None:
    """Print the top Hessian eigenvalues of runs, and draw the loss around them."""
    if plot not in PLANES:
        raise unknown("--plot", plot, PLANES)
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device: found {device!r}; cpu, or cuda where there is one")
    if not 0 < reach < math.inf:
        raise UserError(f"--reach: found {reach:g}; expected a number above 0")
    torch.set_num_threads(1)  # the bits of a sum depend on it
    runs = find_runs(sweep, cell or (), run or ())
    steps, titles, planes = np.linspace(-reach, reach, points), list[str](), list[np.ndarray]()
    for each in runs:
        file = OutputFile("--out", out / f"{each}.json", (".json",), overwrite)
        trained = TrainedRun(each, samples, device)
        found, vectors = trained.find_eigenvalues()
        file.write(json.dumps(asdict(found) | {"ratio": found.ratio}, indent=1) + "\n")
        sys.stdout.write(f"{escape(str(found))}\n  {file.path}\n")
        if plot == "none":
            continue
        losses = trained.measure_plane(plot, vectors, steps)
        planes.append(losses)
        method = trained.config.algorithm.make_label()
        titles.append(f"{method}\nλ1 = {found.eigenvalues[0]:.3g}, λ1/λ5 = {found.ratio:.3g}")
        rows = (f"{a:.6g},{b:.6g},{losses[i, j]:.8g}" for i, a in enumerate(steps) for j, b in enumerate(steps))
        file = OutputFile("--out", out / f"{each}-{plot}.csv", (".csv",), overwrite)
        file.write("\n".join(["first,second,loss", *rows, ""]))
        sys.stdout.write(f"  {file.path}\n")
    for stem, draw in ((plot, draw_contours), (f"{plot}-3d", draw_surfaces)) if planes else ():
        drawn = draw(_tell_apart(titles, runs), plot, steps, planes)
        sys.stdout.write("".join(f"{path}\n" for path in save({"": drawn}, out, stem, overwrite)))


def find_runs(sweep: str | None, cells: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return the run ids of a sweep's cells, in the order of `cells`, each once; or the given ones.

    Raises:
        UserError: neither or both are given, a text names no cell, or a named cell has no finished run.
    """
    if sweep is None:
        if cells or not runs:
            raise UserError("sharpness: a sweep is required, with --cell for some of its cells; or --run ID")
        return list(runs)
    if runs:
        raise UserError("--run: a sweep is given too; --cell names its cells")
    found = read_sweep(sweep)
    chosen = dict.fromkeys(hash for text in cells for hash in found.select(text, "--cell")) or found.cells
    if lacking := next((hash for hash in chosen if found.get_status(hash) is not Status.FINISHED), ""):
        label = found.cells[lacking].label
        raise UserError(f"sharpness: {label} of {found.name} has no finished run; --cell names others")
    return [found.records[hash].run_id for hash in chosen]


def _tell_apart(titles: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Add its run to each title whose first line is another's, too."""
    methods = [title.partition("\n")[0] for title in titles]
    return [
        f"{run[:8]}: {title}" if methods.count(method) > 1 else title
        for title, method, run in zip(titles, methods, runs, strict=True)
    ]


@styled
def draw_contours(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw contours of the losses `(n, n)`, first direction first: a panel per model, all with the same levels."""
    drawn = make_panels(titles, f"along {WORDS[kind]} 1", f"along {WORDS[kind]} 2", height=HEIGHT)
    # Equal areas between the levels, however steep the losses are.
    levels = np.unique(np.quantile(np.stack(losses), np.linspace(0, 1, 16)))
    for area, loss in zip(drawn.main.values(), losses, strict=True):
        filled = area.contourf(steps, steps, loss.T, levels, cmap="Greys")
        area.contour(steps, steps, loss.T, levels, colors="black", linewidths=0.3)
        area.plot(0, 0, marker="+", color="red", markersize=6)
        area.grid(visible=False)
    areas: list[Axes] = list(drawn.main.values())
    drawn.figure.colorbar(filled, ax=areas, label="training loss", ticks=levels[::3], format="%.3g", spacing="uniform")
    return drawn.figure


@styled
def draw_surfaces(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw the loss over the plane in three dimensions, as `contours`; all panels have the same axis upwards."""
    across = min(len(titles), ACROSS)
    down = -(-len(titles) // across)
    figure = Figure(figsize=(WIDTH if across == 1 else WIDE, down * 2.6), layout="constrained")
    low, high = min(map(np.min, losses)), max(map(np.max, losses))
    first, second = np.meshgrid(steps, steps, indexing="ij")
    for place, (title, loss) in enumerate(zip(titles, losses, strict=True)):
        area: Axes3D = figure.add_subplot(down, across, place + 1, projection="3d")
        area.plot_surface(first, second, loss, cmap="viridis", vmin=low, vmax=high, rstride=1, cstride=1, linewidth=0)
        area.set_zlim(low, high)
        area.set_title(title, pad=-10)
        area.set_xlabel(f"{WORDS[kind]} 1", labelpad=-6)
        area.set_ylabel(f"{WORDS[kind]} 2", labelpad=-6)
        area.set_zlabel("training loss", labelpad=-6)
        area.tick_params(pad=-3)
        area.locator_params(nbins=5)
        area.set_box_aspect(None, zoom=0.78)
    return figure
