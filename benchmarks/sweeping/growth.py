"""Thousands of cells: growth of the driver, and duration of a large plan.

    python -m benchmarks.sweeping.growth                     # 2,000 real cells, 20,000 planned: about 15 minutes
    python -m benchmarks.sweeping.growth --cells 60 --planned 2000

The real cells train for one round, so that the sweep itself is measured. The driver's anonymous memory is read whenever
a cell ends; growth is the slope of the least-squares line through the second half of these values.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import pairs as p

SEEDS = 10


def sweep(cells: int) -> dict[str, Any]:
    """Return a sweep with cells of one round."""
    return {
        "name": f"growth-{cells}",
        "base": {
            "data": "digits",
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "clients": {"total": 20, "per_round": 5},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": "fedavg",
            "training": {"rounds": 1, "local_steps": 1},
        },
        "grid": {"seed": list(range(SEEDS)), "training.lr": [1e-5 * (k + 1) for k in range(-(-cells // SEEDS))]},
    }


def called(folder: Path, made: dict[str, Any], *options: str) -> subprocess.Popen[str]:
    """Start `fedray sweep` with it, in a folder."""
    (folder / "sweep.yaml").write_text(json.dumps(made))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "FEDRAY_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "fedray.cli", "sweep", "sweep.yaml", *options],
        cwd=folder,
        env=env | {"PYTHONPATH": str(p.ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def anonymous(pid: int, field: str = "RssAnon") -> float:
    """Return a process's memory in kilobytes of 1000 bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1.024


def real(cells: int, told: p.Report) -> None:
    """Run the cells, and add the results."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = called(Path(folder), sweep(cells))
        seen: list[tuple[int, float]] = []
        for line in process.stdout or ():
            if found := re.match(r"\s*\[(\d+)/", line):
                seen.append((int(found[1]), anonymous(process.pid)))
        if process.wait():
            raise RuntimeError(f"exit code {process.returncode}")
        wall = time.perf_counter() - began
    half = np.array(seen[len(seen) // 2 :])
    slope = float(np.polyfit(half[:, 0], half[:, 1], 1)[0])
    told.add(
        "driver's growth per cell, kB",
        round(slope, 1),
        "<= 20",
        cells=len(seen),
        wall_seconds=round(wall, 1),
        megabytes_first_half_last=[round(seen[k][1] / 1000, 1) for k in (0, len(seen) // 2, -1)],
    )


def planned(cells: int, told: p.Report) -> None:
    """Make a dry run, and add its duration."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = called(Path(folder), sweep(cells), "--dry-run")
        lines = sum(1 for _ in process.stdout or ())
        if process.wait():
            raise RuntimeError(f"exit code {process.returncode}")
        told.add(f"dry run of {cells} cells, seconds", round(time.perf_counter() - began, 1), "<= 30", lines=lines)


def main(
    cells: Annotated[int, typer.Option(min=20)] = 2000,
    planned_cells: Annotated[int, typer.Option("--planned", min=10)] = 20_000,
    out: Path | None = None,
) -> None:
    """Print growth and seconds."""
    with p.report("thousands of cells", out) as told:
        planned(planned_cells, told)
        real(cells, told)


if __name__ == "__main__":
    typer.run(main)
