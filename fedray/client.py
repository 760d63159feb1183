"""One client of a round as its algorithm sees it: parameters, state, batch, gradients. Independent of Ray."""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MethodType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Client, Forward, Loss, Part, SecondModel, Share
from fedray.algorithms.descent import Descent, Optimiser
from fedray.common.errors import Slip, UserError
from fedray.common.rng import generator, key_draws
from fedray.common.vectors import Vectors
from fedray.datasets.dataset import ClientSamples, Samples
from fedray.models.network import Network, Output, refuse_no_scalar

T = TypeVar("T")
CHUNK = 500
"""Samples per forward pass if nothing depends on the batch size."""
SECOND_BUFFERS = "second_buffers"
"""Name in a client's state of the running statistics of its second model."""
EXPLAINED = (
    "which is differentiated by the model's parameters alone; add the term's gradient to the direction: "
    "c.grad(c.theta) + mu * (c.theta - c.theta_0)"
)
"""Why a term in theta itself has no gradient, and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """Common to all clients of a run, besides the model: samples, classes, the seed of every draw, totals.

    counts(): returns every client's number of training samples of each class, int64 `(N, C)`.
    take(client, indices): returns a client's samples on the training device; None if they are gathered from `samples`.
    own_code: True if the user wrote a part of the run.
    """

    samples: Samples
    classes: int
    seed: int
    clients: int
    total_samples: int
    counts: Callable[[], np.ndarray]
    take: Callable[[int, np.ndarray], ClientSamples] | None = None
    own_code: bool = False

    def key_draws(
        self, purpose: str, round: int, client: int, device: torch.device
    ) -> contextlib.AbstractContextManager[None]:
        """Key all draws within a block, of NumPy and Python only if there is code of the user's own."""
        return key_draws(self.own_code, self.seed, purpose, round, client, device)

    def take_shard(self, client: int, indices: np.ndarray) -> ClientSamples:
        """Return a client's samples. indices: int64 `(n_i,)`."""
        return ClientSamples(self.samples, indices) if self.take is None else self.take(client, indices)


@dataclass
class _Step:
    """Computations of a model in a local step: the number of gradients, whether one was plain, and its loss.

    size: samples of a whole batch, if it is of a pass with batches of its own.
    """

    gradients: int = 0
    plain: bool = False
    loss: Tensor | None = None
    size: int | None = None


