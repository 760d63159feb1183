"""Local training: batches, learning rate, clipping, weight decay, momentum; and personal models. No Ray in here."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, ParameterGroup, PerClient, Sum
from fedray.client import LocalClient, Population
from fedray.common.rng import generator, torch_draws
from fedray.common.vectors import Vectors
from fedray.config import Training
from fedray.engine.messages import Broadcast, ClientTask
from fedray.models.network import Network

OWN, OWN_BUFFERS = "own", "own_buffers"
"""Names in a client's state of the parameters and running statistics that it keeps (`Algorithm.keeps`)."""


def batches(
    training: Training, samples: int, seed: int, round: int, client: int, purpose: str = ""
) -> Iterator[np.ndarray]:
    """Positions in the client's shard, one int64 array per step; the last batch of an epoch may be smaller."""
    rng = generator(seed, f"{purpose}shuffle", round, client)
    size = samples if training.batch_size == "full" else training.batch_size
    left = training.steps(samples)
    while left > 0:
        order = rng.permutation(samples) if training.shuffle else np.arange(samples)
        for start in range(0, samples, size):
            if left == 0:
                return
            left -= 1
            yield order[start : start + size]


def start_client(
    algorithm: Algorithm,
    network: Network,
    population: Population,
    indices: np.ndarray,
    training: Training,
    broadcast: Broadcast,
    task: ClientTask,
) -> LocalClient:
    """A client before its first step: at x, but for what it keeps of its own; the network holds its buffers."""
    state = Vectors(task.state or algorithm.client_state(network.initial))
    theta, buffers = broadcast.theta, broadcast.buffers
    if algorithm.keeps != "none":
        own = network.index(algorithm.keeps)
        theta = theta.index_copy(0, own, state.get(OWN, network.initial[own]))
    if algorithm.keeps == "all":
        buffers = state.get(OWN_BUFFERS, buffers)
    network.reset(buffers)
    return LocalClient(
        task.client,
        population,
        network,
        indices,
        theta,
        broadcast.message,
        state,
        broadcast.round,
        training.steps(len(indices)),
        training.steps_per_epoch(len(indices)),
        broadcast.lr,
        training.momentum,
        task.weight,
    )


def descend(
    c: LocalClient,
    training: Training,
    purpose: str,
    direction: Callable[[Client], Tensor],
    trained_part: Callable[[Client], ParameterGroup],
    decoupled_weight: float = 0.0,
) -> None:
    """The canonical step on direction q, K_i times: clip, q <- q + wd y, v <- m v + q, y <- y - η_t v.

    purpose: keys the draws. trained_part: the part to which each step is confined.
    decoupled_weight: λ of a term λ y that is not clipped.
    """
    seed, velocity = c.population.seed, None
    augment = generator(seed, f"{purpose}augment", c.round, c.id) if c.population.samples.augment else None
    for k, positions in enumerate(batches(training, c.samples, seed, c.round, c.id, purpose)):
        c.start_step(k, *c.population.samples.batch(c.indices[positions], augment))
        q, part = direction(c), trained_part(c)
        mask = None if part == "all" and not c.layout.frozen else c.network.moving(part)
        moving = c.theta if mask is None else c.theta * mask
        q = q if mask is None else q * mask
        if training.clip_norm is not None:
            q = (
                clipped(q - decoupled_weight * moving, training.clip_norm) + decoupled_weight * moving
                if decoupled_weight
                else clipped(q, training.clip_norm)
            )
        if training.weight_decay:
            q = q + training.weight_decay * moving
        if training.momentum:
            velocity = q if velocity is None else training.momentum * velocity + q
            q = velocity if mask is None else velocity * mask
        c.theta = torch.sub(c.theta, q, alpha=c.lr)  # one pass over memory where θ - η q takes two


def clipped(q: Tensor, norm: float) -> Tensor:
    """q, scaled down to `norm` where it is longer."""
    result: Tensor = q * (norm / torch.linalg.vector_norm(q)).clamp(max=1.0)
    return result


def train_client(
    algorithm: Algorithm,
    network: Network,
    population: Population,
    indices: np.ndarray,
    training: Training,
    broadcast: Broadcast,
    task: ClientTask,
) -> tuple[LocalClient, dict[str, Sum | PerClient]]:
    """All local steps of one client.

    Returns the client (its new state, its update) and every upload, `update` and `buffers` included. The update holds
    the shared parameters alone, in theta's order.
    """
    c = start_client(algorithm, network, population, indices, training, broadcast, task)
    with torch_draws(c.population.seed, "torch", c.round, c.id, c.theta.device):  # dropout
        algorithm.begin(c)
        descend(
            c,
            training,
            "",
            algorithm.direction,
            algorithm.trained_part,
            algorithm.decoupled_weight(c) if training.clip_scope == "code" else 0.0,
        )
        uploads: dict[str, Sum | PerClient] = dict(algorithm.upload(c))
    if reserved := uploads.keys() & {"update", "buffers", "train_loss", "sums"}:
        raise ValueError(f"{algorithm.name}: an upload cannot be named {reserved.pop()!r}")
    if algorithm.keeps != "none":
        c.state[OWN] = c.theta[network.index(algorithm.keeps)]
    if algorithm.shares != "none":
        update = c.update if algorithm.shares == "all" else c.update[network.index(algorithm.shares)]
        uploads["update"] = Sum(update, task.weight)
    if network.buffers.numel():
        if algorithm.keeps == "all":
            c.state[OWN_BUFFERS] = network.buffers.clone()
        else:
            uploads["buffers"] = Sum(network.buffers - broadcast.buffers, task.weight)
    return c, uploads


def personal_client(
    algorithm: Algorithm,
    network: Network,
    population: Population,
    indices: np.ndarray,
    training: Training,
    broadcast: Broadcast,
    task: ClientTask,
    epochs: int,
) -> LocalClient:
    """A client with its personal model at `theta` (`Algorithm.personal`), prepared; the network holds its buffers.

    epochs: of fine-tuning, for methods that fine-tune. Nothing of the run changes.
    """
    tuning = training.model_copy(update={"local_epochs": epochs, "local_steps": None})
    tuned = algorithm.personal == "tuned"
    c = start_client(algorithm, network, population, indices, tuning if tuned else training, broadcast, task)
    with torch_draws(c.population.seed, "personal torch", c.round, c.id, c.theta.device):
        if tuned and epochs:
            descend(c, tuning, "personal ", algorithm.adapt, lambda c: algorithm.finetuned_part)
        elif algorithm.personal == "trained":
            algorithm.begin(c)
            descend(
                c,
                training,
                "personal ",
                algorithm.direction,
                algorithm.trained_part,
                algorithm.decoupled_weight(c) if training.clip_scope == "code" else 0.0,
            )
        algorithm.prepare(c)
    return c
