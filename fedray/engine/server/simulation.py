"""One round: draw a cohort, train it, reduce, aggregate, commit, record. `state` and `restore` are complete."""

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Received, Server
from fedray.common.errors import Diverged, warn_once
from fedray.common.rng import key_draws
from fedray.common.vectors import Vectors
from fedray.engine.exact_sum import is_finite
from fedray.engine.guard import ask, ask_server, detach, guard, refuse_lost, refuse_names, refuse_other, start_state
from fedray.engine.messages import Broadcast, ClientTask, Reply, count_bytes, join
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend
from fedray.engine.sampling import draw_cohort, weigh_cohort
from fedray.engine.server.evaluate import PREVIOUS_THETA, Tester, get_tested_theta
from fedray.engine.server.probing import Trained, measure_round
from fedray.engine.server.profile import Profile
from fedray.engine.state import State, refuse_other_weights

log = logging.getLogger("fedray")
T = TypeVar("T")


class Simulation:
    """One run on a backend. The server's vectors stay on the CPU.

    state: the run after the last whole round. Neither the state nor its tensors are ever modified in place.
    """

    def __init__(self, problem: Problem, backend: Backend, profile: Profile | None = None) -> None:
        self.backend, self.profile = backend, profile
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        self.probes = config.evaluation.probes
        network = problem.build_network("cpu")
        self.problem = problem = replace(problem, model_sha256=network.sha256)
        self.layout = network.layout
        self.counted = network.counted
        self._exchanged_buffers = network.find_buffers(config.algorithm.averaged_statistics)
        self._shared = network.index(config.algorithm.shares)
        backend.open(problem)
        theta = network.theta.clone()
        with self._key_draws("server state"):
            server = start_state(config.algorithm, "server_state", theta)
        refuse_names(config.algorithm, "server", server, (PREVIOUS_THETA,))
        self.state = State(0, theta, network.buffers.clone(), server, frozen=network.frozen_sha256)

    @property
    def done(self) -> bool:
        """True once all rounds are made."""
        return self.state.round >= self.problem.config.training.rounds

    def step(self) -> None:
        """Make one round.

        Raises:
            Diverged: numbers went wrong. In training, the state is that of the previous round; in testing, of this one.
        """
        started = time.perf_counter()
        if self.profile is not None:
            self.profile.begin()
        t = self.state.round
        trained = self._train(t, self.draw_cohort(t))
        self._commit(trained, self._aggregate(trained), started)
        self.lap("reduce")
        if self._is_evaluated(self.state.round):
            self._record(trained)
        self.lap("evaluate")

    def draw_cohort(self, t: int) -> np.ndarray:
        """Draw the clients of round t (from 0), ascending."""
        return draw_cohort(self.problem.config, self.problem.split.train.sizes, t)

    def _train(self, t: int, cohort: np.ndarray) -> Trained:
        """Train the cohort; if `training.on_divergence` is `drop`, repeat without diverged clients."""
        s, drawn = self.state, len(cohort)
        while True:
            server = self._make_server(t, len(cohort))
            with self._key_draws("weights", t):
                weights = weigh_cohort(
                    self.problem.config, self.problem.split.train.sizes, cohort, lambda: self._label_counts
                )
            broadcast = self._make_broadcast(server, bool(self.probes) and self._is_evaluated(t + 1))
            tasks = [ClientTask(i, w, s.clients.get(i, Vectors())) for i, w in weights.items()]
            self.lap("broadcast")
            parts = self.backend.train(broadcast, tasks)
            self.lap("local")
            reply = join(parts)
            if not reply.diverged:
                return Trained(weights, broadcast, parts, reply, dropped=drawn - len(cohort))
            cohort = self._leave_out(t, cohort, reply)  # the round is made again, as if they had not been drawn

    def _aggregate(self, trained: Trained) -> Server:
        """Let the algorithm make the new server."""
        config, t = self.problem.config, self.state.round
        server = self._make_server(t, len(trained.weights))
        received = Received(Vectors(trained.uploads, update=self._spread_update(trained.update)))
        if trained.update is not None:
            received.sums["shared_update"] = trained.update
        given = {"server.theta": self.state.theta, **{f"got.{name}": v for name, v in received.sums.items()}}
        with self._key_draws("server", t), guard(config.algorithm, given, "server.state", server.state):
            stepping = config.stepping
            server.server_lr *= ask(stepping, "server_step", lambda s: stepping.server_step(s, received), server)
            with refuse_lost(config.algorithm, "aggregate", server):
                config.algorithm.aggregate(server, received)
            refuse_other(config.algorithm, "sets server.theta in aggregate to a value", server.theta, self.state.theta)
        refuse_names(config.algorithm, "server", server.state, (PREVIOUS_THETA,))
        server.theta = detach("theta", server.theta)
        server.state = Vectors({name: detach(f"server.state.{name}", vector) for name, vector in server.state.items()})
        if ":" in config.algorithm.name and server.theta is self.state.theta and received.update.any():
            warn_once(f"{config.algorithm.name}: aggregate leaves server.theta as it was, so the model does not move")
        for name, vector in (("theta", server.theta), *server.state.items()):
            if not is_finite(vector):
                raise Diverged(t + 1, None, f"{name} is not finite after aggregation")
        return server

    def _commit(self, trained: Trained, server: Server, started: float) -> None:
        """Move to the next state, in one assignment: after a failure above, the state is unchanged."""
        s, moved = self.state, trained.buffers
        previous = {PREVIOUS_THETA: s.theta} if self.problem.config.stepping.tests_average else {}
        changed = {i: state for i, state in trained.reply.states.items() if state}
        emptied = s.clients.keys() & (trained.reply.states.keys() - changed.keys())
        self.state = replace(
            s,
            round=s.round + 1,
            theta=server.theta,
            buffers=s.buffers if moved is None else s.buffers.index_add(0, self._exchanged_buffers, moved),
            server=Vectors(server.state, **previous),
            clients=_update(s.clients, changed, emptied),
            active=_update(s.active, dict.fromkeys(changed, s.round + 1), emptied),
            seconds=s.seconds + time.perf_counter() - started,
            dropped=s.dropped + trained.dropped,
            sent=(s.sent[0] + self._count_bytes_received(trained), s.sent[1] + trained.reply.sent),
        )

    def _count_bytes_received(self, trained: Trained) -> int:
        """Return the bytes that the clients of a round receive: parameters, running statistics and message.

        Parameters that clients keep are not sent.
        """
        broadcast, whole = trained.broadcast, len(self._shared) == self.layout.size
        each = count_bytes([*broadcast.message.values(), *([broadcast.theta] * whole)])
        each += 0 if whole else len(self._shared) * broadcast.theta.element_size()
        each += len(self._exchanged_buffers) * broadcast.buffers.element_size()
        return len(trained.weights) * each

    def _record(self, trained: Trained) -> None:
        """Test the new state, and add a row to the history."""
        started = time.perf_counter()
        tested = self.tester.test()
        row = {"round": self.state.round, **tested.row, "train_loss": trained.train_loss}
        if self.probes:
            row |= measure_round(self.problem, self.layout, self._shared, self.state, trained, tested.sums, row)
        row["lr"] = trained.broadcast.lr
        if self.problem.config.training.on_divergence == "drop":
            row["dropped_clients"] = float(self.state.dropped)
        s = self.state
        row["megabytes_sent"] = sum(s.sent) / 1e6
        self.state = replace(
            s,
            history=[*s.history, row],
            tables={**s.tables, **tested.tables},
            evaluation_seconds=s.evaluation_seconds + time.perf_counter() - started,
        )

    def lap(self, part: str) -> None:
        """Attribute the time since the last call to this part, if the run is profiled."""
        if self.profile is not None:
            self.profile.lap(part)

    def _is_evaluated(self, round: int) -> bool:
        config = self.problem.config
        return config.evaluation.is_due(round, config.training.rounds)

    def _key_draws(self, purpose: str, t: int = 0) -> AbstractContextManager[None]:
        """Key the draws of the server's hooks within a block."""
        return key_draws(self.problem.config.has_own_code, self.problem.config.seed, purpose, t)

    def _make_server(self, t: int, cohort: int) -> Server:
        """Return the server of round t, with copies, so that a round that fails leaves no trace."""
        s, training = self.state, self.problem.config.training
        return Server(
            theta=s.theta,
            state=Vectors({name: v for name, v in s.server.items() if name != PREVIOUS_THETA}),
            layout=self.layout,
            clients=self.problem.config.clients.total,
            cohort=cohort,
            round=t,
            lr=training.compute_lr(max(t, 0)),
            server_lr=training.server_lr,
            first_lr=training.lr,
            lr_decay=training.compute_lr_change(max(t, 0)),
        )

    def _make_broadcast(self, server: Server, measured: bool = False, made: int | None = None) -> Broadcast:
        """Return what clients receive. made: the round that keys all draws, if not the server's."""
        algorithm, t = self.problem.config.algorithm, server.round if made is None else made
        given = {"server.theta": server.theta}
        with self._key_draws("message", t), guard(algorithm, given, "server.state", server.state):
            theta = ask_server(algorithm, "broadcast", algorithm.broadcast, server)
            refuse_other(algorithm, "gives a broadcast", theta, server.theta)
            message = ask_server(algorithm, "message", algorithm.message, server)
        return Broadcast(
            round=t,
            lr=server.lr,
            theta=detach("theta", theta),
            buffers=self.state.buffers,
            message=Vectors({name: detach(name, vector) for name, vector in message.items()}),
            cohort=server.cohort,
            measured=measured,
        )

    def _spread_update(self, update: Tensor | None) -> Tensor:
        """Expand the update of the shared parameters to all parameters `(P,)`; zero elsewhere."""
        shares = self.problem.config.algorithm.shares
        if update is None:
            return torch.zeros(self.layout.size)
        if shares == "all":
            return update
        return torch.zeros(self.layout.size).index_copy_(0, self._shared, update)

    @property
    def tester(self) -> Tester:
        """The tests of the current state."""
        return Tester(self.problem, self.backend, self.state, self._make_personal_broadcast)

    def _make_personal_broadcast(self, clients: int) -> Broadcast:
        """Return what this many clients would receive now, with learning rate and draws of the round just made."""
        made = self.state.round - 1
        server = replace(self._make_server(made, clients), theta=get_tested_theta(self.state), round=made + 1)
        return self._make_broadcast(server, made=made)

    @cached_property
    def _label_counts(self) -> np.ndarray:
        """Each client's number of samples of each class, int64 `(N, C)`."""
        data = self.problem.data
        return self.problem.split.train.count_labels(data.y_train, data.num_classes)

    def restore(self, state: State) -> None:
        """Continue from a state of the same configuration. Raises UserError if its frozen weights are other ones."""
        refuse_other_weights(state, self.state.theta, self.state.frozen)
        self.state = state

    def _leave_out(self, t: int, cohort: np.ndarray, reply: Reply) -> np.ndarray:
        """Return the cohort without the clients whose numbers went wrong. Raises Diverged if that is so configured."""
        first = min(reply.diverged)  # the same client, however many actors reported
        error = Diverged(t + 1, first, reply.diverged[first])
        left = cohort[~np.isin(cohort, list(reply.diverged))]
        if self.problem.config.training.on_divergence != "drop" or not len(left):
            raise error
        for client, what in sorted(reply.diverged.items()):
            log.warning("round %d: client %d is dropped: %s", t + 1, client, what)
        return left


def _update(kept: Mapping[int, T], changed: Mapping[int, T], emptied: Collection[int]) -> Mapping[int, T]:
    """Return what is known of clients after a round, without those whose state the method has emptied."""
    whole = {**kept, **changed} if changed else kept
    return {i: one for i, one in whole.items() if i not in emptied} if emptied else whole
