"""Local training: batches, learning rate, clipping, weight decay, momentum; and personal models. No Ray in here."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, ParameterGroup, PerClient, Sum
from fedray.client import LocalClient, Population
from fedray.common.descent import Descent, Optimiser
from fedray.common.errors import UserError
from fedray.common.rng import generator, torch_draws
from fedray.common.vectors import Vectors
from fedray.engine.guard import refuse_changed, unchanged
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.state import loaded
from fedray.models.network import Network
from fedray.sections import Training

OWN, OWN_BUFFERS = "own", "own_buffers"
"""Names in a client's state of the parameters and running statistics that it keeps (`Algorithm.keeps`)."""


def batches(
    training: Training,
    samples: int,
    seed: int,
    round: int,
    client: int,
    purpose: str = "",
    steps: int | None = None,
) -> Iterator[np.ndarray]:
    """Positions in the client's shard, one int64 array per step; an epoch's last batch may be smaller, or left out.

    Args:
        training: batch size, epochs or steps.
        samples: in the client's shard.
        seed: of the run. With round, client and purpose it keys the order.
        round: t, from 0.
        client: its id.
        purpose: of the draw; empty for ordinary local training.
        steps: how many; default the configuration's.
    """
    rng = generator(seed, f"{purpose}shuffle", round, client)
    size = samples if training.batch_size == "full" else training.batch_size
    left = training.steps(samples) if steps is None else steps
    while left > 0:
        order = rng.permutation(samples) if training.shuffle else np.arange(samples)
        for start in range(0, samples, size):
            if left == 0:
                return
            if training.last_batch == "drop" and 0 < start > samples - size:
                break
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
    kept = loaded(task.state)
    state = Vectors(kept or algorithm.client_state(network.initial))
    theta, buffers = broadcast.theta, broadcast.buffers
    if algorithm.keeps != "none":
        own, own_buffers = network.index(algorithm.keeps), network.buffer_index(algorithm.keeps)
        newcomers = algorithm.newcomers_own(network.initial[own], broadcast.message)
        theta = theta.index_copy(0, own, state.get(OWN, newcomers))
        buffers = buffers.index_copy(0, own_buffers, state.get(OWN_BUFFERS, buffers[own_buffers]))
    network.reset(buffers)
    return LocalClient(
        task.client,
        population,
        network,
        indices,
        theta,
        Vectors(broadcast.message),
        state,
        broadcast.round,
        training.steps(len(indices)) if broadcast.steps is None else broadcast.steps,
        training.steps_per_epoch(len(indices)),
        broadcast.lr,
        training.momentum,
        task.weight,
        not kept,
        len(indices) if training.batch_size == "full" else min(training.batch_size, len(indices)),
        Optimiser(training.clip_norm, training.weight_decay, training.momentum, decayed(training, network)),
        training.counted_steps(len(indices)) if broadcast.steps is None else broadcast.steps,
        training.lr,
        algorithm.shares,
    )


def decayed(training: Training, network: Network) -> Tensor | None:
    """float32 `(P,)`: 1 on the parameters with weight decay; None for all."""
    if training.weight_decay_on == "all":
        return None
    return network.layout.mask(lambda name: name.rpartition(".")[2] != "bias").to(network.initial.device)


def descend(
    c: LocalClient,
    training: Training,
    purpose: str,
    algorithm: Algorithm,
    direction: Callable[[Client], Tensor],
    trained_part: Callable[[Client], ParameterGroup],
    decoupled_weight: float = 0.0,
    rate: Callable[[Client], float] = lambda c: c.lr,
) -> None:
    """The canonical step on direction q, K_i times: clip, q <- q + wd y, v <- m v + q, y <- y - η_k v.

    Args:
        purpose: Keys the draws.
        algorithm: Whose class is named where it writes into theta.
        trained_part: The part to which each step is confined.
        decoupled_weight: λ of a term λ y that is not clipped.
        rate: η_k.
    """
    seed, descent = c.population.seed, Descent(c.optimiser)
    augment = generator(seed, f"{purpose}augment", c.round, c.id) if c.population.samples.augment else None
    c.step_rate = rate
    for k, positions in enumerate(batches(training, c.samples, seed, c.round, c.id, purpose, c.steps)):
        c.start_step(k, *c.population.samples.batch(c.indices[positions], augment))
        y, version = c.theta, c.theta._version
        q, part = direction(c), trained_part(c)
        refuse_changed(algorithm, "c.theta", y, version)
        mask = None if part == "all" and not c.layout.frozen else c.network.moving(part)
        c.theta = descent.step(c.theta, q, c.rate, mask, decoupled_weight)


