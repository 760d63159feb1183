"""How far local models forget the global model's predictions, and the angle of their steps to ∇L_p (FedSOL, figure 3).

The proximal loss is FedSOL's for every method, to make methods comparable: L_p(y) = KL(softmax(z_x/τ) ||
softmax(z_y/τ)), z_x and z_y the generic logits of the model that the client received and of its local one, τ the
method's own if it has this loss, else 3.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.auxiliary import FedAvgKL, kl
from fedray.algorithms.base import Algorithm, Forward
from fedray.algorithms.fedsol import WithProximalLoss
from fedray.client import LocalClient

NOTHING = 1e-8
"""A gradient shorter than this has no direction (D-34)."""


def get_temperature(algorithm: Algorithm) -> float:
    """Return τ: the method's own if it has this loss, else 3."""
    loss = algorithm.proximal if isinstance(algorithm, WithProximalLoss) else algorithm
    return (loss if isinstance(loss, FedAvgKL) else FedAvgKL()).tau


def measure_forgetting(c: LocalClient, algorithm: Algorithm) -> dict[str, float]:
    """Return `proximal_loss` of a client after its local training, at y = y_K. Changes nothing.

    The mean of L_p over the client's own training samples, not augmented, both models in evaluation mode, each with its
    own running statistics.
    """
    tau, twin = get_temperature(algorithm), c.copy()
    with c.network.keep_buffers():
        target = algorithm.logits(twin.shard(c.theta_0)[0]).double()
        return {"proximal_loss": float(kl(target / tau, algorithm.logits(twin.shard(c.theta)[0]).double() / tau))}


def measure_cosine(c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
    """Return `proximal_cosine`, of a local step's direction and ∇L_p, and its size. Changes nothing.

    q is the direction at y on the step's batch, before clipping and weight decay, 0 on what it does not move. The
    cosine is over all parameters, in training mode. Nothing if one of them is 0, and at the first step, where y = x and
    ∇L_p has no direction.
    """
    if c.step == 0:
        return {}
    with c.network.keep_buffers():
        _, g_p = _compute_proximal_gradient(c.copy(), algorithm, get_temperature(algorithm))
    lengths = [float(torch.linalg.vector_norm(v)) for v in (q, g_p)]
    if min(lengths) < NOTHING:
        return {}
    cosine = float(q.double() @ g_p.double()) / (lengths[0] * lengths[1])
    return {"proximal_cosine": cosine, "proximal_cosine_size": abs(cosine)}


def _compute_proximal_gradient(twin: LocalClient, algorithm: Algorithm, tau: float) -> tuple[Tensor, Tensor]:
    """Return the logits of x over τ and ∇L_p at y, both on the batch."""
    target = algorithm.logits(twin.predict(twin.theta_0)) / tau

    def loss(forward: Forward) -> Tensor:
        return kl(target, algorithm.logits(forward(twin.x)) / tau)

    return target, twin.grad(twin.theta, loss)


def _take_directions(twin: LocalClient, algorithm: Algorithm, tau: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield logits of x over τ, ∇L_p and q at y for each batch of one pass through the shard in order (K_i at most)."""
    buffers, size = twin.network.buffers.clone(), twin.batch_size
    for k in range(min(twin.steps, twin.per_epoch)):
        twin.network.buffers.copy_(buffers)
        twin.start_step(twin.steps - 1, *twin.population.samples.make_batch(twin.indices[k * size : (k + 1) * size]))
        target, g_p = _compute_proximal_gradient(twin, algorithm, tau)
        q = algorithm.direction(twin)
        if (part := algorithm.trained_part(twin)) != "all":
            q = q * twin.network.mask(part)
        yield target, g_p, q


def measure_step(c: LocalClient, algorithm: Algorithm) -> dict[str, float]:
    """Return how one more step at y = y_K would change the proximal loss L_p and the local loss L. Changes nothing.

    Means over the batches of one pass through the samples in order (the first K_i, if that is fewer), of losses of the
    batch in evaluation mode: `proximal_change` is L_p(y - η q) - L_p(y), q as in `measure_cosine` and η the round's;
    `proximal_change_linear` its first-order part -η <∇L_p, q>; `local_change` the same of the cross-entropy.
    `..._plain`: along the plain gradient of the cross-entropy on the part that the method moves.
    """
    buffers, tau = c.network.buffers.clone(), get_temperature(algorithm)
    twin, found = (c.stepped or c).copy(), dict[str, list[float]]()  # `upload` has changed c
    with c.network.keep_buffers(), c.population.key_draws("probes", c._round, c.id, c.theta.device):
        for target, g_p, q in _take_directions(twin, algorithm, tau):
            plain = twin.grad(twin.theta) * twin.network.mask(algorithm.trained_part(twin))
            twin.network.buffers.copy_(buffers)
            before = _compute_losses(twin, algorithm, twin.theta, target, tau)
            for name, direction in (("", q), ("_plain", plain)):
                after = _compute_losses(twin, algorithm, twin.theta - c.lr * direction, target, tau)
                found.setdefault(f"proximal_change{name}", []).append(after[0] - before[0])
                found.setdefault(f"local_change{name}", []).append(after[1] - before[1])
            linear = -c.lr * float(g_p.double() @ q.double())
            found.setdefault("proximal_change_linear", []).append(linear)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _compute_losses(
    twin: LocalClient, algorithm: Algorithm, theta: Tensor, target: Tensor, tau: float
) -> tuple[float, float]:
    """Return L_p and cross-entropy of the batch at theta, in evaluation mode."""
    z = algorithm.logits(twin.predict(theta)).double()
    return float(kl(target.double(), z / tau)), float(cross_entropy(z, twin.y))
