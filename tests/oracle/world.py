"""The world of the methods: clients with their samples, cohorts, mini-batches, and the canonical local step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .nets import MLP, SoftmaxRegression, cross_entropy
from .tensors import Tensors, norm, restrict, zeros

Batch = tuple[np.ndarray, np.ndarray]
Direction = Callable[["Local", Batch], Tensors]
"""What a client's step goes along, for a mini-batch."""


@dataclass
class World:
    """A federation. x0: initial model; clients: (X, y) of each; order: (round, client) -> index arrays per step."""

    net: MLP | SoftmaxRegression
    x0: Tensors
    clients: list[Batch]
    cohorts: list[list[int]]
    epochs: int
    batch_size: int
    lr: float
    lr_decay: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip_norm: float | None = None
    clip_scope: str = "direction"
    aggregation: str = "uniform"
    server_lr: float = 1.0
    order: dict[tuple[int, int], list[np.ndarray]] = field(default_factory=dict)
    lr_decay_within: float = 1.0
    weight_decay_on: str = "all"
    nominal_steps: str | bool = False
    last_batch: str = "keep"
    relaxed_start: float = 0.0
    relaxed_average: str = "updates"
    channels: int = 1
    last: dict[int, Tensors] = field(default_factory=dict, init=False)
    """Client -> its last local model, x0 before the first."""

    @property
    def N(self) -> int:
        """All clients, present or not."""
        return len(self.clients)

    @property
    def rounds(self) -> int:
        return len(self.cohorts)

    def each(self, like: Tensors) -> list[Tensors]:
        """A zero vector for each of the N clients."""
        return [zeros(like) for _ in range(self.N)]

    def grad(self, y: Tensors, batch: Batch) -> Tensors:
        """g(y): gradient of the mean cross-entropy of a mini-batch, no weight decay in it."""
        X, labels = batch
        out = self.net.forward(y, X)
        return self.net.backward(y, X, out, dz=cross_entropy(out.z, labels))[0]

    def plain(self, c: "Local", batch: Batch) -> Tensors:
        """FedAvg's direction."""
        return self.grad(c.y, batch)

    def train(
        self, t: int, x: Tensors, direction: Direction, pull: float = 0.0, moving: set[str] | None = None
    ) -> "dict[int, Local]":
        """The clients of round t after all of their steps from x."""
        trained = {}
        for c in self.participants(t, x):
            for batch in c.batches:
                c.step(direction(c, batch), pull, moving)
            trained[c.i] = c
        return trained

    def update(self, trained: "dict[int, Local]") -> Tensors:
        """U, the mean of the clients' updates; with `relaxed_average: models` of y - x, x the model received."""
        models = self.relaxed_average == "models"
        return self.average({i: c.y - (c.received if models else c.start) for i, c in trained.items()})

    def average(self, uploads: dict[int, Tensors]) -> Tensors:
        """sum_i pi_i upload_i over the participants: pi uniform, or n_i / sum_j n_j."""
        weights = self.weights(list(uploads))
        result = zeros(self.x0)
        for i, upload in uploads.items():
            result = result + weights[i] * upload
        return result

    def weights(self, cohort: list[int]) -> dict[int, float]:
        """pi_i of each participant: 1, samples, or whole batches (D-42) over their sum."""
        sizes = {i: len(self.clients[i][1]) for i in cohort}
        part = {
            i: {"uniform": 1, "samples": n, "batches": n // self.batch_size}[self.aggregation] for i, n in sizes.items()
        }
        return {i: part[i] / sum(part.values()) for i in cohort}

    def participants(self, t: int, x: Tensors) -> "Iterator[Local]":
        """The clients of round t, each ready to start from x."""
        for i in self.cohorts[t]:
            yield Local(self, t, i, x)

    def batches(self, t: int, i: int) -> list[Batch]:
        """Mini-batches of client i in round t: the given order, otherwise the samples' own, epoch by epoch."""
        X, y = self.clients[i]
        if (t, i) in self.order:
            return [(X[at], y[at]) for at in self.order[t, i]]
        epoch = [(X[s : s + self.batch_size], y[s : s + self.batch_size]) for s in range(0, len(y), self.batch_size)]
        return self.epochs * epoch[: self.steps_per_epoch(len(y))]

    def steps_per_epoch(self, samples: int) -> int:
        """Whole batches, and one more for what is left unless `last_batch` is `drop`; at least one."""
        whole, rest = divmod(samples, self.batch_size)
        return whole if whole and (self.last_batch == "drop" or not rest) else whole + 1


class Local:
    """Client i in round t: model y, batches, their number K, learning rate, momentum buffer (new every round)."""

    def __init__(self, world: World, t: int, i: int, start: Tensors) -> None:
        self.received = start
        start = start + world.relaxed_start * (start - world.last.get(i, world.x0))  # FedInit (D-128)
        self.world, self.t, self.i, self.start, self.y = world, t, i, start, start
        self.batches = world.batches(t, i)
        self.K = len(self.batches)
        samples = len(world.clients[i][1])
        nominal = len(world.clients[0][1]) if world.nominal_steps == "client0" else samples
        self.counted = world.epochs * nominal / world.batch_size if world.nominal_steps else self.K
        self.steps_per_epoch = world.steps_per_epoch(samples)
        self.step_number = 0
        self.eta = world.lr * world.lr_decay**t
        self.v = zeros(start)

    def step(self, q: Tensors, pull: float = 0.0, moving: set[str] | None = None, eta: float | None = None) -> None:
        """Clip q, add weight decay, then momentum, then the step.

        pull: q holds pull x y, which FL-Simulator's code adds with the weight decay; clip_scope `code` (D-12).
        moving: the tensors that the step may move, where not all of them. eta: the step's length, where not the
        round's."""
        world = self.world
        moving = set(q) if moving is None else moving
        q = restrict(q, moving)
        if world.clip_scope == "code":
            q = q - pull * restrict(self.y, moving)
        if world.clip_norm is not None and norm(q) > world.clip_norm:
            q = (world.clip_norm / norm(q)) * q
        pulled = pull if world.clip_scope == "code" else 0.0
        weights = set(q) if world.weight_decay_on == "all" else world.net.weights
        q = q + pulled * restrict(self.y, moving) + world.weight_decay * restrict(self.y, moving & weights)
        self.v = world.momentum * self.v + q
        eta = (self.eta if eta is None else eta) * world.lr_decay_within ** (self.step_number // self.steps_per_epoch)
        self.y = self.world.last[self.i] = self.y - eta * restrict(self.v, moving)
        self.step_number += 1

    @property
    def u(self) -> Tensors:
        """The local update."""
        return self.y - self.start


def averaging(w: World, direction: Direction, pull: float = 0.0, moving: set[str] | None = None) -> Tensors:
    """FedAvg with steps along `direction`."""
    x = w.x0
    for t in range(w.rounds):
        x = x + w.server_lr * w.update(w.train(t, x, direction, pull, moving))
    return x
