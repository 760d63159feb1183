"""Parts of a round in one process, FedAvg's and FedTOGA's in turn, in percent of FedAvg's round.

    python -m benchmarks.parts                  # w0, half a minute
    python -m benchmarks.parts --workload w1    # two minutes

Each part is the time spent in some functions, less that of other parts called from them: the median of all rounds.
A round is the sum of its parts. Noting them adds about 2 % to a round of w0.
"""

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import typer

from benchmarks import pairs as p
from benchmarks.step import CLIENTS
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.algorithms import ALGORITHMS
from fedray.algorithms.descent import Descent
from fedray.common.rng import TorchStream
from fedray.engine.guard import Guard
from fedray.engine.process import worker
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.reduction import Reduction
from fedray.engine.server.simulation import Simulation
from fedray.engine.training.local_training import LocalTrainer
from fedray.engine.training.stack import Stacking
from fedray.models.network import Network

METHODS = ("fedavg", "fedtoga")
PARTS: dict[str, list[tuple[Any, str]]] = {
    "gradients": [(Network, "compute_gradient"), (Stacking, "compute_gradients")],
    "the method's vectors": [(ALGORITHMS[m], name) for m in METHODS for name in ("begin", "direction", "upload")],
    "descent": [(Descent, "step")],
    "seeds and guard": [
        (TorchStream, "__enter__"),
        (TorchStream, "__exit__"),
        (LocalTrainer, "guard"),
        (Guard, "__exit__"),
    ],
    "a client's start": [(LocalTrainer, "start")],
    "a client's steps and end": [(LocalTrainer, "train"), (worker, "train_stack")],
    "exact sums": [(worker, "_reduce"), (Reduction, "finish")],
    "draws, batches, loop over clients": [(worker.Worker, "train")],
    "server": [(Simulation, "step")],
}
"""Part -> the functions whose own time it is."""


@contextlib.contextmanager
def noted() -> Iterator[Counter[str]]:
    """Note in a block how many nanoseconds each part takes."""
    spent: Counter[str] = Counter()
    inner: list[int] = []

    def note(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            began = time.perf_counter_ns()
            inner.append(0)
            try:
                return function(*args, **options)
            finally:
                took = time.perf_counter_ns() - began
                spent[part] += took - inner.pop()
                if inner:
                    inner[-1] += took

        return call

    with contextlib.ExitStack() as stack:
        for part, functions in PARTS.items():
            for owner, name in functions:
                stack.enter_context(mock.patch.object(owner, name, note(part, getattr(owner, name))))
        yield spent


def main(workload: str = "w0", rounds: Annotated[int, typer.Option(min=1)] = 40, out: Path | None = None) -> None:
    """Print the parts."""
    work = replace(WORKLOADS[workload], cohort=CLIENTS[workload])
    with p.report(f"parts {workload}", out) as told, noted() as spent:
        runs = {name: Simulation(problem(work, name, actors=0), InlineBackend()) for name in METHODS}
        found: dict[str, list[Counter[str]]] = {name: [] for name in METHODS}
        for k in range(2 + rounds):
            for name in METHODS if k % 2 == 0 else METHODS[::-1]:
                spent.clear()
                runs[name].step()
                if k >= 2:
                    found[name].append(Counter(spent))
        medians = {
            name: {part: float(np.median([one[part] for one in each])) for part in PARTS}
            for name, each in found.items()
        }
        whole = sum(medians["fedavg"].values())
        for name, each in medians.items():
            parts = {part: round(100 * took / whole, 1) for part, took in each.items()}
            told.add(f"round of {name}, % of FedAvg's", round(100 * sum(each.values()) / whole, 1), parts=parts)


if __name__ == "__main__":
    typer.run(main)