@dataclass(kw_only=True, eq=False)
class LocalClient(Client):
    """A client that trains in this process, with its training samples, `indices` int64 `(n_i,)`.

    network: the model, which holds the client's running statistics. _round: t, from 0, for keyed draws alone: a
    method's numbers of a round come in `message`. shares: the parameters that `shared_update` holds. shuffle: whether a
    pass over its samples (`batches`) is in random order, otherwise in their own order. passes: how often it has called
    grad or grad_with (`gradients`), full_grad (`full_gradients`), predict (`predictions`) and shard
    (`full_predictions`). stepped: in a measured round, a copy from before `upload`.
    """

    id: int
    population: Population
    network: Network
    indices: np.ndarray
    _round: int
    optimiser: Optimiser
    shares: Share
    shuffle: bool
    passes: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.theta = self.theta_0
        self._past_loss: Tensor | None = None
        self._now = _Step()
        self._update: tuple[Tensor, Tensor] | None = None
        self._shared: tuple[Tensor, Tensor] | None = None
        self._in_loss = self._in_second = self.in_step = False
        self.step_rate: Callable[[Client], float] = lambda c: c.lr
        self.received_buffers = self.network.buffers.clone()
        self.stepped: LocalClient | None = None

    @cached_property
    def second(self) -> "LocalSecondModel":
        return LocalSecondModel(self)

    @property
    def loss(self) -> Tensor:
        """Sum over the steps of each step's first cross-entropy, or of its first loss if it has none."""
        if self._past_loss is not None and self._now.loss is not None:
            return self._past_loss + self._now.loss
        known = self._past_loss if self._now.loss is None else self._now.loss
        return torch.zeros((), device=self.theta.device) if known is None else known

    @property
    def rate(self) -> float:
        return self.step_rate(self)

    @cached_property
    def held(self) -> ClientSamples:
        """Its training samples, where they are held."""
        return self.population.take_shard(self.id, self.indices)

    @cached_property
    def counts(self) -> Tensor:
        return torch.bincount(self.held.get_labels(), minlength=self.population.classes).float()

    @property
    def all_counts(self) -> Tensor:
        return torch.from_numpy(self.population.counts()).float().to(self.theta.device)

    @property
    def update(self) -> Tensor:
        if self._update is None or self._update[0] is not self.theta:
            self._update = self.theta, self.theta - self.theta_0
        return self._update[1]

    @property
    def made_updates(self) -> dict[str, Tensor]:
        """The updates that have been read and would be sent, by the method's names of them; one of version
        0 is unchanged.
        """
        made = {"c.update": self._update, "c.shared_update": self._shared}
        return {name: one[1] for name, one in made.items() if one is not None}

    @property
    def shared_update(self) -> Tensor:
        if self.shares == "all":
            return self.update
        if self._shared is None or self._shared[0] is not self.update:
            self._shared = self.update, self.update[self.network.index(self.shares)]
        return self._shared[1]

    def copy(self) -> "LocalClient":
        """Return the client for a probe, which measures with it: only running statistics of the network are shared."""
        twin = copy.copy(self)
        twin.message, twin.local, twin.state = (Vectors(each) for each in (self.message, self.local, self.state))
        twin.passes, twin._now = Counter(self.passes), replace(self._now)
        if "second" in vars(self):
            twin.second = self.second.copy(twin)
        return twin

    def start_step(self, step: int, x: Tensor, y: Tensor) -> None:
        """Begin local step k on a batch."""
        if self._now.loss is not None:
            self._past_loss = self.loss
        self.step, self.x, self.y, self._now = step, x, y, _Step()
        self._drawing, self._draws = f"draw {step}", 0

    def grad(self, theta: Tensor, loss: Loss | None = None, *tensors: Tensor, part: Part = "all") -> Tensor:
        if loss is None or isinstance(loss, MethodType):
            if tensors and theta is not self.theta_0 and any(_is_same(theta, tensor) for tensor in tensors):
                raise Slip(f"passes the theta of c.grad to its loss, {EXPLAINED}; a constant is c.theta.clone()")
            return self._differentiate(
                lambda: self.network.compute_gradient(theta, self.x, self.y, part, loss, tensors), plain=loss is None
            )
        gradients = self._compute_gradients(theta, lambda f: loss(f, *tensors), self.network.parts[part])
        return self.network.flatten(gradients, part)

    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        extra = extra.detach().requires_grad_()
        *gradients, by_extra = self._compute_gradients(
            theta, lambda forward: loss(forward, extra), [*self.network.trained, extra]
        )
        return self.network.flatten(gradients), by_extra

    def _compute_gradients(self, theta: Tensor, loss: Loss, wanted: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def compute() -> tuple[Tensor, tuple[Tensor, ...]]:
            self.network.load(theta)
            self._in_loss = True
            with self._watch(theta) as watched:
                value = loss(self.network)
                self._in_loss = False
                refuse_no_scalar(value)
                found = torch.autograd.grad(value, [*wanted, *watched], allow_unused=True)
            if any(gradient is not None for gradient in found[len(wanted) :]):
                read = "theta" if self._in_second else "c.theta"
                raise Slip(f"reads {read} in the loss of c.grad, {EXPLAINED}; a constant is {read}.detach()")
            return value.detach(), tuple(
                torch.zeros_like(by) if gradient is None else gradient
                for by, gradient in zip(wanted, found, strict=False)
            )

        return self._differentiate(compute)

    @contextlib.contextmanager
    def _watch(self, theta: Tensor) -> Iterator[list[Tensor]]:
        """Let a user's loss read c.theta, and the theta that it is differentiated at, as what autograd follows.

        What others share is not touched: the loss sees another tensor as c.theta. The loss of the second model may read
        c.theta, which is not its own.
        """
        watched: list[Tensor] = []
        if not self.population.own_code:
            yield watched
            return
        kept, seen = self.theta, self.theta.detach()
        shared = (self.theta_0, *self.message.values(), *self.state.values())
        given = theta.is_leaf and not theta.requires_grad and not any(theta is one for one in shared)
        if not self._in_second:
            self.theta = seen.requires_grad_()
            watched.append(seen)
        if given:
            watched.append(theta.requires_grad_())
        try:
            yield watched
        finally:
            if self.theta is seen:
                self.theta = kept
            if given:
                theta.requires_grad_(False)

    def _differentiate(self, compute: Callable[[], tuple[Tensor, T]], plain: bool = False) -> T:
        """Count a gradient and return its results. compute: returns the loss and the gradients."""
        self._refuse_in_loss()
        self.network.train(True)
        # Buffers (running statistics, counters) follow the first forward pass of a step only.
        now = self._now
        kept = self.network.keep() if now.gradients and self.network.has_buffers else None
        try:
            value, gradients = compute()
        except ValueError as error:
            self._explain_one_sample(error, len(self.y))
            raise
        if kept is not None:
            self.network.restore(kept)
        if now.gradients == 0 or (plain and not now.plain):
            now.loss = value
        now.plain |= plain
        now.gradients += 1
        self.passes["gradients"] += 1
        return gradients

    def _explain_one_sample(self, error: ValueError, size: int) -> None:
        """Raise a UserError that names the keys to change if BatchNorm met a batch of one sample."""
        if size == 1 and "more than 1 value per channel" in str(error):
            each = self._now.size or self.batch_size
            drop = "training.last_batch: drop, " * (self._now.size is None and self.samples > each)
            raise UserError(
                f"training.batch_size: client {self.id} has {self.samples} samples in batches of {each}, "
                f"and BatchNorm cannot normalise one sample alone; choose another size, {drop}a larger "
                "partition.min_size, or the method's own options of batches"
            ) from None

    def full_grad(self, theta: Tensor) -> Tensor:
        total = torch.zeros_like(theta)
        self._refuse_in_loss()
        self.network.train(True)
        with self.network.keep_buffers():
            self.network.load(theta)
            for x, y in self._cut_into_chunks():
                try:
                    logits = self.network(x).logits
                except ValueError as error:
                    self._explain_one_sample(error, self.samples)
                    raise
                loss = cross_entropy(logits, y, reduction="sum")
                total += self.network.flatten(torch.autograd.grad(loss, self.network.trained, materialize_grads=True))
        self.passes["full_gradients"] += 1
        return total / self.samples

    def predict(self, theta: Tensor) -> Output:
        return self._predict(theta, self._choose_statistics(theta))

    def _predict(self, theta: Tensor, statistics: Tensor) -> Output:
        self.passes["predictions"] += 1
        self._refuse_in_loss()
        self.network.train(False)
        with self._use_statistics(statistics):
            return self.network.predict(theta, self.x)

    def _choose_statistics(self, theta: Tensor) -> Tensor:
        """Return the running statistics `(B,)` that belong to theta: the received ones for what was received."""
        received = theta is self.theta_0 or any(theta is vector for vector in self.message.values())
        return self.received_buffers if received else self.network.buffers

    @contextlib.contextmanager
    def _use_statistics(self, statistics: Tensor) -> Iterator[None]:
        """Give the network these running statistics `(B,)` for the duration of a block."""
        if not self.network.has_buffers:
            yield
            return
        with self.network.keep_buffers():
            if statistics is not self.network.buffers:
                self.network.buffers.copy_(statistics)
            yield

    def shard(self, theta: Tensor) -> tuple[Output, Tensor]:
        self.passes["full_predictions"] += 1
        self._refuse_in_loss()
        self.network.train(False)
        with torch.no_grad(), self._use_statistics(self._choose_statistics(theta)):
            self.network.load(theta)
            outputs, labels = zip(*((self.network(x), y) for x, y in self._cut_into_chunks()), strict=True)
            taps = tuple(torch.cat(layer) for layer in zip(*(o.taps for o in outputs), strict=True))
            return Output(
                torch.cat([o.logits for o in outputs]), torch.cat([o.features for o in outputs]), taps
            ), torch.cat(labels)

    def draw(self) -> tuple[Tensor, Tensor]:
        rng = generator(self.population.seed, f"{self._drawing} {self._draws}", self._round, self.id)
        self._draws += 1
        return next(self.held.iter_batches([rng.choice(self.samples, len(self.y), replace=False)], rng))

    def batches(
        self, purpose: str, size: int | None = None, share: float = 1.0, epoch: int | None = None
    ) -> Iterator[int]:
        if self.in_step:
            raise Slip(
                "calls c.batches within a step, whose batch it replaces; make the pass in begin, or take another batch "
                "by c.draw()"
            )
        rng = generator(self.population.seed, f"{purpose} batches", self._round, self.id)
        order = rng.permutation(self.samples)[: max(1, round(share * self.samples))]
        order = order if self.shuffle else np.sort(order)
        step = self.batch_size if size is None else size
        parts, drawn, augment = [order[start : start + step] for start in range(0, len(order), step)], 0, None
        if epoch is not None:
            parts = parts[: self.per_epoch]
            augment = generator(self.population.seed, f"{purpose} augment", self._round, self.id)
        for k, batch in enumerate(self.held.iter_batches(parts, augment)):
            self.start_step(0 if epoch is None else epoch * self.per_epoch + k, *batch)
            self._now = _Step(1, plain=True, size=size)  # running statistics and the training loss stay as they are
            self._drawing, self._draws = f"{purpose} draw", drawn  # each turn's draws are new ones
            yield k
            drawn = self._draws

    def _cut_into_chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = -(-self.samples // -(-self.samples // CHUNK))  # about equal: BatchNorm cannot train on a chunk of one
        for start in range(0, self.samples, size):
            yield self.held.cut(start, start + size)

    def _refuse_in_loss(self) -> None:
        if self._in_loss:  # the network holds one theta, and the backward pass still needs the loss's
            raise RuntimeError("a loss cannot call grad(), full_grad() or predict(): call them before it")


class LocalSecondModel(SecondModel):
    """The second model of a client that trains in this process.

    Its running statistics stay with the client from round to round; before its first participation it has those of the
    run's initial model.
    """

    def __init__(self, c: LocalClient) -> None:
        self._c = c
        self._buffers = c.network.initial_state
        if SECOND_BUFFERS in c.state:
            self._buffers = [c.state[SECOND_BUFFERS], *self._buffers[1:]]
        self._descent = Descent(c.optimiser)
        self._batch: Tensor | None = None
        self._now, self._calls = _Step(), 0

    def copy(self, c: LocalClient) -> "LocalSecondModel":
        """Return the second model of a copy of the client."""
        twin = copy.copy(self)
        twin._c, twin._now, twin._descent = c, replace(self._now), copy.copy(self._descent)
        twin._descent.rule = copy.deepcopy(self._descent.rule)
        return twin

    def grad(self, theta: Tensor, loss: Loss | None = None, *tensors: Tensor, part: Part = "all") -> Tensor:
        with self._take_its_place():
            return self._c.grad(theta, loss, *tensors, part=part)

    def grad_with(
        self, theta: Tensor, extra: Tensor, loss: Callable[[Forward, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        with self._take_its_place():
            return self._c.grad_with(theta, extra, loss)

    def predict(self, theta: Tensor) -> Output:
        return self._c._predict(theta, self._buffers[0])

    def step(self, theta: Tensor, q: Tensor) -> Tensor:
        return self._descent.step(theta, q, self._c.rate)

    def adopt_statistics(self, share: float = 1.0) -> None:
        first, *counters = self._c.network.keep()
        self._buffers = [torch.lerp(self._buffers[0], first, share), *counters]

    def use(self, theta: Tensor) -> None:
        self._c.theta = theta.detach()  # apart from what the client received, which has other running statistics
        self._c.network.restore(self._buffers)

    @property
    def state(self) -> Vectors:
        """State that the client keeps, besides the parameters, which the method keeps."""
        return Vectors({SECOND_BUFFERS: self._buffers[0]}) if self._buffers[0].numel() else Vectors()

    @contextlib.contextmanager
    def _take_its_place(self) -> Iterator[None]:
        """Let the client compute with this model's running statistics and step, instead of its own."""
        c, buffers = self._c, self._c.network.keep()
        if self._batch is not c.x:
            self._batch, self._now = c.x, _Step(size=c._now.size)
        c._now, self._now, c._in_second = self._now, c._now, True
        c.network.restore(self._buffers)
        purpose, self._calls = f"second torch {self._calls}", self._calls + 1
        try:
            with c.population.key_draws(purpose, c._round, c.id, c.theta.device):
                yield
        finally:
            self._buffers = c.network.keep()
            c.network.restore(buffers)
            c._now, self._now, c._in_second = self._now, c._now, False


def _is_same(theta: Tensor, other: object) -> bool:
    """Return True if another tensor is theta, or has its memory."""
    if not isinstance(other, Tensor) or other.numel() != theta.numel():
        return False
    return other is theta or (other.device == theta.device and other.data_ptr() == theta.data_ptr())
