"""How far local models forget the global one's view, and whether their updates are orthogonal to it (FedSOL, figure 3).

The proximal loss is FedSOL's for every method, so that methods compare: L_p(y) = KL(softmax(z_x/τ) || softmax(z_y/τ)),
z_x and z_y the generic logits of the model that the client received and of its local one, τ the method's own where it
has this loss, else 3. The paper does not say where in a round its figure measures; this is our reading.
"""

import copy
from collections import Counter
from typing import Literal

import torch
from torch import Tensor

from fedray.algorithms.auxiliary import FedAvgKL, kl
from fedray.algorithms.base import Algorithm, Forward
from fedray.algorithms.fedsol import WithProximalLoss
from fedray.client import LocalClient
from fedray.common.rng import torch_draws
from fedray.common.vectors import Vectors

NOTHING = 1e-8
"""A gradient shorter than this has no direction (D-34)."""


def temperature(algorithm: Algorithm) -> float:
    """τ."""
    loss = algorithm.proximal if isinstance(algorithm, WithProximalLoss) else algorithm
    return (loss if isinstance(loss, FedAvgKL) else FedAvgKL()).tau


def proximal(
    c: LocalClient, algorithm: Algorithm, received: Tensor, batch_size: int | Literal["full"]
) -> dict[str, float]:
    """`proximal_loss`, `proximal_cosine` of a client after its local training, at y = y_K. Changes nothing.

    Args:
        c: the client.
        algorithm: the method.
        received: running statistics (B,) that the client began with.
        batch_size: of the local training.

    Returns:
        `proximal_loss`: mean of L_p over the client's own training samples, not augmented, both models in evaluation
        mode, each with its own running statistics. `proximal_cosine`: between q, the direction that the method would
        descend next (before clipping and weight decay, within the part of the model that it moves), and ∇L_p, over all
        parameters, both on one batch as in training: mean over the batches of one pass through the samples in order
        (the first K_i, if that is fewer). Absent where one of the two is always 0.
    """
    buffers, tau = c.network.buffers.clone(), temperature(algorithm)
    twin = _twin(c)
    try:
        c.network.buffers.copy_(received)
        target = algorithm.logits(twin.shard(c.theta_0)[0]).double()
        c.network.buffers.copy_(buffers)
        loss = kl(target / tau, algorithm.logits(twin.shard(c.theta)[0]).double() / tau)
        with torch_draws(c.population.seed, "probes", c.round, c.id, c.theta.device):
            cosines = _cosines(twin, algorithm, tau, c.samples if batch_size == "full" else batch_size)
    finally:
        c.network.buffers.copy_(buffers)
    found = {"proximal_loss": float(loss)}
    return found | ({"proximal_cosine": sum(cosines) / len(cosines)} if cosines else {})


def _cosines(twin: LocalClient, algorithm: Algorithm, tau: float, size: int) -> list[float]:
    buffers, cosines = twin.network.buffers.clone(), []
    for k in range(min(twin.steps, twin.per_epoch)):
        twin.network.buffers.copy_(buffers)
        twin.start_step(twin.steps - 1, *twin.population.samples.batch(twin.indices[k * size : (k + 1) * size]))
        target = algorithm.logits(twin.predict(twin.theta_0)) / tau

        def loss(forward: Forward, target: Tensor = target) -> Tensor:
            return kl(target, algorithm.logits(forward(twin.x)) / tau)

        g_p, q = twin.grad(twin.theta, loss), algorithm.direction(twin)
        if (part := algorithm.trained_part(twin)) != "all":
            q = q * twin.network.moving(part)
        lengths = [float(torch.linalg.vector_norm(v)) for v in (q, g_p)]
        if min(lengths) >= NOTHING:
            cosines.append(float(q.double() @ g_p.double()) / (lengths[0] * lengths[1]))
    return cosines


def _twin(c: LocalClient) -> LocalClient:
    """The client again, whose vectors and counts can be written to."""
    twin = copy.copy(c)
    twin.local, twin.state, twin.passes = Vectors(c.local), Vectors(c.state), Counter(c.passes)
    return twin
