"""The bytes sent to the driver do not grow with the cohort; work is assigned within the longest-first bound."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedray.cluster.ray_backend import ClientActor, RayBackend
from fedray.config import Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.server.simulation import Simulation
from tests import small

CLIENTS = 100


class Weighing(RayBackend):
    """Two actors in this process: what each call sends and answers is pickled, as for Ray, and weighed."""

    def open(self, problem: Problem) -> None:
        self._steps = [problem.config.training.count_steps(int(n)) for n in problem.split.train.sizes]
        self._workers = [ClientActor() for _ in range(2)]
        for actor in self._workers:
            actor.open(problem.config.pack(), problem.data, problem.split)
        self.received: list[int] = []
        self._homes, self._stay, self._apart = {}, False, False

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers = [
            pickle.dumps(getattr(actor, method)(*given), 5)
            for actor, given in zip(self._workers, arguments, strict=True)
        ]
        self.received.append(sum(map(len, answers)))
        return [pickle.loads(answer) for answer in answers]  # noqa: S301

    def _make_calls(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Any:
        sent = vars(broadcast) | {
            "theta": broadcast.theta.numpy(),
            "buffers": broadcast.buffers.numpy(),
            "message": {name: v.numpy() for name, v in broadcast.message.items()},
        }
        return [(sent, [(tasks[k].client, tasks[k].weight, {}) for k in range(slot, len(tasks), 2)]) for slot in (0, 1)]


def received(algorithm: str, cohort: int) -> int:
    """Bytes into the driver in one round of this cohort."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5 * CLIENTS, 64)).astype(np.float32), np.arange(5 * CLIENTS) % 10
    data = Dataset("random", x, y, x[:10], y[:10], 10, client_train=np.repeat(np.arange(CLIENTS), 5))
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 5}
    built = small.problem(
        algorithm, (CLIENTS, cohort), 20, "natural", arrays=data, training=training, evaluation={"every": 2, "last": 1}
    )
    backend = Weighing(Runtime(actors=2))
    Simulation(built, backend).step()
    return backend.received[0]


@pytest.mark.parametrize(("algorithm", "kept"), [("fedavg", 0), ("fedcm", 0), ("fedtoga", 1)])
def test_bytes_into_the_driver_do_not_grow_with_the_cohort(algorithm: str, kept: int) -> None:
    """Ten times the clients: none of their updates arrives, only what each must keep (`kept` vectors) and its name.

    P = 64 x 20 + 20 + 20 x 10 + 10 = 1,510 numbers: an update is 6,040 bytes, the int64 sum of an actor 12,080. A name
    is below 20 bytes, a kept vector's array below 200 in addition to its numbers.
    """
    few, many = received(algorithm, 10), received(algorithm, 100)
    assert few > 2 * 12_080
    assert many - few < 90 * (20 + kept * (6_040 + 200))
