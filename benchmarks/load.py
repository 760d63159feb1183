"""A round of clients of very unequal sizes, on 2 actors, compared with the longest-first bound.

    python -m benchmarks.load           # 20 pairs, about 3 minutes

Dirichlet(0.1) over 100 clients, cohort 10, LeNet, batches of 10. A round's bound is the largest share of the
longest-first assignment, in samples, times the seconds per sample; these come from rounds of 8 equal clients that
alternate with the unequal ones. The assignment for 4, 8 and 16 actors is tested in
"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import ray
import typer

from benchmarks import pairs as p
from fedray.cluster.object_states import assign_longest_first
from fedray.cluster.ray_backend import RayBackend
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.server.simulation import Simulation

ACTORS, EQUAL = 2, 8


def problem(partition: object, cohort: int, rounds: int, clients: int) -> Problem:
    """Return a problem of random images, 100 per client on average."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(0, 10, len(x))
    data = Dataset("random", x, y, x[:10], y[:10], 10)
    return Problem.build(
        RunConfig.parse(
            {
                "data": "digits",
                "partition": partition,
                "clients": {"total": clients, "per_round": cohort},
                "model": "lenet",
                "algorithm": "fedavg",
                "evaluation": {"every": rounds, "last": 1},
                "training": {"rounds": rounds, "local_epochs": 1, "batch_size": 10},
                "runtime": {"actors": ACTORS},
            }
        ),
        data,
    )


def main(pairs: Annotated[int, typer.Option(min=1)] = 20, out: Path | None = None) -> None:
    """Print the ratio."""
    with p.report("load", out) as told:
        ray.init(
            "local",
            num_cpus=2 * ACTORS,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            logging_level="ERROR",
        )
        unequal = problem({"name": "dirichlet", "alpha": 0.1, "min_size": 0}, 10, pairs + 2, 100)
        equal = problem("iid", EQUAL, pairs + 2, 100)
        backends = [RayBackend(Runtime(actors=ACTORS)) for _ in range(2)]
        runs = [Simulation(made, backend) for made, backend in zip((unequal, equal), backends, strict=True)]
        sizes = unequal.shards.sizes
        seconds: tuple[list[float], list[float]] = ([], [])
        bounds: list[float] = []
        for t in range(pairs + 1):
            cohort = runs[0].draw_cohort(t)
            held = [int(n) for n in sizes[cohort]]
            share = max(sum(held[k] for k in part) for part in assign_longest_first(held, ACTORS))
            for which in (0, 1) if t % 2 == 0 else (1, 0):
                began = time.perf_counter()
                runs[which].step()
                seconds[which].append(time.perf_counter() - began)
            bounds.append(share / (EQUAL / ACTORS * 100))
        measured, expected = seconds[0][1:], [b * s for b, s in zip(bounds, seconds[1], strict=True)][1:]
        told.add("round of Dirichlet(0.1) / longest-first bound", p.ratio(measured, expected), "<= 1.1")
        for backend in backends:
            backend.close()


if __name__ == "__main__":
    typer.run(main)
