"""How long the index of a million clients with 20 samples each takes, and how much memory: run it by hand.

    python tests/benchmarks/partition_index.py [CLIENTS]

Prints one line per partitioner: seconds of CPU and of wall time, and the growth of the process's peak memory in bytes
per sample. Labels are synthetic; no images exist.
"""

import resource
import sys
import time

import numpy as np

from fedray.datasets.dataset import Dataset
from fedray.partitions import partition

CLASSES, SAMPLES = 10, 20


def main(clients: int) -> None:
    """Index `clients` clients with every partitioner."""
    labels = np.random.default_rng(0).integers(0, CLASSES, clients * SAMPLES)
    images = np.broadcast_to(np.zeros((1, 1), np.float32), (len(labels), 1))
    data = Dataset(
        "synthetic",
        images,
        labels,
        images[:1],
        labels[:1],
        CLASSES,
        client_train=np.repeat(np.arange(clients), SAMPLES),
    )
    options = [
        {"name": "iid"},
        {"name": "sharding", "shards": 2},
        {"name": "natural"},
        {"name": "dirichlet", "alpha": 0.3, "min_size": 0},
        {"name": "pathological", "classes": 3},
        {"name": "dirichlet_client", "alpha": 0.3},
    ]
    for chosen in options:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, wall = time.process_time(), time.perf_counter()
        shards = partition(chosen).split(data, clients, 0)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(labels)
        print(f"{chosen['name']:<17} {len(shards):,} clients: {cpu:5.1f} s CPU, {wall:5.1f} s, +{grown:.0f} B/sample")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
