"""The driver's share of a round with uploads of ResNet-18's size (44 MB): at most 5 %.

    python -m benchmarks.traffic        # 20 rounds, about 6 minutes

Cohort 10 with 100 images each, one epoch, on 2 actors. The driver's share is the time of a round in which this
process does not wait for actors. tests/cluster/test_traffic.py tests, without measuring, that the bytes sent to the
driver do not grow with the cohort.
"""

import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import ray
import typer

from benchmarks import pairs as p
from fedray.cluster.ray_backend import RayBackend
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.server.simulation import Simulation

CLIENTS, SAMPLES = 20, 100


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 20, cohort: int = 10, actors: int = 2, out: Path | None = None
) -> None:
    """Print the share."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * SAMPLES, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(0, 10, len(x))
    data = Dataset("random", x, y, x[:10], y[:10], 10, client_train=np.repeat(np.arange(CLIENTS), SAMPLES))
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "natural",
            "clients": {"total": CLIENTS, "per_round": cohort},
            "model": "resnet18",
            "algorithm": "fedavg",
            "training": {"rounds": rounds + 2, "local_epochs": 1, "batch_size": 50},
            "evaluation": {"every": rounds + 2, "last": 1},
            "runtime": {"actors": actors},
        }
    )
    with p.report("traffic", out) as told:
        ray.init(
            "local",
            num_cpus=actors,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            logging_level="ERROR",
        )
        backend = RayBackend(Runtime(actors=actors))
        waited = [0.0]
        get = ray.get

        def waiting(*arguments: Any, **options: Any) -> Any:
            """Call ray.get, without counting the wait for objects; fetching existing ones counts as the driver's."""
            began = time.perf_counter()
            references = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
            ray.wait(references, num_returns=len(references), fetch_local=False)
            waited[0] += time.perf_counter() - began
            return get(*arguments, **options)

        ray.get = waiting
        simulation = Simulation(Problem.build(config, data), backend)
        simulation.step()
        shares = []
        for _ in range(rounds):
            waited[0], began = 0.0, time.perf_counter()
            simulation.step()
            shares.append(1 - waited[0] / (time.perf_counter() - began))
        told.add(
            "driver's share of a round, %",
            round(100 * median(shares), 2),
            "<= 5",
            rounds=rounds,
            worst=round(100 * max(shares), 2),
            parameters=simulation.layout.size,
        )
        backend.close()


if __name__ == "__main__":
    typer.run(main)
