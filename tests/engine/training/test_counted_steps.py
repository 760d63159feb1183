"""K as methods divide by it: `training.nominal_steps`. Two epochs of batches of 16, 20 samples for client 0."""

from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig
from fedray.engine.messages import ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards
from tests import small
from tests.algorithms.digits import problem


def counted(client: int, **training: Any) -> float:
    """Return K of a client in the first round."""
    built = problem("scaffold", **training)
    broadcast = Simulation(built, InlineBackend())._make_broadcast(
        Simulation(built, InlineBackend())._make_server(0, 3)
    )
    return Worker(built).trainer.start(broadcast, ClientTask(client, 1.0, Vectors())).counted_steps


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, 2 * 4),  # 50 samples: 3 whole batches and one of 2
        ({"nominal_steps": "own"}, 2 * 50 / 16),
        ({"nominal_steps": "client0"}, 2 * 20 / 16),
        ({"nominal_steps": "client0", "local_epochs": None, "local_steps": 7}, 7),
        ({"nominal_steps": "client0", "batch_size": "full"}, 2),
    ],
)
def test_of_client_2_with_50_samples(words: dict[str, Any], expected: float) -> None:
    assert counted(2, **words) == expected


class Rest(Partition):
    """Everything for client 1."""

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_owner(np.ones(len(labels), dtype=np.int64), clients)


def test_a_client_0_without_samples_is_refused() -> None:
    with pytest.raises(UserError, match=r"^training\.nominal_steps: found client0, and client 0 has no samples$"):
        small.problem(
            "scaffold",
            (2, 1),
            partition={"name": "tests.engine.training.test_counted_steps:Rest", "min_size": 0},
            training={"nominal_steps": "client0"},
        )


def test_a_configuration_that_is_written_out_is_read_again() -> None:
    for word in (False, "own", "client0"):
        config = problem("scaffold", nominal_steps=word).config
        assert RunConfig.parse(config.resolve()).training.nominal_steps == word
