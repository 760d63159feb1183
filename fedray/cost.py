"""What a method costs, measured: a few rounds of the real engine, looking at what is really sent and kept.

Everything is in multiples of the model (P float32 numbers, 4 P bytes), per participant and round. A tensor that is sent
under two names is sent once; single numbers and BatchNorm's running statistics (which every method sends) are free.
FedTOGA's Table 4 counts otherwise: uplink alone as communication, and as storage the client's vectors plus its model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.backend.inline import InlineBackend
from fedray.client import Broadcast, Job
from fedray.config import RunConfig
from fedray.data.dataset import Dataset
from fedray.data.shards import Shards
from fedray.local import train_client
from fedray.problem import Problem
from fedray.simulation import Simulation
from fedray.worker import Partial


@dataclass(frozen=True)
class Cost:
    """Multiples of the model, except for the last three.

    down, up: sent to and by each participant in a round. client: kept by a client between rounds. server: kept by the
    server beside x. gradients: backward passes per local step. predictions: forward passes without gradient per local
    step. full_gradients: passes over the whole shard per round.
    """

    down: float
    up: float
    client: float
    server: float
    gradients: float
    predictions: float = 0.0
    full_gradients: float = 0.0

    def __str__(self) -> str:
        """One line; less than a hundredth of a model counts as 0."""
        return (f"down {self.down:.2g}, up {self.up:.2g}, client {round(self.client, 2):g}, "
                f"server {round(self.server, 2):g}; gradients per step {self.gradients:g}")


class _Meter(InlineBackend):
    """Trains as the inline backend does, and weighs the last round's first client."""

    def train(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Partial:
        worker, config = self._worker, self._worker.problem.config
        c, uploads = train_client(config.algorithm, worker.network, worker.population, worker.problem.shards[0],
                                  config.training, broadcast, jobs[0])
        size, shared = c.layout.size, worker.network.index(config.algorithm.shares)
        self.down = _numbers([broadcast.theta if len(shared) == size else broadcast.theta[shared],
                              *broadcast.message.values()]) / size
        self.up = _numbers(sent.vector for name, sent in uploads.items() if name != "buffers") / size
        self.client = _numbers(c.state.values()) / size
        self.gradients, self.predictions = c.passes["gradients"] / c.steps, c.passes["predictions"] / c.steps
        self.full_gradients = c.passes["full_gradients"]
        return super().train(broadcast, jobs)


def _numbers(tensors: Iterable[Tensor]) -> int:
    """Entries of the different tensors; single numbers count nothing."""
    return sum({id(tensor): tensor.numel() for tensor in tensors if tensor.numel() > 1}.values())


def cost(algorithm: Algorithm, model: object = None, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Cost:
    """Measure an algorithm on a model (a configuration's `model` section; default: a small MLP) and random inputs.

    Three rounds of two clients with three local steps, so that states which start empty are filled.
    Raises UserError where the model cannot serve the method.
    """
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, *shape)).astype(np.float32), np.arange(12) % classes
    config = RunConfig.parse({
        "data": "digits", "partition": "iid", "clients": {"total": 2, "per_round": 2},
        "model": model or {"name": "mlp", "hidden": [50]},
        "algorithm": algorithm, "training": {"rounds": 4, "batch_size": 2, "local_epochs": 1, "lr": 0.01},
        "runtime": {"backend": "inline"}})
    data = Dataset("random", x, y, x, y, classes)
    meter, threads = _Meter(), torch.get_num_threads()
    try:
        simulation = Simulation(Problem(config, data, Shards(np.arange(12), np.array([0, 6, 12]))), meter)
        for _ in range(3):
            simulation.step()
    finally:
        torch.set_num_threads(threads)  # a run pins its own number
    server = _numbers(simulation.state().server.values()) / simulation.layout.size
    return Cost(meter.down, meter.up, meter.client, server, meter.gradients, meter.predictions, meter.full_gradients)
