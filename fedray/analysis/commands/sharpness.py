"""`fedray sharpness --run ID [--plot eigen]`: the largest eigenvalues of the Hessian at a run's model."""

import csv
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from fedray.analysis.output import make_dir
from fedray.analysis.plots.style import save
from fedray.analysis.sharpness import PLANES, Trained, draw
from fedray.common.errors import UserError, unknown


def main(
    run: Annotated[list[str], typer.Option(help="a cell's run id in MLflow; several compare")],
    plot: Annotated[str, typer.Option(help="none | random | eigen: the plane in which the loss is drawn")] = "none",
    samples: Annotated[int, typer.Option(min=1, help="training samples")] = 2000,
    points: Annotated[int, typer.Option(min=3, help="of the grid, per side")] = 25,
    reach: Annotated[
        float, typer.Option(help="the plane is -REACH..REACH, above 0; filters' or eigenvectors' lengths")
    ] = 1.0,
    device: Annotated[str, typer.Option(help="cpu | cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for what is written")] = Path("sharpness"),
) -> None:
    """Print the top Hessian eigenvalues of runs, and draw the loss around them."""
    if plot not in PLANES:
        raise unknown("--plot", plot, PLANES)
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device: found {device!r}; cpu, or cuda where there is one")
    if not 0 < reach < math.inf:
        raise UserError(f"--reach: found {reach:g}; expected a number above 0")
    torch.set_num_threads(1)  # the bits of a sum depend on it
    for each in run:
        trained = Trained(each, samples, device)
        make_dir(out)
        found, vectors = trained.eigen()
        path = out / f"{each}.json"
        path.write_text(json.dumps(asdict(found) | {"ratio": found.ratio}, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{found}\n  {path}\n")
        if plot == "none":
            continue
        steps = np.linspace(-reach, reach, points)
        losses = trained.plane(plot, vectors, steps)
        paths = [out / f"{each}-{plot}.csv", *save({"": draw(found, plot, steps, losses)}, out, f"{each}-{plot}")]
        with paths[0].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["first", "second", "loss"])
            writer.writerows(
                [f"{a:.6g}", f"{b:.6g}", f"{losses[i, j]:.8g}"]
                for i, a in enumerate(steps)
                for j, b in enumerate(steps)
            )
        sys.stdout.write("".join(f"  {path}\n" for path in paths))