def train(c: LocalClient, algorithm: Algorithm, training: Training, purpose: str = "") -> None:
    """`begin` and all local steps."""
    algorithm.begin(c)
    descend(
        c,
        training,
        purpose,
        algorithm,
        algorithm.direction,
        algorithm.trained_part,
        algorithm.decoupled_weight(c) if training.clip_scope == "code" else 0.0,
        lambda c: algorithm.rate(c) * training.lr_decay_within**c.epoch,
    )


def _given(c: LocalClient) -> dict[str, Tensor]:
    """What a client was given, by the names that a method has for it: none of it may be changed in place."""
    given = {"c.theta_0": c.theta_0, "the initial parameters": c.network.initial}
    given |= {f"c.message.{name}": v for name, v in c.message.items()}
    return given | {f"c.state.{name}": v for name, v in c.state.items()}


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

    Returns:
        The client (its new state, its update) and every upload, `update` and `buffers` included. The update holds the
        shared parameters alone, in theta's order; `buffers` the running statistics that clients do not keep.
    """
    c = start_client(algorithm, network, population, indices, training, broadcast, task)
    drawn = torch_draws(c.population.seed, "torch", c.round, c.id, c.theta.device)  # dropout
    with drawn, unchanged(algorithm, _given(c)):
        train(c, algorithm, training)
        uploads: dict[str, Sum | PerClient] = dict(algorithm.upload(c))
    if reserved := uploads.keys() & {"update", "buffers", "train_loss", "squares", "sums"}:
        raise UserError(
            f"algorithm: {algorithm.name}.upload gives an upload {min(reserved)!r}, fedray's own; rename it"
        )
    for name, upload in uploads.items():
        if not isinstance(upload, Sum | PerClient):
            raise UserError(
                f"algorithm: {algorithm.name}.upload gives {name} as a {type(upload).__name__}; Sum(vector, weight) or "
                "PerClient(vector) is required"
            )
    own, own_buffers = network.index(algorithm.keeps), network.buffer_index(algorithm.keeps)
    exchanged = network.buffers_beside(algorithm.keeps)
    if len(own):
        c.state[OWN] = c.theta[own]
    if "second" in vars(c):
        c.state |= c.second.state
    if algorithm.shares != "none":
        uploads["update"] = Sum(c.shared_update, task.weight)
        if broadcast.squares:
            uploads["squares"] = Sum(c.shared_update.square().sum(), task.weight)
    if len(own_buffers):
        c.state[OWN_BUFFERS] = network.buffers[own_buffers]
    if len(exchanged):
        uploads["buffers"] = Sum((network.buffers - broadcast.buffers)[exchanged], task.weight)
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

    Nothing of the run changes.

    Args:
        epochs: of fine-tuning, for methods that fine-tune.
    """
    tuning = training.model_copy(update={"local_epochs": epochs, "local_steps": None})
    if algorithm.finetunes_plainly:
        tuning = tuning.model_copy(update={"clip_norm": None, "weight_decay": 0.0, "momentum": 0.0})
    tuned = algorithm.personal == "tuned"
    if tuned:
        training, broadcast = tuning, replace(broadcast, steps=None)
    c = start_client(algorithm, network, population, indices, training, broadcast, task)
    drawn = torch_draws(c.population.seed, "personal torch", c.round, c.id, c.theta.device)
    with drawn, unchanged(algorithm, _given(c)):
        if tuned and epochs:
            part, rate = algorithm.finetuned_part, algorithm.finetuning_rate
            descend(c, tuning, "personal ", algorithm, algorithm.adapt, lambda c: part, rate=rate)
        elif algorithm.personal == "trained":
            train(c, algorithm, training, "personal ")
        algorithm.prepare(c)
    return c
