"""A local step in one process: FedTOGA's against FedAvg's, and FedAvg's with and without the in-place guard.

python -m benchmarks.step            # LeNet (w2), about 6 minutes; --workload w1 takes 3
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from unittest import mock

import typer

from benchmarks import pairs as p
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation

CLIENTS = {"w0": 100, "w1": 10, "w2": 2}
"""Clients per round: a few seconds of work."""


def main(workload: str = "w2", pairs: Annotated[int, typer.Option(min=1)] = 20, out: Path | None = None) -> None:
    """Print the ratio of rounds of the same clients."""
    work = replace(WORKLOADS[workload], cohort=CLIENTS[workload])
    with p.report(f"step {workload}", out) as told:
        toga, average = (Simulation(problem(work, name, actors=0), InlineBackend()) for name in ("fedtoga", "fedavg"))
        told.add("step of fedtoga / fedavg", p.paired(toga.step, average.step, pairs), "<= 2.15")

        def unguarded() -> None:
            with contextlib.ExitStack() as stack:
                for module in ("training.local_training", "server.simulation"):
                    guard = f"fedray.engine.{module}.forbid_changes"
                    stack.enter_context(mock.patch(guard, return_value=contextlib.nullcontext()))
                stack.enter_context(mock.patch("fedray.engine.training.local_training.refuse_changed"))
                average.step()

        told.add("step with the in-place guard / without", p.paired(average.step, unguarded, pairs), "<= 1.01")


if __name__ == "__main__":
    typer.run(main)
