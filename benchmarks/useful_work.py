"""Costs of a sweep besides its cells' work: useful work / (2 cores x wall time), and copies of the data in memory.

    python -m benchmarks.useful_work                     # 100 cells of 1 s, about 2 minutes
    python -m benchmarks.useful_work --cells 10          # a quick look, about a minute

A cell is a job that keeps its trial busy for `--seconds` (an algorithm that spins for a tenth of it in each of ten
rounds). As in the papers' tables several methods (here: learning rates) share each of five seeds' partitions. Wall time
is that of `fedray sweep`'s own execution, from a fresh process to the last logged cell, including imports, Ray's start
and MLflow's store.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks import pairs as p
from fedray.algorithms.base import Algorithm, Client

ROUNDS = 10
CORES = 2
SEEDS = 5
TRAIN = 50_000
"""Number of training images of 3 KB: 154 MB, so that a second copy would show."""


class Spins(Algorithm):
    """FedAvg whose every client keeps its core busy for `seconds`: a job of a known length."""

    name = "spins"
    seconds: float = 0.1

    def begin(self, c: Client) -> None:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


def sweep(cells: int, seconds: float, data: Path) -> dict[str, object]:
    """Return the contents of the sweep's file."""
    return {
        "name": "overhead",
        "base": {
            "data": {"name": "npz", "path": str(data)},
            "partition": "iid",
            "clients": {"total": 500, "per_round": 1},
            "model": "simple_cnn",
            "algorithm": {"name": "benchmarks.useful_work:Spins", "seconds": seconds / ROUNDS},
            "training": {"rounds": ROUNDS, "local_steps": 1, "batch_size": 1},
            "evaluation": {"every": ROUNDS, "last": 1},
            "runtime": {"actors": 1, "device": "cpu"},
        },
        "grid": {"seed": list(range(SEEDS)), "training.lr": [0.01 * (k + 1) for k in range(cells // SEEDS)]},
    }


def watched(command: list[str], folder: Path, env: dict[str, str]) -> tuple[float, list[float]]:
    """Return the wall time of the command, and each trial's peak of unique memory in MB."""
    began = time.perf_counter()
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, cwd=p.ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
    largest: dict[int, float] = {}
    while process.poll() is None:
        time.sleep(2)
        for pid in p.find_titled(process.pid, "ray::_Inner"):
            unique = p.rollup(pid, "Private_Clean") + p.rollup(pid, "Private_Dirty")  # MB
            largest[pid] = max(largest.get(pid, 0.0), unique)
    if process.returncode:
        raise RuntimeError((folder / "log").read_text()[-2000:])
    return time.perf_counter() - began, list(largest.values())


def main(
    cells: Annotated[int, typer.Option(min=SEEDS, help="rounded up to a multiple of 5")] = 100,
    seconds: float = 1.0,
    out: Path | None = None,
) -> None:
    """Print the share of useful work."""
    cells = -(-cells // SEEDS) * SEEDS
    with (
        p.report(f"sweep overhead, {cells} cells of {seconds:g} s", out) as told,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)

        def run(count: int, train: int) -> tuple[float, list[float]]:
            data = folder / f"{train}.npz"
            x, y = np.random.default_rng(0).integers(0, 256, (train, 32, 32, 3), dtype=np.uint8), np.arange(train) % 10
            np.savez(data, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
            made = sweep(count, seconds, data) | {"name": f"overhead-{count}-{train}"}
            file = folder / f"{count}-{train}.yaml"
            file.write_text(yaml.safe_dump(made))
            env = os.environ | {
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/{train}.db",
                "FEDRAY_STORAGE": name,
                "PYTHONPATH": str(p.ROOT),
            }
            return watched([sys.executable, "-m", "fedray", "sweep", str(file)], folder, env)

        wall, _ = run(cells, TRAIN)
        # Both have equally many cells, so their heaps grow alike.
        large, small = (run(2 * SEEDS, train)[1] for train in (TRAIN + 1, 1000))
        useful = cells * seconds / (CORES * wall)
        told.add(
            "useful work / (2 cores x wall time)",
            round(useful, 3),
            ">= 0.95" if seconds >= 5 else ">= 0.88" if cells >= 1000 else ">= 0.78",
            cells=cells,
            wall_seconds=round(wall, 1),
        )
        added = (max(large) - max(small)) if large and small else float("nan")
        share = round(100 * added / (TRAIN * 3072 / 1e6), 1)
        told.add(
            "unique memory a trial adds for the data, % of the data",
            share,
            "<= 10",
            with_154_mb=[round(mb) for mb in large],
            with_3_mb=[round(mb) for mb in small],
        )


if __name__ == "__main__":
    typer.run(main)
