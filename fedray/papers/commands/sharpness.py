"""`fedray sharpness --run ID [--plot eigen]`: the largest eigenvalues of the Hessian at a run's model."""

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

from fedray.analysis.plots.landscape import draw_contours, draw_surfaces
from fedray.analysis.plots.style import save
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, escape, unknown
from fedray.common.output import OutputFile
from fedray.papers.sharpness import PLANES, TrainedRun


def main(
    run: Annotated[list[str], typer.Option(help="a cell's run id in MLflow; several compare")],
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
    steps, titles, planes = np.linspace(-reach, reach, points), list[str](), list[np.ndarray]()
    for each in run:
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
        drawn = draw(_tell_apart(titles, run), plot, steps, planes)
        sys.stdout.write("".join(f"{path}\n" for path in save({"": drawn}, out, stem, overwrite)))


def _tell_apart(titles: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Add its run to each title whose first line is another's, too."""
    methods = [title.partition("\n")[0] for title in titles]
    return [
        f"{run[:8]}: {title}" if methods.count(method) > 1 else title
        for title, method, run in zip(titles, methods, runs, strict=True)
    ]
