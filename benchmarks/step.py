"""A local step in one process: FedTOGA's against FedAvg's, and FedAvg's with and without the in-place guard.

python -m benchmarks.step            # LeNet (w2), about 6 minutes; --workload w1 takes 3
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer

from benchmarks import pairs as p
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server import simulation
from fedray.engine.server.simulation import Simulation
from fedray.engine.training import local_training

CLIENTS = {"w0": 100, "w1": 10, "w2": 2}
"""Clients per round: a few seconds of work."""


@contextlib.contextmanager
def leave_unguarded() -> Iterator[None]:
    """Let a method change what it may not change, in place or by assignment, within a block."""

    def call(method: Any, hook: str, function: Callable[[Any], Any], side: Any) -> Any:
        return function(side)

    guards = {"guard": lambda *given: contextlib.nullcontext(), "ask": call}
    with mock.patch.multiple(local_training, **guards, let_assign=call), mock.patch.multiple(simulation, **guards):
        yield


def main(workload: str = "w2", pairs: Annotated[int, typer.Option(min=1)] = 20, out: Path | None = None) -> None:
    """Print the ratio of rounds of the same clients."""
    work = replace(WORKLOADS[workload], cohort=CLIENTS[workload])
    with p.report(f"step {workload}", out) as told:
        toga, average = (Simulation(problem(work, name, actors=0), InlineBackend()) for name in ("fedtoga", "fedavg"))
        told.add("step of fedtoga / fedavg", p.paired(toga.step, average.step, pairs), "<= 2.15")
        measured = p.paired(average.step, leave_unguarded()(average.step), pairs)
        told.add("step with the in-place guard / without", measured, "<= 1.01")


if __name__ == "__main__":
    typer.run(main)
