"""Clients of a small model trained together: their vectors are rows, and each operation takes all rows at once.

Most of a small client's time goes into calls of PyTorch, and a stack shares them. On a CPU a row has the bits of its
client alone by construction: each product has the operands of the product alone, in the same order. What a machine's
kernels and a method make of that is checked: the first stack of each number of clients, with batches of one size and of
several, and the first gradients of each number of clients and shape of batch, are computed both ways and compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Loss, Part, PerClient, Sum
from fedray.algorithms.descent import Descent
from fedray.client import LocalClient
from fedray.common.errors import warn_once
from fedray.common.vectors import Vectors
from fedray.engine.guard import let_assign
from fedray.engine.messages import Broadcast, ClientTask, count_bytes
from fedray.engine.state import load_state
from fedray.engine.training.batches import Counts, Drawn
from fedray.engine.training.local_training import LocalTrainer
from fedray.models.network import Network
from fedray.models.recorded import have_same_bits
from fedray.models.stacked import Unstackable, compute_gradients

STACKED = 1 << 18
"""Parameters of all clients of a stack, at most: 1 MiB of them fit the cache of a core."""
MOST = 64
"""Clients in a stack, at most."""


@dataclass
class ClientResult:
    """A client, or a stack of clients, after its training, with its new state.

    loss: sum of the steps' losses, `(S,)` for a stack. steps: number of each client's. uploads: as `LocalTrainer.train`
    returns them.
    """

    tasks: Sequence[ClientTask]
    loss: Tensor
    steps: Sequence[int]
    uploads: Mapping[str, Sum | PerClient]
    state: Vectors

    def get_rows(self, vector: Tensor) -> Tensor:
        """Return a vector with a row for each client."""
        size = len(self.tasks)
        return vector[None] if size == 1 else vector if has_rows(vector, size) else vector.expand(size, *vector.shape)

    def count_bytes(self) -> int:
        """Return how much the clients upload."""
        sent = {id(upload.vector): upload.vector for upload in self.uploads.values()}
        return count_bytes([self.get_rows(vector) for vector in sent.values()])

    def average_loss(self) -> Tensor:
        """Return the mean loss of the steps."""
        if len(set(self.steps)) == 1:
            return self.loss / self.steps[0]
        return torch.stack([loss / steps for loss, steps in zip(self.loss, self.steps, strict=True)])


@dataclass(eq=False)
class Stacking:
    """The stacks of a process, of `size` clients; 1 for no stacks.

    compared: method, number of clients and whether their batches differ in size, of the stacks that have been compared
    with their clients alone: a vector with as many numbers as there are clients would be mistaken for their rows.
    """

    network: Network
    size: int
    compared: set[tuple[str, int, bool]] = field(default_factory=set)
    _shapes: dict[tuple[int, ...], bool] = field(default_factory=dict)

    def compute_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses `(S,)` and gradients `(S, P)`: a row for each client, as `Network.compute_gradient` gives."""
        shape, network = tuple(x.shape), self.network
        stackable = self._shapes.get(shape, len(y[0]) > 1)
        if self.size == 1 or network.layers is None or not stackable:
            return self._compute_alone(theta, x, y)
        try:
            found = compute_gradients(network.layers, network.layout.shapes, theta, x, y)
        except Unstackable:
            self._shapes[shape] = False
            return self._compute_alone(theta, x, y)
        if shape not in self._shapes:
            self._shapes[shape] = True
            alone = self._compute_alone(theta, x, y)
            if not all(map(have_same_bits, found, alone)):
                self.stop(f"gradients of {len(y[0])} samples have other bits in a stack on this machine")
                return alone
        return found

    def _compute_alone(self, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = zip(*map(self.network.compute_gradient, theta, x, y), strict=True)
        return torch.stack(losses), torch.stack(gradients)

    def stop(self, reason: str) -> None:
        """Make no more stacks."""
        self.size = 1
        warn_once(f"runtime.stack: {reason}; each client trains alone")


def choose_size(network: Network, wanted: int | Literal["auto"]) -> int:
    """Return the number of clients in a stack. wanted: the user's.

    On a GPU there are none: whether a kernel gives a row the bits of its client alone depends on where the row begins.
    """
    if network.theta.device.type != "cpu":
        if wanted != "auto" and wanted > 1:
            warn_once(f"runtime.stack: found {wanted}; on a GPU each client trains alone")
        return 1
    size = min(MOST, STACKED // network.layout.size) if wanted == "auto" else wanted
    # With fewer parameters than clients a vector could be mistaken for rows.
    possible = network.layers is not None and torch.get_num_threads() == 1 and network.layout.size > size
    return max(size, 1) if possible else 1


def can_stack(trainer: LocalTrainer, broadcast: Broadcast) -> bool:
    """Return True if method, settings and round allow stacks."""
    training, methods = trainer.training, [trainer.algorithm, trainer.stepping or trainer.algorithm]
    return (
        all("stacks" in vars(type(method)) and method.stacks for method in methods)
        and not trainer.algorithm.overrides("local_optimizer")
        and trainer.algorithm.shares == "all"
        and trainer.algorithm.keeps == "none"
        and (training.optimizer == "sgd" or (training.optimizer == "adamw" and training.adamw.state == "round"))
        and training.lr_decay_within == 1
        and not training.relaxed_start
        and not broadcast.measured
    )


@dataclass(kw_only=True, eq=False)
class StackedClient(LocalClient):
    """Several clients as one: vectors are `(S, P)`, a row for each; the server's message is `(P,)` as ever.

    It has those numbers of a client that are the same for all. `stacking` computes the gradients; `total` is the sum
    over the steps of each step's first loss, `(S,)`.
    """

    stacking: Stacking
    total: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __getattr__(self, name: str) -> Any:
        if name not in LocalClient.__dataclass_fields__ and not hasattr(LocalClient, name):
            raise AttributeError(f"'LocalClient' object has no attribute {name!r}", name=name, obj=self)
        raise Unstackable(f"{self.__class__.__name__}.{name} is not the same for all clients")

    @property
    def loss(self) -> Tensor:
        return self.total

    def start_step(self, step: int, x: Tensor, y: Tensor) -> None:
        self.step, self.x, self.y, self._is_first = step, x, y, True

    def _refuse_in_loss(self) -> None:
        raise Unstackable("a prediction or a full gradient has no stack")

    def draw(self) -> tuple[Tensor, Tensor]:
        raise Unstackable("a draw has no stack")

    def grad(self, theta: Tensor, loss: Loss | None = None, *tensors: Tensor, part: Part = "all") -> Tensor:
        if loss is not None or part != "all":
            raise Unstackable("a gradient of a part, or of the method's own loss, has no stack")
        losses, gradients = self.stacking.compute_gradients(theta.expand(len(self.x), -1), self.x, self.y)
        if self._is_first:
            self.total, self._is_first = losses if self.step == 0 else self.total + losses, False
        return gradients


def train_stack(
    trainer: LocalTrainer, stacking: Stacking, broadcast: Broadcast, given: Sequence[tuple[ClientTask, Drawn | None]]
) -> list[ClientResult]:
    """Make all local steps of several clients; return all as one, or one by one.

    Raises Unstackable if the method needs what a stack does not have.
    """
    algorithm, tasks = trainer.algorithm, [task for task, _ in given]
    orders = [drawn.order for _, drawn in given if drawn is not None]
    steps = [len(order) for order in orders]
    c = _make_client(trainer, stacking, broadcast, tasks)
    rows = _Rows(c, Descent(c.optimiser))
    c.step_rate = algorithm.rate
    with trainer.guard(c):
        let_assign(algorithm, "begin", algorithm.begin, c)
        rows.take_steps(trainer, [task.client for task in tasks], orders)
        try:
            uploads = trainer.finish(c, tasks[0].weight)
            return [ClientResult(tasks, c.loss, steps, uploads, c.state)]
        except Unstackable:  # it needs a number that differs
            rows.split()
    trained: list[ClientResult] = []
    for row, task in enumerate(tasks):
        one = trainer.start(broadcast, task)
        # Copies: a state that keeps one of them must not keep the other rows.
        local = {n: v.clone() if isinstance(v, Tensor) else v for n, v in rows.local[row].items()}
        one.theta, one.local = rows.theta[row].clone(), Vectors(local)
        one._past_loss, one.step, one.step_rate = rows.total[row], one.steps - 1, algorithm.rate
        with trainer.guard(one):
            uploads = trainer.finish(one, task.weight)
            trained.append(ClientResult([task], one.loss, [one.steps], uploads, one.state))
    return trained


def _make_client(
    trainer: LocalTrainer, stacking: Stacking, broadcast: Broadcast, tasks: Sequence[ClientTask]
) -> StackedClient:
    """Return the clients before their first step."""
    states, size = [load_state(task.state) for task in tasks], len(tasks)
    first = trainer.start(broadcast, tasks[0])
    given = {each.name: getattr(first, each.name) for each in fields(LocalClient) if each.init}
    given |= {"theta_0": first.theta_0.expand(size, -1)}
    if any(states):
        if any(state.keys() != states[0].keys() for state in states):
            raise Unstackable("a state of other vectors has no stack")
        given["state"] = Vectors({name: torch.stack([state[name] for state in states]) for name in states[0]})
    else:
        given["state"] = Vectors({name: v.expand(size, *v.shape) for name, v in first.state.items()})
    c = StackedClient(stacking=stacking, **given)
    del c.id, c.indices
    sizes = {len(trainer.shards[task.client]) for task in tasks}
    numbers: dict[str, set[float]] = {"weight": {task.weight for task in tasks}, "samples": {*sizes}}
    counts = [trainer.count(samples) for samples in sizes]
    numbers |= {name: {getattr(each, name) for each in counts} for name in Counts._fields}
    for name, found in numbers.items():
        if len(found) > 1:
            delattr(c, name)
    return c


class _Rows:
    """The steps of a stack. If its batches differ in size, so do the clients that make a step together.

    theta, local and total are each client's y, scratch vectors and sum of losses, once the stack is split.
    """

    def __init__(self, c: StackedClient, descent: Descent) -> None:
        self._c, self._descent, self._theta_0 = c, descent, c.theta_0

    def take_steps(self, trainer: LocalTrainer, clients: Sequence[int], orders: Sequence[Sequence[np.ndarray]]) -> None:
        """Take all steps. orders: the positions of each client's batches in its shard."""
        algorithm = trainer.algorithm
        weight = trainer.weigh_decoupled(self._c)

        def step(k: int, rows: Sequence[int]) -> None:
            batch = trainer.gather([clients[row] for row in rows], [orders[row][k] for row in rows])
            trainer.step(self._c, self._descent, k, batch, algorithm.direction, algorithm.trained_part, weight)

        sizes, everyone = [[len(positions) for positions in order] for order in orders], range(len(clients))
        if all(own == sizes[0] for own in sizes):
            for k in range(len(sizes[0])):
                step(k, everyone)
            return
        self.split()
        for k in range(max(map(len, sizes))):
            groups: dict[int, list[int]] = {}
            for row, own in enumerate(sizes):
                if k < len(own):
                    groups.setdefault(own[k], []).append(row)
            for rows in groups.values():
                self._gather(rows)
                step(k, rows)
                self._scatter(rows)
        self._gather(everyone)

    def split(self) -> None:
        """Keep the vectors of each client."""
        c, size = self._c, len(self._theta_0)
        self.theta, self.total = [*c.theta], [*c.total.expand(size)]
        self.local, self._state, self._rule = (
            _split(vectors, size) for vectors in (c.local, c.state, self._descent.rule.state)
        )

    def _gather(self, rows: Sequence[int]) -> None:
        """Make some of the clients the stack."""
        c, kept = self._c, (self.local, self._state, self._rule)
        c.theta_0, c.theta = self._theta_0[: len(rows)], torch.stack([self.theta[row] for row in rows])
        c.total = torch.stack([self.total[row] for row in rows])
        c.local, c.state, self._descent.rule.state = (_join([each[row] for row in rows]) for each in kept)

    def _scatter(self, rows: Sequence[int]) -> None:
        """Keep the vectors of the clients in the stack."""
        c, size = self._c, len(rows)
        new = zip(c.theta, c.total, _split(c.local, size), _split(self._descent.rule.state, size), strict=True)
        for row, (theta, total, local, rule) in zip(rows, new, strict=True):
            self.theta[row], self.total[row], self.local[row], self._rule[row] = theta, total, local, rule


def has_rows(vector: Tensor, size: int) -> bool:
    """Return True if a vector of a stack has a row for each client; False if it, or a number, is the same for all."""
    return isinstance(vector, Tensor) and vector.ndim > 0 and len(vector) == size


def get_row(vector: Tensor, row: int, size: int) -> Tensor:
    """Return a client's part of a vector of a stack."""
    return vector[row] if has_rows(vector, size) else vector


def copy_rows(vectors: Vectors, size: int) -> list[Vectors]:
    """Return each client's part of the vectors of a stack, without the memory of the others'."""
    if size == 1 or not vectors:
        return [vectors, *(Vectors() for _ in range(1, size))]
    columns = [
        [row.clone() for row in v.unbind()] if has_rows(v, size) and v.stride(0) else [get_row(v, 0, size)] * size
        for v in vectors.values()
    ]
    return [Vectors(zip(vectors, row, strict=True)) for row in zip(*columns, strict=True)]


def _split(vectors: Vectors, size: int) -> list[Vectors]:
    return [Vectors({name: get_row(v, row, size) for name, v in vectors.items()}) for row in range(size)]


def _join(each: Sequence[Vectors]) -> Vectors:
    """Return the vectors of several clients as rows; numbers, and what all clients share, stay as they are."""
    joined = Vectors()
    for name, vector in each[0].items():
        no_tensor = not isinstance(vector, Tensor)
        alike = (len(each) > 1 or no_tensor) and all(own[name] is vector for own in each)
        shared = alike or (not no_tensor and not vector.ndim)
        if not shared and (no_tensor or any(getattr(own[name], "shape", None) != vector.shape for own in each)):
            raise Unstackable(f"{name} has another shape, or is another number, for some clients")
        joined[name] = vector if shared else torch.stack([own[name] for own in each])
    return joined


def agree(trained: Sequence[ClientResult], alone: Sequence[ClientResult]) -> bool:
    """Return True if clients of a stack have the bits that they have alone."""
    pairs = zip(*([row for result in each for row in _iter_rows(result)] for each in (trained, alone)), strict=True)
    return all(
        ours.keys() == theirs.keys() and all(have_same_bits(ours[name], theirs[name]) for name in ours)
        for ours, theirs in pairs
    )


def _iter_rows(result: ClientResult) -> Iterator[dict[str, Tensor]]:
    """Yield the vectors of each client."""
    vectors = {"loss": result.loss, **{f"state.{name}": v for name, v in result.state.items()}}
    vectors |= {f"upload.{name}": sent.vector for name, sent in result.uploads.items()}
    rows = {name: [v] if len(result.tasks) == 1 else result.get_rows(v) for name, v in vectors.items()}
    for row in range(len(result.tasks)):
        yield {name: v[row] for name, v in rows.items()}
