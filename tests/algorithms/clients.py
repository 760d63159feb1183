"""A client as a method sees it, without a run around it."""

import numpy as np

from fedray.client import LocalClient, Population
from fedray.common.vectors import Vectors
from fedray.models.network import Network


def before_its_step(network: Network, population: Population, indices: np.ndarray, client: int = 0) -> LocalClient:
    """A client that received the network's parameters for one step with η = 0.1; `start_step` hands it the batch."""
    return LocalClient(
        id=client,
        population=population,
        network=network,
        indices=indices,
        theta_0=network.theta.clone(),
        message=Vectors(),
        state=Vectors(),
        round=0,
        steps=1,
        per_epoch=1,
        lr=0.1,
        momentum=0.0,
        weight=1.0,
        counted_steps=1,
        first_lr=0.1,
        batch_size=1,
        first=True,
        samples=len(indices),
        total_samples=population.total_samples,
        total_clients=population.clients,
        layout=network.layout,
        input_shape=population.samples.input_shape,
    )
