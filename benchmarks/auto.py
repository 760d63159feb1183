"""One cell on all cores (`runtime.actors: auto`) against one actor, compared with the floor's gain from more processes.

python -m benchmarks.auto                      # w2, about 10 minutes on two cores
python -m benchmarks.auto --pairs 3
python -m benchmarks.auto --seconds 60         # whole runs of a minute, which begin in one process, against `actors: 1`
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p

WHOLE = """
import sys, time
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.api import run_problem
work, actors, rounds = sys.argv[1:]
made = problem(WORKLOADS[work], actors=actors if actors == "auto" else int(actors), rounds=int(rounds))
began = time.perf_counter()
result = run_problem(made, progress=False)
print(time.perf_counter() - began, result.summary()["theta_sha256"])
"""


def run_whole(workload: str, actors: int | str, rounds: int) -> tuple[float, str]:
    """Return the seconds of a whole run in a process of its own, without imports and data, and its theta."""
    command = [sys.executable, "-c", WHOLE, workload, str(actors), str(rounds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(p.ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=p.ROOT, env=environment)
    seconds, theta = done.stdout.split()[-2:]
    return float(seconds), theta


def compare_whole(workload: str, seconds: float, pairs: int, out: Path | None) -> None:
    """Print the ratio of whole runs that take about so many seconds with one actor."""
    pace = (run_whole(workload, 1, 60)[0] - run_whole(workload, 1, 20)[0]) / 40
    rounds = max(round(seconds / pace), 1)
    with p.report(f"auto {workload}, runs of {seconds:g} s", out) as told:
        both = [(run_whole(workload, "auto", rounds), run_whole(workload, 1, rounds)) for _ in range(pairs)]
        if any(auto[1] != one[1] for auto, one in both):
            raise RuntimeError("theta differs")
        auto, one = ([pair[k][0] for pair in both] for k in (0, 1))
        told.add(f"{rounds} rounds, auto / one actor", p.ratio(auto, one))
        told.add("seconds with one actor", round(sum(one) / pairs, 1))


def main(
    workload: Annotated[str, typer.Option(help="w0 | w1 | w2")] = "w2",
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    seconds: Annotated[float | None, typer.Option(help="whole runs of so many seconds")] = None,
    out: Path | None = None,
) -> None:
    """Print the ratios."""
    if seconds is not None:
        compare_whole(workload, seconds, pairs, out)
        return
    cores = os.cpu_count() or 1
    with p.report(f"auto {workload}", out) as told, contextlib.ExitStack() as stack:
        systems = [
            p.ours(workload, "auto"),
            p.ours(workload, 1),
            p.floor(workload, cores),
            p.floor(workload, 1, "floor, one process"),
        ]
        for system in systems:
            stack.enter_context(system)
        for system in systems:
            system.started()
        seconds, ended = p.interleaved(systems, pairs)
        if ended:
            raise RuntimeError("; ".join(ended.values()))
        auto, one, many, alone = (seconds[system.name] for system in systems)
        ours, theirs = p.ratio(auto, one), p.ratio(many, alone)
        told.add(f"fedray auto / one actor, {cores} cores", ours)
        told.add(f"floor in {cores} processes / in one", theirs)
        told.add("the first over the second", round(ours.median / theirs.median, 3), "<= 1.1")


if __name__ == "__main__":
    typer.run(main)
