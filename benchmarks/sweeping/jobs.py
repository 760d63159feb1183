"""Jobs of a known length, chosen as `benchmarks.sweeping.jobs:Spins`."""

import time

from fedray.algorithms.base import Algorithm, Client


class Spins(Algorithm):
    """FedAvg whose every client keeps its core busy for `seconds`."""

    name = "spins"
    seconds: float = 0.1

    def begin(self, c: Client) -> None:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
