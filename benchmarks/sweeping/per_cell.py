"""Cost of a cell besides its work, compared with MLflow and Tune alone, the least that such a sweep needs.

    python -m benchmarks.sweeping.per_cell               # 40 and 120 cells, 3 times each, about 8 minutes
    python -m benchmarks.sweeping.per_cell --cells 8 --pairs 1

Both run jobs that keep a core busy for a second, two at a time, once `--cells` of them and once three times as many.
The difference of the two wall times, per additional cell and on two cores, minus the second, is the cost of a cell;
the cost of starting cancels.
"Alone" means: Tune with a Trainable that spins and reports once per second, actors kept; and a callback that writes to
MLflow, in a thread, as MLflow's own integration does for a trial: a run, its parameters, ten rounds of metrics, its
end.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p
from benchmarks.sweeping.useful_work import CORES, SEEDS, random_images, sweep

SECONDS = 1.0


def ours(cells: int, folder: Path) -> float:
    """Return the wall seconds of `fedray sweep`."""
    data = folder / "data.npz"
    if not data.exists():
        random_images(data, 1000)
    file = folder / "sweep.yaml"
    file.write_text(json.dumps(sweep(cells, SECONDS, data)))
    return wall([sys.executable, "-m", "fedray.cli", "sweep", str(file)], folder)


def alone(cells: int, folder: Path) -> float:
    """Return the wall seconds of Tune and MLflow."""
    return wall([sys.executable, "-m", "benchmarks.sweeping.alone", str(cells), str(SECONDS)], folder)


def wall(command: list[str], folder: Path) -> float:
    """Return the wall seconds of a command with its own store and storage. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        env = os.environ | {
            "MLFLOW_TRACKING_URI": f"sqlite:///{name}/mlflow.db",
            "FEDRAY_STORAGE": f"{name}/storage",
            "PYTHONPATH": str(p.ROOT),
        }
        began = time.perf_counter()
        done = subprocess.run(command, cwd=name, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
        return time.perf_counter() - began


def main(
    cells: Annotated[int, typer.Option(min=SEEDS)] = 40,
    pairs: Annotated[int, typer.Option(min=1)] = 3,
    out: Path | None = None,
) -> None:
    """Print both costs and their difference."""
    few, many = -(-cells // SEEDS) * SEEDS, 3 * -(-cells // SEEDS) * SEEDS
    costs: dict[str, list[float]] = {"fedray": [], "alone": []}
    with p.report("a cell's cost", out) as told, tempfile.TemporaryDirectory() as name:
        for k in range(pairs):
            sides = {"fedray": ours, "alone": alone}
            for side in sides if k % 2 == 0 else reversed(sides):
                more = sides[side](many, Path(name)) - sides[side](few, Path(name))
                costs[side].append(CORES * more / (many - few) - SECONDS)
        mine, least = statistics.median(costs["fedray"]), statistics.median(costs["alone"])
        told.add("seconds a cell beside its work, MLflow and Tune alone", round(least, 3), "", each=costs["alone"])
        told.add("seconds a cell beside its work, fedray", round(mine, 3), "", each=costs["fedray"])
        told.add("fedray less MLflow and Tune alone", round(mine - least, 3), "<= 0.10", cells=[few, many])


if __name__ == "__main__":
    typer.run(main)
