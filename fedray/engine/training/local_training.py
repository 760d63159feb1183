"""Local training: batches, learning rate, clipping, weight decay, momentum; and personal models. Independent of Ray."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, ParameterGroup, PerClient, Sum
from fedray.algorithms.descent import SGD, Descent, Optimiser, Rule
from fedray.algorithms.local_optimizers import AdamW, Muon
from fedray.client import SECOND_BUFFERS, LocalClient, Population
from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.common.vectors import Vectors, bring
from fedray.config import Training
from fedray.engine.exact_sum import REST
from fedray.engine.guard import (
    ask,
    guard,
    let_assign,
    refuse_again,
    refuse_changed,
    refuse_lost,
    refuse_names,
    refuse_other,
    start_state,
)
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.state import load_state
from fedray.engine.training.batches import Counts, Drawn, draw_batches
from fedray.models.network import Network
from fedray.partitions.shards import Shards

OWN, OWN_BUFFERS = "own", "own_buffers"
"""Names, in a client's state, of the parameters and running statistics that it keeps (`Algorithm.keeps`)."""
OPTIMIZER = "optimizer_"
"""Beginning of the names, in a client's state, of the vectors of its local optimiser (`adamw.state: client`)."""
LAST = "last_local"
"""Name in a client's state of its last local model, of the shared parameters (`training.relaxed_start`)."""
Watch = Callable[[LocalClient, Tensor], None]
T = TypeVar("T")
Turns = Generator[None, None, T]
"""A training that yields after each of its steps, and returns T."""
RESERVED = {"update", "shared_update", "buffers", "train_loss", "sums"}
"""Names of uploads that are reserved for fedray."""


