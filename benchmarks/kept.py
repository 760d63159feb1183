"""Cost of clients' states: a round of FedTOGA relative to FedAvg, compared with a step; memory of driver and trial.

    python -m benchmarks.kept                      # w1, about 10 minutes
    python -m benchmarks.kept --pairs 3

One process is driver and trial, two actors train. The ratio of the steps is taken in this run, before the rounds.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p
from benchmarks.step import CLIENTS
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation


def main(
    workload: Annotated[str, typer.Option(help="w0 | w1 | w2")] = "w1",
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    actors: Annotated[int, typer.Option(min=1)] = 2,
    out: Path | None = None,
) -> None:
    """Print the ratios."""
    with p.report(f"kept {workload}", out) as told:
        work = replace(WORKLOADS[workload], cohort=CLIENTS[workload])
        toga, average = (Simulation(problem(work, name, actors=0), InlineBackend()) for name in ("fedtoga", "fedavg"))
        step = p.paired(toga.step, average.step, pairs)
        told.add("step of fedtoga / fedavg", step)
        del toga, average
        with contextlib.ExitStack() as stack:
            systems = [stack.enter_context(p.ours(workload, actors, name)) for name in ("fedavg", "fedtoga")]
            for system in systems:
                system.started()
            seconds, ended = p.interleaved(systems, pairs)
            if ended:
                raise RuntimeError("; ".join(ended.values()))
            plain, kept = systems
            own = {system.name: p.anonymous(system.process.pid) for system in systems}
            store = {system.name: p.shared(system.process.pid) for system in systems}
        told.add(
            "round of fedtoga / fedavg",
            p.ratio(seconds[kept.name], seconds[plain.name]),
            f"<= the step's + 0.1 = {step.median + 0.1:.2f}",
        )
        told.add(
            "anonymous memory of driver and trial, fedtoga / fedavg",
            round(own[kept.name] / own[plain.name], 2),
            "<= 1.3",
            megabytes={name: round(mb) for name, mb in own.items()},
            object_store_megabytes={name: round(mb) for name, mb in store.items()},
        )


if __name__ == "__main__":
    typer.run(main)
