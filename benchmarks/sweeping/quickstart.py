"""A whole sweep with this checkout and with another one, in turn: wall time and memory.

    git worktree add /tmp/before 97e0ed8
    python -m benchmarks.sweeping.quickstart /tmp/before                           # a few minutes a pair
    python -m benchmarks.sweeping.quickstart /tmp/before --sweep SMALL.yaml --pairs 1

Each run has a folder, a store and a storage of its own, in this environment. Memory is the largest sum of PSS of all
processes of the sweep, including Ray's daemons, sampled twice a second.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p


def measured(checkout: Path, sweep: Path) -> tuple[float, float]:
    """Return seconds and peak memory in MB of `fedray sweep`. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as name:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
        log = Path(name, "log")
        began, largest = time.perf_counter(), 0.0
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedray.cli", "sweep", str(sweep)],
                cwd=name,
                env=env | {"PYTHONPATH": str(checkout)},
                stdout=output,
                stderr=output,
            )
            while process.poll() is None:
                everyone = [process.pid, *p.descendants(process.pid)]
                largest = max(largest, sum(map(p.pss, everyone)))
                time.sleep(0.5)
        if process.returncode:
            raise RuntimeError(f"{checkout}: {log.read_text()[-2000:]}")
        return time.perf_counter() - began, largest


def main(
    other: Annotated[Path, typer.Argument(help="a checkout of another commit", exists=True, resolve_path=True)],
    sweep: Annotated[Path, typer.Option(exists=True, resolve_path=True)] = p.ROOT / "sweeps/quickstart.yaml",
    pairs: Annotated[int, typer.Option(min=1)] = 3,
    out: Path | None = None,
) -> None:
    """Print this checkout's time and memory over the other's."""
    with p.report(f"{sweep.stem}, this commit and another", out) as told:
        found: dict[Path, list[tuple[float, float]]] = {p.ROOT: [], other: []}
        for k in range(pairs):
            for checkout in (p.ROOT, other) if k % 2 == 0 else (other, p.ROOT):
                found[checkout].append(measured(checkout, sweep))
        ours, theirs = found[p.ROOT], found[other]
        git = subprocess.run(["git", "-C", str(other), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        commit = git.stdout.strip() or other.name
        for which, figure in enumerate(("wall time", "largest memory")):
            told.add(
                f"{figure}, this / {commit}",
                p.ratio([one[which] for one in ours], [one[which] for one in theirs]),
                this=[round(one[which]) for one in ours],
                other=[round(one[which]) for one in theirs],
            )


if __name__ == "__main__":
    typer.run(main)
