"""One client's local training: batches, learning rate, clipping, weight decay, momentum. No Ray in here."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Forward, Loss, Part, Sum, Vectors
from fedray.config import Training
from fedray.data.batches import Samples
from fedray.models.flat import Layout, Network, Output
from fedray.rng import generator, key

FULL_GRADIENT_BATCH = 500


@dataclass(frozen=True)
class Broadcast:
    """What every client of a round receives. round: t from 0; lr: η_t; theta (P,), buffers (B,) float32."""

    round: int
    lr: float
    theta: Tensor
    buffers: Tensor
    message: Vectors
    cohort: int


@dataclass(frozen=True)
class Job:
    """One client's part of a round: its id, its weight π_i and what it kept (empty before its first activity)."""

    client: int
    weight: float
    state: Vectors


@dataclass
class LocalClient:
    """The view an algorithm has of a client (the contract is `fedray.algorithms.base.Client`)."""

    network: Network
    samples_of: Samples
    indices: np.ndarray
    theta_0: Tensor
    theta: Tensor
    message: Vectors
    state: Vectors
    steps: int
    lr: float
    momentum: float
    weight: float
    total_clients: int
    total_samples: int
    local: Vectors = field(default_factory=Vectors)
    step: int = 0
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    passes: Counter[str] = field(default_factory=Counter)
    """Calls of grad or grad_with (`gradients`), full_grad (`full_gradients`) and predict (`predictions`) so far."""

    def __post_init__(self) -> None:
        self._past_loss = self._step_loss = torch.zeros((), device=self.theta.device)
        self._update: tuple[Tensor, Tensor] | None = None
        self._in_loss = False

    @property
    def loss(self) -> Tensor:
        """Sum over the steps of each step's first cross-entropy; of its first loss where it took none by itself."""
        return self._past_loss + self._step_loss

    @property
    def samples(self) -> int:
        return len(self.indices)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.samples_of.input_shape

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def update(self) -> Tensor:
        if self._update is None or self._update[0] is not self.theta:
            self._update = self.theta, self.theta - self.theta_0
        return self._update[1]

    def start_step(self, step: int, x: Tensor, y: Tensor) -> None:
        """Begin local step k on a batch."""
        self._past_loss, self._step_loss = self.loss, torch.zeros_like(self._step_loss)
        self.step, self.x, self.y, self._passes, self._plain_seen = step, x, y, 0, False

    def grad(self, theta: Tensor, loss: Loss | None = None, part: Part = "all") -> Tensor:
        wanted = self.network.parts[part]
        return self._flat(self._differentiate(theta, loss or self._cross_entropy, wanted, plain=loss is None), wanted)

    def grad_with(self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
                  ) -> tuple[Tensor, Tensor]:
        extra = extra.detach().requires_grad_()
        *gradients, by_extra = self._differentiate(theta, lambda forward: loss(forward, extra),
                                                   [*self.network.trained, extra])
        return self._flat(gradients), by_extra

    def _differentiate(self, theta: Tensor, loss: Loss, wanted: Sequence[Tensor], plain: bool = False
                       ) -> tuple[Tensor, ...]:
        self.network.train(True)
        # Float buffers (running statistics) follow the first forward pass of a step only.
        with contextlib.nullcontext() if self._passes == 0 else self._buffers_kept():
            self._load(theta)
            self._in_loss = True
            value = loss(self.network)
            self._in_loss = False
            gradients = torch.autograd.grad(value, wanted, materialize_grads=True)
        if self._passes == 0 or (plain and not self._plain_seen):
            self._step_loss = value.detach()
        self._plain_seen |= plain
        self._passes += 1
        self.passes["gradients"] += 1
        return gradients

    def full_grad(self, theta: Tensor) -> Tensor:
        total = torch.zeros_like(theta)
        self.network.train(True)
        with self._buffers_kept():
            self._load(theta)
            for start in range(0, self.samples, FULL_GRADIENT_BATCH):
                x, y = self.samples_of.batch(self.indices[start:start + FULL_GRADIENT_BATCH])
                loss = cross_entropy(self.network(x).logits, y, reduction="sum")
                total += self._flat(torch.autograd.grad(loss, self.network.trained, materialize_grads=True))
        self.passes["full_gradients"] += 1
        return total / self.samples

    def predict(self, theta: Tensor) -> Output:
        self.network.train(False)
        self.passes["predictions"] += 1
        with torch.no_grad():
            self._load(theta)
            return self.network(self.x)

    def _load(self, theta: Tensor) -> None:
        if self._in_loss:  # the network holds one theta, and the backward pass still needs the loss's
            raise RuntimeError("a loss cannot call grad(), full_grad() or predict(): call them before it")
        self.network.load(theta)

    def _cross_entropy(self, forward: Forward) -> Tensor:
        return cross_entropy(forward(self.x).logits, self.y)

    def _flat(self, gradients: Sequence[Tensor], wanted: Sequence[Tensor] | None = None) -> Tensor:
        if len(gradients) == len(self.network.parameters):
            return torch.cat([g.reshape(-1) for g in gradients])
        given = {id(p): g for p, g in zip(wanted or self.network.trained, gradients, strict=True)}
        return torch.cat([given[id(p)].reshape(-1) if id(p) in given else p.new_zeros(p.numel())
                          for p in self.network.parameters])

    @contextlib.contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        kept = self.network.buffers.clone()
        yield
        self.network.buffers.copy_(kept)


