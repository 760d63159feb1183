"""A client as a method sees it, without a run around it."""

from typing import Any

import numpy as np

from fedray.client import LocalClient, Population
from fedray.common.vectors import Vectors
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.worker import Worker
from fedray.models.network import Network


def arguments(worker: Worker, broadcast: Broadcast, task: ClientTask, **other: Any) -> tuple[Any, ...]:
    """What `start_client`, `train_client` and `personal_client` take of a worker's run, in their order.

    Args:
        worker: Of the run.
        broadcast: What the client receives.
        task: The client.
        other: `algorithm`, `indices` or `training` instead of the run's.
    """
    config = worker.problem.config
    return (
        other.get("algorithm", config.algorithm),
        worker.network,
        worker.population,
        other["indices"] if "indices" in other else worker.problem.shards[task.client],
        other.get("training", config.training),
        broadcast,
        task,
    )


def before_its_step(network: Network, population: Population, indices: np.ndarray, client: int = 0) -> LocalClient:
    """A client that received the network's parameters for one step with η = 0.1; `start_step` hands it the batch."""
    return LocalClient(
        client,
        population,
        network,
        indices,
        network.theta.clone(),
        Vectors(),
        Vectors(),
        round=0,
        steps=1,
        per_epoch=1,
        lr=0.1,
        momentum=0.0,
        weight=1.0,
    )
