"""FedTOGA's local step against FedAvg's, in one process: at most 2.1 times, two backward passes being most of it.

python -m tests.benchmarks.step            # LeNet (w2), about 4 minutes; --workload w1 takes 2
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedray.engine.backend import InlineBackend
from fedray.engine.simulation import Simulation
from tests.benchmarks import pairs as p
from tests.benchmarks.systems.ours import problem
from tests.benchmarks.workloads import WORKLOADS

CLIENTS = {"w0": 100, "w1": 10, "w2": 2}
"""Clients a round: a few seconds of work."""


def main(workload: str = "w2", pairs: Annotated[int, typer.Option(min=1)] = 20, out: Path | None = None) -> None:
    """Print the ratio of rounds of the same clients."""
    work = replace(WORKLOADS[workload], cohort=CLIENTS[workload])
    with p.report(f"step {workload}", out) as told:
        toga, average = (Simulation(problem(work, name, actors=0), InlineBackend()) for name in ("fedtoga", "fedavg"))
        told.add("step of fedtoga / fedavg", p.paired(toga.step, average.step, pairs), "<= 2.1")


if __name__ == "__main__":
    typer.run(main)