@dataclass(frozen=True, kw_only=True)
class LocalTrainer:
    """Trains the clients of a run in one process, one at a time, and makes their personal models.

    During a client's training the network holds that client's running statistics. stepping: another method whose server
    step is taken and which may need uploads of its own; None for none.
    """

    algorithm: Algorithm
    training: Training
    network: Network
    population: Population
    shards: Shards
    stepping: Algorithm | None = None

    def start(self, broadcast: Broadcast, task: ClientTask, relaxed: bool = False) -> LocalClient:
        """Return a client before its first step: at x, except for the parts it keeps. The network gets its buffers."""
        algorithm, training, network = self.algorithm, self.training, self.network
        indices, kept = self.shards[task.client], load_state(task.state)
        counts = self.count(len(indices))
        state = Vectors(kept)
        if not kept:
            with self._key_start(task.client, "client_state"):
                state = _bring_all(start_state(algorithm, "client_state", network.initial), network.theta)
            self._refuse_names(state)
        theta, buffers = self.relax(broadcast.theta, state) if relaxed else broadcast.theta, broadcast.buffers
        if algorithm.keeps != "none":
            own, own_buffers = network.index(algorithm.keeps), network.find_buffers(algorithm.keeps)
            if (given := state.get(OWN)) is None:
                with self._key_start(task.client, "newcomers_own"):
                    given = algorithm.newcomers_own(network.initial[own], broadcast.message)
                refuse_other(algorithm, "gives newcomers_own", given, network.initial[own])
            theta = theta.index_copy(0, own, given)
            buffers = buffers.index_copy(0, own_buffers, state.get(OWN_BUFFERS, buffers[own_buffers]))
        network.reset(buffers)
        return LocalClient(
            id=task.client,
            population=self.population,
            network=network,
            indices=indices,
            theta_0=theta,
            message=Vectors(broadcast.message),
            state=state,
            _round=broadcast.round,
            steps=counts.steps,
            per_epoch=counts.per_epoch,
            samples=len(indices),
            total_samples=self.population.total_samples,
            total_clients=self.population.clients,
            layout=network.layout,
            input_shape=self.population.samples.input_shape,
            lr=broadcast.lr,
            momentum=training.momentum,
            weight=task.weight,
            first=not kept,
            batch_size=counts.batch_size,
            optimiser=self._optimiser,
            counted_steps=counts.counted_steps,
            first_lr=training.lr,
            shares=algorithm.shares,
            shuffle=training.shuffle,
        )

    def _key_start(self, client: int, hook: str) -> AbstractContextManager[None]:
        """Key the draws of a user's hook for a client that begins: tested or trained, in any round."""
        if not self.population.own_code or not self.algorithm.overrides(hook):
            return contextlib.nullcontext()
        return self.population.key_draws(f"start {hook}", 0, client, self.network.theta.device)

    def relax(self, x: Tensor, state: Vectors) -> Tensor:
        """Return x + β (x - the client's last local model) on the shared parameters, x elsewhere."""
        if not (beta := self.training.relaxed_start):
            return x
        shared = self.network.index(self.algorithm.shares)
        last = state.get(LAST, self.network.initial[shared])
        return x.index_copy(0, shared, x[shared] + beta * (x[shared] - last))

    def train(
        self, broadcast: Broadcast, task: ClientTask, watch: Watch | None = None, drawn: Drawn | None = None
    ) -> tuple[LocalClient, dict[str, Sum | PerClient]]:
        """Make all local steps of one client, as `iter_steps` does."""
        return exhaust(self.iter_steps(broadcast, task, watch, drawn))

    def iter_steps(
        self, broadcast: Broadcast, task: ClientTask, watch: Watch | None = None, drawn: Drawn | None = None
    ) -> Turns[tuple[LocalClient, dict[str, Sum | PerClient]]]:
        """Train one client on its batches (as `batches.draw_ahead` gives them, or drawn here), and yield after each
        local step.

        `watch` is called with the client and the direction before each step. Returns the client (its new state, its
        update) and every upload, including `update` and `buffers`. The update holds the shared parameters only, in
        theta's order; `buffers` the running statistics that clients do not keep.
        """
        algorithm, network = self.algorithm, self.network
        c = self.start(broadcast, task, relaxed=True)
        statistics = c.state.get(SECOND_BUFFERS)
        with _seed(c, "torch"), self.guard(c):  # dropout
            rule = yield from self._take_steps(c, watch=watch, drawn=drawn)
            c.stepped = c.copy() if broadcast.measured else None
            uploads = self.finish(c, task.weight)
        if c.first:
            self._refuse_names(c.state)
        own, own_buffers = network.index(algorithm.keeps), network.find_buffers(algorithm.keeps)
        exchanged = network.find_buffers(algorithm.averaged_statistics)
        if own.numel():
            c.state[OWN] = c.theta[own]
        if "second" in vars(c):
            c.state |= c.second.state
        elif statistics is not None:
            c.state[SECOND_BUFFERS] = statistics
        if self._keeps_moments:
            c.state |= {OPTIMIZER + name: v for name, v in rule.state.items()}
        if self.training.relaxed_start:
            c.state[LAST] = c.theta[network.index(algorithm.shares)]
            if self.training.relaxed_average == "models":
                update = c.state[LAST] - broadcast.theta[network.index(algorithm.shares)]
                uploads["update"] = Sum(update, task.weight)
        if own_buffers.numel():
            c.state[OWN_BUFFERS] = network.buffers[own_buffers]
        if exchanged.numel():
            uploads["buffers"] = Sum((network.buffers - broadcast.buffers)[exchanged], task.weight)
        return c, uploads

    def personalise(self, broadcast: Broadcast, task: ClientTask, epochs: int, newcomer: bool = False) -> LocalClient:
        """Make a client's personal model (`Algorithm.personal`) and prepare it; the run itself does not change.

        Methods that fine-tune do so for `epochs`. If they do not, a newcomer, which has never trained, gets its part of
        the model by plain gradients, the rest as received, if clients keep a part; otherwise it trains as in its first
        round, with this many local epochs. Returns the client, with its personal model at `theta`; the network holds
        its buffers.
        """
        method = self.algorithm
        with self._key_start(task.client, "finetuning"):
            how = method.finetuning
        part = how.part if method.personal == "tuned" else method.keeps
        tunes = method.personal == "tuned" or (newcomer and method.keeps not in ("none", "all"))
        trains = not tunes and (newcomer or method.personal == "trained")
        trainer = replace(self, training=self._make_tuning(epochs)) if tunes or newcomer else self
        c = trainer.start(broadcast, task, relaxed=trains)
        with _seed(c, "personal torch"), self.guard(c):
            if tunes and epochs:
                if (rule := how.rule(c)) is not None:
                    refuse_again(method, "finetuning", rule)
                steps = trainer._descend(c, "personal ", how.direction, lambda c: part, how.rate, rule=rule)
                exhaust(steps)
            elif trains:
                exhaust(trainer._take_steps(c, "personal "))
                if newcomer:
                    trainer.finish(c, task.weight)  # it sets the state from which a personal model is prepared
            let_assign(method, "prepare", method.prepare, c)
        return c

    def _make_tuning(self, epochs: int) -> Training:
        """Return the training section for this many epochs of fine-tuning."""
        plain = {"clip_norm": None, "weight_decay": 0.0, "momentum": 0.0, "optimizer": "sgd"}
        changed = plain if self.algorithm.finetuning.plain else {}
        return self.training.model_copy(update={"local_epochs": epochs, "local_steps": None, **changed})

    def _refuse_names(self, state: Vectors) -> None:
        """Refuse a method's state with a name that this run needs for fedray. Raises UserError."""
        taken = {SECOND_BUFFERS} | ({OWN, OWN_BUFFERS} if self.algorithm.keeps != "none" else set())
        taken |= {LAST} if self.training.relaxed_start else set()
        taken |= {name for name in state if name.startswith(OPTIMIZER)} if self._keeps_moments else set()
        refuse_names(self.algorithm, "c", state, taken)

    @property
    def _keeps_moments(self) -> bool:
        """True if each client keeps the vectors of its local optimiser."""
        return self.training.optimizer == "adamw" and self.training.adamw.state == "client"

    def _make_rule(self) -> Rule:
        """Return the local optimiser of a round, without anything carried over."""
        training = self.training
        if training.optimizer == "adamw":
            return AdamW(*training.adamw.betas, training.adamw.eps)
        if training.optimizer == "muon":
            return Muon(training.muon, self.network.layout)
        return SGD(training.momentum)

    def _take_steps(
        self, c: LocalClient, purpose: str = "", watch: Watch | None = None, drawn: Drawn | None = None
    ) -> Turns[Rule]:
        """Call `begin` and take all local steps; return the local optimiser. purpose: keys the draws."""
        algorithm, training = self.algorithm, self.training
        c.step_rate = lambda c: c.lr * training.lr_decay_within**c.epoch  # of passes in begin
        let_assign(algorithm, "begin", algorithm.begin, c)
        rule = ask(algorithm, "local_optimizer", algorithm.local_optimizer, c)
        if rule is None:
            rule = self._make_rule()
            if self._keeps_moments:  # what the client kept of it
                rule.state |= {n.removeprefix(OPTIMIZER): v for n, v in c.state.items() if n.startswith(OPTIMIZER)}
        else:
            refuse_again(algorithm, "local_optimizer", rule)
        yield from self._descend(
            c,
            purpose,
            algorithm.direction,
            algorithm.trained_part,
            lambda c: algorithm.rate(c) * training.lr_decay_within**c.epoch,
            self.weigh_decoupled(c),
            rule,
            watch,
            drawn,
        )
        return rule

    def _descend(
        self,
        c: LocalClient,
        purpose: str,
        direction: Callable[[Client], Tensor],
        trained_part: Callable[[Client], ParameterGroup],
        rate: Callable[[Client], float],
        decoupled_weight: float = 0.0,
        rule: Rule | None = None,
        watch: Watch | None = None,
        drawn: Drawn | None = None,
    ) -> Turns[None]:
        """Take the canonical step on direction q, K_i times: clip, d by the local optimiser, y <- y - η_k d.

        `rate` gives η_k, `decoupled_weight` is λ of a term λ y that is not clipped, `rule` the local optimiser (by
        default a fresh one). `watch` sees q, 0 on what the step does not change. `purpose` keys the draws of batches
        that are not `drawn`.
        """
        descent = Descent(c.optimiser, rule)
        c.step_rate = rate
        for k, batch in enumerate(self._iter_batches(c, purpose, drawn)):
            self.step(c, descent, k, batch, direction, trained_part, decoupled_weight, watch)
            yield

    def step(
        self,
        c: LocalClient,
        descent: Descent,
        k: int,
        batch: tuple[Tensor, Tensor],
        direction: Callable[[Client], Tensor],
        trained_part: Callable[[Client], ParameterGroup],
        decoupled_weight: float,
        watch: Watch | None = None,
    ) -> None:
        """Make step k on a batch; the other arguments as in `_descend`."""
        c.start_step(k, *batch)
        part = ask(self.algorithm, "trained_part", trained_part, c)
        c.in_step = True
        q = ask(self.algorithm, "direction", direction, c)
        c.in_step = False
        refuse_other(self.algorithm, "gives a direction", q, c.theta)
        rate = ask(self.algorithm, "rate", c.step_rate, c)
        mask = None if part == "all" else c.network.mask(part)
        if watch is not None:
            watch(c, q if mask is None else q * mask)
        c.theta = descent.step(c.theta, q, rate, mask, decoupled_weight)

    def weigh_decoupled(self, c: LocalClient) -> float:
        """Return λ of a term λ y of the direction that is not clipped; 0 unless `training.clip_scope` asks for it."""
        if self.training.clip_scope != "code":
            return 0.0
        return ask(self.algorithm, "decoupled_weight", self.algorithm.decoupled_weight, c)

    def _iter_batches(self, c: LocalClient, purpose: str, drawn: Drawn | None) -> Iterable[tuple[Tensor, Tensor]]:
        """Return inputs and labels of each step; what is not drawn or gathered yet is, when a step needs it."""
        if drawn is not None and drawn.batches is not None:
            return drawn.batches
        seed = c.population.seed
        augment = generator(seed, f"{purpose}augment", c._round, c.id) if c.population.samples.augment else None
        order = draw_batches(self.training, c.samples, seed, c._round, c.id, purpose)
        return c.held.iter_batches(order if drawn is None else drawn.order, augment)

    def gather(self, clients: Sequence[int], positions: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return a batch of each client, not augmented: inputs `(S, n, ...)` and labels `(S, n)`.

        `positions`: n positions in the shard of each, int64.
        """
        every = [self.shards[client][chosen] for client, chosen in zip(clients, positions, strict=True)]
        x, y = self.population.samples.make_batch(np.concatenate(every))
        return x.view(len(clients), -1, *x.shape[1:]), y.view(len(clients), -1)

    def finish(self, c: LocalClient, weight: float) -> dict[str, Sum | PerClient]:
        """Set a client's state after its last step, and return its uploads: the methods' and the update.

        Raises UserError if a method's upload has a name that is taken.
        """
        uploads: dict[str, Sum | PerClient] = {}
        for method in (self.algorithm, *([self.stepping] if self.stepping else [])):
            with refuse_lost(method, "upload", c):
                sent = let_assign(method, "upload", method.upload, c)
            for name, upload in sent.items():
                if name in RESERVED | uploads.keys() or name.endswith(REST):
                    raise UserError(
                        f"algorithm: {method.name}.upload gives an upload {name!r}, fedray's own; rename it"
                    )
                there = bring(upload.vector, c.theta.device)
                uploads[name] = upload if there is upload.vector else replace(upload, vector=there)
        c.state |= _bring_all(c.state, c.theta)
        for name, made in c.made_updates.items():
            refuse_changed(self.algorithm, name, made, 0)
        if self.algorithm.shares != "none":
            uploads["update"] = Sum(c.shared_update, weight)
        return uploads

    def guard(self, c: LocalClient) -> AbstractContextManager[None]:
        """Refuse changes of the client's inputs in place within a block."""
        given = {"c.theta_0": c.theta_0, "the initial parameters": c.network.initial}
        given |= {f"c.message.{name}": v for name, v in c.message.items()}
        return guard(self.algorithm, given, "c.state", c.state)

    @cached_property
    def count(self) -> Callable[[int], Counts]:
        """Function from a client's number of samples to its steps and batches in a round, which remembers them."""
        training, of_client_0 = self.training, len(self.shards[0])

        @cache
        def count(samples: int) -> Counts:
            return Counts(
                training.count_steps(samples),
                training.count_steps_per_epoch(samples),
                training.find_largest_batch(samples),
                training.find_counted_steps(samples, of_client_0),
            )

        return count

    @cached_property
    def _optimiser(self) -> Optimiser:
        """Clipping, weight decay and the local optimiser of all clients."""
        training, layout, decayed = self.training, self.network.layout, None
        if training.weight_decay_on != "all":
            decayed = layout.mask(lambda name: name.rpartition(".")[2] != "bias").to(self.network.initial.device)
        return Optimiser(training.clip_norm, training.weight_decay, decayed, self._make_rule)


def _bring_all(state: Vectors, theta: Tensor) -> Vectors:
    """Return a state whose vectors are where theta is."""
    return Vectors({name: bring(vector, theta.device) for name, vector in state.items()})


def exhaust(steps: Turns[T]) -> T:
    """Make all steps of a training; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _seed(c: LocalClient, purpose: str) -> AbstractContextManager[None]:
    """Key draws by the client within a block."""
    return c.population.key_draws(purpose, c._round, c.id, c.theta.device)
