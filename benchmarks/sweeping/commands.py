"""Seconds of the commands that read a sweep of 200 finished cells, on an idle machine.

    python -m benchmarks.sweeping.commands                 # about 3 minutes
    python -m benchmarks.sweeping.commands --old DIRECTORY # another checkout as well, in turn, on the same store

The store is made here: ten rows of two settings and ten seeds, with the artefacts, the parameters and the number of
evaluated rounds of real runs of digits. No cell is trained; accuracies are drawn. Each command is a fresh process; the
first call of each does not count, since it fills the page cache.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import pairs as p
from fedray.cells.record import CellRun, RunRecord
from fedray.cells.status import Ending, Status
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.plan import make_plan
from fedray.tracking.tracker import Tracker

SEEDS = 10
FILE: dict[str, Any] = {
    "name": "commands",
    "base": {
        "data": "digits",
        "clients": {"total": 20, "per_round": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": 60, "local_epochs": 2, "batch_size": 20},
        "evaluation": {"every": 2},
    },
    "grid": {
        "partition": [{"name": "dirichlet", "alpha": alpha} for alpha in (0.5, 0.1)],
        "algorithm": [
            "fedavg",
            *({"name": "fedsam", "rho": rho} for rho in (0.02, 0.05, 0.2)),
            *({"name": "mofedsam", "rho": 0.05, "beta": beta} for beta in (0.1, 0.5)),
            *({"name": "fedtoga", "rho": 0.05, "alpha": alpha} for alpha in (0.01, 0.05, 0.1, 0.5)),
        ],
        "seed": list(range(SEEDS)),
    },
}
COMMANDS: Mapping[str, tuple[list[str], float | None]] = {
    "status": (["status", "commands"], 1.5),
    "tables": (["tables", "commands"], 3.0),
    "a sweep with nothing to do": (["sweep", "commands.yaml"], 3.0),
    "report": (["report", "commands"], None),
}
"""What is measured -> the arguments of `fedray`, and the goal in seconds."""


def draw_history(cell: Cell, rng: np.random.Generator) -> list[dict[str, float]]:
    """Return rows with the metrics of a real run of the cell."""
    training, evaluation = cell.run.training, cell.run.evaluation
    rounds = [t for t in range(1, training.rounds + 1) if evaluation.is_due(t, training.rounds)]
    curve = 95 * (1 - np.exp(-np.array(rounds) / 12)) + rng.normal(0, 0.5, len(rounds))
    return [
        {
            "round": t,
            "test_accuracy": value,
            "test_balanced_accuracy": value,
            "test_macro_f1": value,
            "test_loss": 1 - value / 100,
            "train_loss": 1 - value / 100,
            "lr": 0.1,
            "drift": 1.0,
            "divergence": 1.0,
            "megabytes_sent": 0.1 * t,
        }
        for t, value in zip(rounds, map(float, curve), strict=True)
    ]


def make_store(folder: Path) -> None:
    """Write the sweep's file and a store with all its cells finished into `folder`, the working directory."""
    (folder / "commands.yaml").write_text(json.dumps(FILE))
    plan, rng = make_plan(Sweep.parse(FILE)), np.random.default_rng(0)
    tracker = Tracker()
    parent = tracker.open_sweep("commands", "", plan.list_cells())
    ending = Ending(Status.FINISHED)
    for cell in plan.cells.values():
        problem = plan.problems.get_problem(cell)
        tags, files = {"fedray.sweep": "commands", **cell.run.make_tags()}, problem.make_artefacts()
        run = CellRun(cell, tags, parent, files)
        tracker.open_cell(run, again=False)
        table = {
            "class": [k // 10 for k in range(100)],
            "predicted": [k % 10 for k in range(100)],
            "samples": [4] * 100,
        }
        hashes = {"theta_sha256": "0" * 64, "state_sha256": "0" * 64}
        totals = {"seconds_per_round": 0.1, "megabytes_down": 1.0, "megabytes_up": 1.0}
        tracker.close_cell(run, RunRecord(ending, draw_history(cell, rng), totals, hashes, {"confusion": table}))
    tracker.close_sweep(parent, {Status.FINISHED: len(plan.cells)})
    tracker.close()


def time_command(arguments: list[str], checkout: Path, folder: Path) -> float:
    """Return the seconds of one call of `fedray`. Raises RuntimeError if it fails."""
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "fedray.cli", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    taken = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(f"{arguments}: {ended.stderr[-2000:]}")
    return taken


def main(
    old: Annotated[Path | None, typer.Option(help="another checkout; by default only this one is measured")] = None,
    calls: Annotated[int, typer.Option(min=1)] = 5,
    out: Path | None = None,
) -> None:
    """Print the median seconds of each command."""
    with p.report("commands on 200 finished cells", out) as told, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in [key for key in os.environ if key.startswith(("MLFLOW_", "FEDRAY_"))]:
            del os.environ[variable]
        os.chdir(folder)
        make_store(folder)
        sides = {"": p.ROOT} if old is None else {"": p.ROOT, ", the other checkout": old.resolve()}
        for what, (arguments, goal) in COMMANDS.items():
            each: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(calls + 1):
                for side, checkout in sides.items():
                    each[side].append(time_command(arguments, checkout, folder))
            for side, seconds in each.items():
                limit = "" if goal is None or side else f"<= {goal:g}"
                counted = [round(one, 2) for one in seconds[1:]]
                told.add(f"{what}, seconds (median){side}", round(float(np.median(counted)), 2), limit, each=counted)


if __name__ == "__main__":
    typer.run(main)