def batches(training: Training, samples: int, seed: int, round: int, client: int) -> Iterator[np.ndarray]:
    """Positions in the client's shard, one int64 array per step; the last batch of an epoch may be smaller."""
    rng = generator(seed, "shuffle", round, client)
    size = samples if training.batch_size == "full" else training.batch_size
    left = training.steps(samples)
    while left > 0:
        order = rng.permutation(samples) if training.shuffle else np.arange(samples)
        for start in range(0, samples, size):
            if left == 0:
                return
            left -= 1
            yield order[start:start + size]


def train_client(
    algorithm: Algorithm, network: Network, samples: Samples, indices: np.ndarray, training: Training, seed: int,
    broadcast: Broadcast, job: Job, total_clients: int, total_samples: int,
) -> tuple[LocalClient, dict[str, Sum]]:
    """All local steps of one client.

    The canonical step on the algorithm's direction q: clip, q <- q + wd y, v <- m v + q, y <- y - η_t v.
    Returns the client (its new state, its update) and every upload, `update` and `buffers` included.
    """
    network.reset(broadcast.buffers)
    c = LocalClient(
        network, samples, indices, theta_0=broadcast.theta, theta=broadcast.theta, message=broadcast.message,
        state=Vectors(job.state or algorithm.client_state(network.initial)), steps=training.steps(len(indices)),
        lr=broadcast.lr, momentum=training.momentum, weight=job.weight, total_clients=total_clients,
        total_samples=total_samples)
    trainable = network.layout.trainable.to(c.theta.device) if network.layout.frozen else 1.0
    decay = training.weight_decay * trainable
    pull = algorithm.pull(c) * trainable if training.clip_scope == "code" else None
    velocity: Tensor | None = None
    devices = [c.theta.device] if c.theta.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key(seed, "torch", broadcast.round, job.client))  # dropout
        algorithm.begin(c)
        augment = generator(seed, "augment", broadcast.round, job.client)
        for k, positions in enumerate(batches(training, c.samples, seed, broadcast.round, job.client)):
            c.start_step(k, *samples.batch(indices[positions], augment))
            q = algorithm.direction(c)
            if training.clip_norm is not None:
                q = _clipped(q, training.clip_norm) if pull is None else (
                    _clipped(q - pull * c.theta, training.clip_norm) + pull * c.theta)
            if training.weight_decay:
                q = q + decay * c.theta
            if training.momentum:
                velocity = q if velocity is None else training.momentum * velocity + q
                q = velocity
            c.theta = c.theta - c.lr * q
        uploads = algorithm.upload(c)
    if reserved := uploads.keys() & {"update", "buffers", "train_loss", "sums"}:
        raise ValueError(f"{algorithm.name}: an upload cannot be named {reserved.pop()!r}")
    uploads["update"] = Sum(c.update, job.weight)
    if network.buffers.numel():
        uploads["buffers"] = Sum(network.buffers - broadcast.buffers, job.weight)
    return c, uploads


def _clipped(q: Tensor, norm: float) -> Tensor:
    return q * (norm / torch.linalg.vector_norm(q)).clamp(max=1.0)
