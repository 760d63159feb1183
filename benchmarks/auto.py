"""One cell on all cores (`runtime.actors: auto`) against one actor, compared with the floor's gain from more processes.

python -m benchmarks.auto                      # w2, about 10 minutes on two cores
python -m benchmarks.auto --pairs 3
"""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p


def main(
    workload: Annotated[str, typer.Option(help="w0 | w1 | w2")] = "w2",
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    out: Path | None = None,
) -> None:
    """Print the ratios."""
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
