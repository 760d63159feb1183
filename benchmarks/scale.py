"""A round with a million clients in the index against one with a thousand; 100 train in both, as in w0.

python -m benchmarks.scale          # 30 pairs, under a minute
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import pairs as p
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.partitions.held_out import Split
from fedray.partitions.shards import Shards

SAMPLES, POOL = 20, 20_000


def simulation(clients: int, rounds: int, algorithm: str) -> Simulation:
    """Return a simulation with clients of 20 samples each, from a pool that all share."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((POOL, 64), dtype=np.float32), rng.integers(0, 10, POOL)
    shards = Shards(rng.integers(0, POOL, clients * SAMPLES), np.arange(clients + 1) * SAMPLES)
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "natural",
            "clients": {"total": clients, "per_round": 100},
            "model": {"name": "mlp", "hidden": [32]},
            "algorithm": algorithm,
            "evaluation": {"every": rounds, "last": 1},
            "training": {"rounds": rounds, "local_epochs": 1, "batch_size": 20, "aggregation": "samples"},
        }
    )
    return Simulation(Problem(config, Dataset("random", x, y, x[:10], y[:10], 10), Split(shards)), InlineBackend())


def main(pairs: Annotated[int, typer.Option(min=1)] = 30, out: Path | None = None) -> None:
    """Print the ratios; the state is copied after each round, as a run does."""
    with p.report("scale", out) as told:
        for algorithm in ("fedavg", "fedtoga"):
            many, few = (simulation(clients, pairs + 4, algorithm) for clients in (1_000_000, 1_000))
            measured = p.paired(lambda s=many: (s.step(), s.state), lambda s=few: (s.step(), s.state), pairs)
            told.add(f"round with 1,000,000 clients / 1,000, {algorithm}", measured, "<= 1.1")


if __name__ == "__main__":
    typer.run(main)
