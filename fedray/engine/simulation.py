"""One round: draw a cohort, train it, reduce, aggregate, commit, record. `state()` and `restore()` are complete."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Received, Server
from fedray.common.errors import Diverged, UserError
from fedray.common.rng import torch_draws
from fedray.common.vectors import Vectors
from fedray.engine.backend import Backend
from fedray.engine.exact_sum import finite, total
from fedray.engine.guard import unchanged
from fedray.engine.messages import Broadcast, ClientTask, Reply, size_in_bytes
from fedray.engine.problem import Problem
from fedray.engine.profile import Profile
from fedray.engine.result import Result
from fedray.engine.sampling import cohort_weights, draw_cohort
from fedray.engine.state import ClientState, State, StateRef, loaded
from fedray.engine.testing import BEFORE, Tester, global_model
from fedray.evaluation.probe import EvaluatedRound, checked
from fedray.evaluation.probes import over_cohort

log = logging.getLogger("fedray")


@dataclass(frozen=True)
class Trained:
    """A round's local training.

    Attributes:
        server: what the server is in this round, to be aggregated into.
        weights: client -> π_i, of those that took part.
        parts: what each process returned.
        reply: what is kept of it per client.
        dropped: number of clients whose numbers went wrong.
        broadcast: what each client received.
        replies: what the server answers each client once it has aggregated, name -> `(M, ...)` by ascending id.
        beside: what the engine keeps for itself among the server's vectors.
    """

    server: Server
    weights: dict[int, float]
    parts: Sequence[Reply]
    reply: Reply
    dropped: int
    broadcast: Broadcast
    replies: Vectors = field(default_factory=Vectors)
    beside: Vectors = field(default_factory=Vectors)


class Simulation:
    """One run on a backend. The server's vectors stay on the CPU."""

    def __init__(self, problem: Problem, backend: Backend, profile: Profile | None = None) -> None:
        self.problem, self.backend, self.profile = problem, backend, profile
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        self.probes = config.evaluation.probes
        network = problem.network("cpu")
        self.layout = network.layout
        self._exchanged_buffers = network.buffers_beside(config.algorithm.keeps)
        backend.open(problem)
        theta = network.theta.clone()
        with torch_draws(config.seed, "server state"):
            server = config.algorithm.server_state(theta)
        self.replies = Vectors()
        """What the clients of the last round were told each for itself, `(M, ...)` by ascending id."""
        self._state = State(0, theta, network.buffers.clone(), server)

    @property
    def done(self) -> bool:
        """Whether all rounds are made."""
        return self._state.round >= self.problem.config.training.rounds

    def step(self) -> None:
        """Make one round.

        Raises:
            Diverged: numbers went wrong. In training the state is that of the round before; in testing that after the
                round.
        """
        started = time.perf_counter()
        if self.profile is not None:
            self.profile.begin()
        cohort = self.cohort(self._state.round)
        trained = self._train(cohort)
        sums = self._reduce(trained)
        self._aggregate(trained, sums)
        self._commit(trained, sums, started)
        self.lap("reduce")
        if self._is_evaluated(self._state.round):
            self._record(trained, sums)
        self.lap("evaluate")

    def cohort(self, t: int) -> np.ndarray:
        """The clients of round t (from 0), ascending."""
        return draw_cohort(self.problem.config, self.problem.shards.sizes, t)

    def _train(self, cohort: np.ndarray) -> Trained:
        """Train the cohort; where `training.on_divergence` is `drop`, again without those whose numbers went wrong."""
        s, drawn = self._state, len(cohort)
        while True:
            server = self._server(s.round, len(cohort))
            weights = cohort_weights(self.problem.config, self.problem.shards.sizes, cohort, self._counts)
            broadcast = self._broadcast(server, bool(self.probes) and self._is_evaluated(s.round + 1))
            tasks = [ClientTask(i, w, s.clients.get(i, Vectors())) for i, w in weights.items()]
            self.lap("broadcast")
            parts = self.backend.train(broadcast, tasks)
            self.lap("local")
            reply = joined(parts)
            if not reply.diverged:
                return Trained(server, weights, parts, reply, drawn - len(cohort), broadcast)
            cohort = self._without(s.round, cohort, reply)  # the round is made again, as if they had not been drawn

    def _reduce(self, trained: Trained) -> dict[str, Tensor]:
        """The uploads of the round by name: exact sums over the cohort, and stacks of what is not summed."""
        return total([part.sums for part in trained.parts]) | _stacked(trained.reply.each)

    def _aggregate(self, trained: Trained, sums: Mapping[str, Tensor]) -> None:
        """Let the algorithm make the new server of `trained.server`."""
        server, t = trained.server, self._state.round
        got = {name: v for name, v in sums.items() if name not in ("train_loss", "buffers", "squares")}
        if extrapolation := self.problem.config.extrapolation:
            decay = server.lr / self.problem.config.training.lr
            server.server_lr *= extrapolation.factor(sums["squares"], sums["update"], decay, server.cohort)
            if extrapolation.test == "average":
                trained.beside[BEFORE] = self._state.theta
        got["update"] = self._whole(sums.get("update"))
        algorithm = self.problem.config.algorithm
        with torch_draws(self.problem.config.seed, "server", t), unchanged(algorithm, self._kept()):
            algorithm.aggregate(server, Received(Vectors(got)))
            trained.replies.update(algorithm.reply(server, Received(Vectors(got))))
        for name, vector in (("theta", server.theta), *server.state.items(), *trained.replies.items()):
            if not finite(vector):
                raise Diverged(t + 1, None, f"{name} is not finite after aggregation")

    def _kept(self) -> dict[str, Tensor]:
        """What the server is before aggregation, by the names that a method has for it."""
        s = self._state
        return {"server.theta": s.theta} | {f"server.state.{name}": v for name, v in s.server.items()}

    def _commit(self, trained: Trained, sums: Mapping[str, Tensor], started: float) -> None:
        """Go on to the next state, in one assignment: whatever failed above has left the state as it was."""
        s, server = self._state, trained.server
        self.replies = trained.replies
        changed = {i: state for i, state in self._answered(trained).items() if state}
        self._state = replace(
            s,
            round=s.round + 1,
            theta=server.theta,
            buffers=s.buffers.index_add(0, self._exchanged_buffers, sums["buffers"])
            if "buffers" in sums
            else s.buffers,
            server=Vectors(server.state, **trained.beside),
            clients={**s.clients, **changed} if changed else s.clients,
            active={**s.active, **dict.fromkeys(changed, s.round + 1)} if changed else s.active,
            seconds=s.seconds + time.perf_counter() - started,
            dropped=s.dropped + trained.dropped,
            sent=None if s.sent is None else (s.sent[0] + self._received(trained), s.sent[1] + trained.reply.sent),
        )

    def _received(self, trained: Trained) -> int:
        """Bytes that the clients of a round receive: parameters, running statistics, the message, the answer.

        What they keep of their own is not sent.
        """
        broadcast, whole = trained.broadcast, len(self._shared) == self.layout.size
        each = size_in_bytes([*broadcast.message.values(), *([broadcast.theta] * whole)])
        each += 0 if whole else len(self._shared) * broadcast.theta.element_size()
        each += len(self._exchanged_buffers) * broadcast.buffers.element_size()
        return len(trained.weights) * each + size_in_bytes(trained.replies.values())

    @cached_property
    def _shared(self) -> Tensor:
        """The positions in theta of what clients and server exchange."""
        return self.layout.part(self.problem.config.algorithm.shares).nonzero().flatten()

    def _answered(self, trained: Trained) -> Mapping[int, ClientState]:
        """The new states, and in them what the server answers each client."""
        states, answers = trained.reply.states, trained.replies
        if not answers:
            return states
        return {
            i: Vectors(loaded(states[i]) | {name: stack[k].clone() for name, stack in answers.items()})
            for k, i in enumerate(sorted(trained.weights))
        }

    def _record(self, trained: Trained, sums: Mapping[str, Tensor]) -> None:
        """Test the new state, and add a row to the history."""
        started = time.perf_counter()
        tested = self.tester.test()
        row = {"round": self._state.round, **tested.row, "train_loss": float(sums["train_loss"])}
        if self.probes:
            row |= self._probed(trained, sums.get("update"), tested.sums, row)
        row["lr"] = trained.server.lr
        if self._drops:
            row["dropped_clients"] = float(self._state.dropped)
        s = self._state
        if s.sent is not None:
            row["megabytes_sent"] = sum(s.sent) / 1e6
        self._state = replace(
            s,
            history=[*s.history, row],
            tables={**s.tables, **tested.tables},
            evaluation_seconds=None
            if s.evaluation_seconds is None
            else s.evaluation_seconds + time.perf_counter() - started,
        )

    def _probed(
        self, trained: Trained, update: Tensor | None, tested: Mapping[str, Tensor], row: Mapping[str, float]
    ) -> dict[str, float]:
        """What the probes find: means over the cohort, and values of the round."""
        data, measured = self.problem.data, trained.reply.probes
        seen = EvaluatedRound(
            trained.weights,
            measured,
            update,
            (self._state.theta - trained.broadcast.theta)[self._shared],
            global_model(self._state),
            self.layout,
            tested.get("correct", torch.zeros(0)),
            tested,
            torch.from_numpy(np.bincount(data.y_test, minlength=data.num_classes)),
            self._holds,
        )
        found = over_cohort(measured)
        for probe in self.probes:
            found |= checked(probe, probe.of_round(seen), found)
        if taken := found.keys() & {*row, "lr", "dropped_clients", "megabytes_sent"}:
            raise UserError(f"evaluation.probes: {min(taken)} is measured without a probe; rename the probe's metric")
        return found

    def lap(self, part: str) -> None:
        """Where a profile is kept: what has passed since the last call was this part's."""
        if self.profile is not None:
            self.profile.lap(part)

    def _is_evaluated(self, round: int) -> bool:
        config = self.problem.config
        return config.evaluation.is_due(round, config.training.rounds)

    @property
    def _drops(self) -> bool:
        return self.problem.config.training.on_divergence == "drop"

    def _server(self, t: int, cohort: int) -> Server:
        """What the server is in round t: copies, so that a round that fails leaves no trace."""
        s, training = self._state, self.problem.config.training
        return Server(
            s.theta,
            Vectors({name: v for name, v in s.server.items() if name != BEFORE}),
            self.layout,
            self.problem.config.clients.total,
            cohort,
            t,
            training.lr * training.lr_decay**t,
            training.server_lr,
        )

    def _broadcast(self, server: Server, measured: bool = False) -> Broadcast:
        algorithm = self.problem.config.algorithm
        with torch_draws(self.problem.config.seed, "steps", server.round):
            steps = algorithm.drawn_steps(server)
        return Broadcast(
            server.round,
            server.lr,
            algorithm.broadcast(server),
            self._state.buffers,
            algorithm.message(server),
            server.cohort,
            measured,
            steps,
            self.problem.config.extrapolation is not None,
        )

    def _whole(self, update: Tensor | None) -> Tensor:
        """The update of all parameters (P,) from that of the shared ones; zero elsewhere."""
        shares = self.problem.config.algorithm.shares
        if update is None:
            return torch.zeros(self.layout.size)
        if shares == "all":
            return update
        return torch.zeros(self.layout.size).index_copy_(0, self._shared, update)

    def evaluate(self) -> dict[str, float]:
        """Test the state as the configuration asks, probes aside; accuracies in percent. Raises Diverged."""
        return self.tester.test().row

    @property
    def tester(self) -> Tester:
        """The tests of the state as it is now."""
        return Tester(self.problem, self.backend, self._state, self._personal_broadcast)

    def _personal_broadcast(self, clients: int) -> Broadcast:
        """What so many clients would receive now; the learning rate is that of the round just made."""
        server = self._server(self._state.round - 1, clients)
        server.theta = global_model(self._state)
        return self._broadcast(server)

    @cached_property
    def _counts(self) -> np.ndarray | None:
        """Each client's samples of each class, int64 `(N, C)`, where the weights depend on them."""
        data = self.problem.data
        if self.problem.config.disco is None:
            return None
        return self.problem.shards.label_counts(data.y_train, data.num_classes)

    def _holds(self, client: int) -> Tensor:
        """Which classes a client has training samples of, bool `(C,)`."""
        data = self.problem.data
        labels = data.y_train[self.problem.shards[client]]
        return torch.from_numpy(np.bincount(labels, minlength=data.num_classes) > 0)

    def state(self) -> State:
        """The run as it is after the last whole round. Neither it nor its tensors are ever modified in place."""
        return self._state

    def restore(self, state: State) -> None:
        """Go on from a state of the same configuration."""
        self._state = state

    def result(self) -> Result:
        """What the run has given so far; clients' states that lie elsewhere have their hashes."""
        unknown = {i: s for i, s in self._state.clients.items() if isinstance(s, StateRef) and s.sha256 is None}
        if unknown:
            self.backend.hash_states(unknown)
        return Result(self._state.history, self.layout, self._state, self.problem)

    def _without(self, t: int, cohort: np.ndarray, reply: Reply) -> np.ndarray:
        """The cohort less the clients whose numbers went wrong. Raises Diverged: see `training.on_divergence`."""
        first = min(reply.diverged)  # the same client, however many actors reported
        error = Diverged(t + 1, first, reply.diverged[first])
        left = cohort[~np.isin(cohort, list(reply.diverged))]
        if not (self._drops and len(left)):
            raise error
        for client, what in sorted(reply.diverged.items()):
            log.warning("round %d: client %d is dropped: %s", t + 1, client, what)
        return left


def joined(parts: Sequence[Reply]) -> Reply:
    """What is kept per client, of all processes; their sums stay apart."""
    whole = Reply()
    for part in parts:
        whole.states |= part.states
        whole.each |= part.each
        whole.diverged |= part.diverged
        whole.probes |= part.probes
        whole.sent += part.sent
    return whole


def _stacked(each: dict[int, Vectors]) -> dict[str, Tensor]:
    """Per-client uploads, `(M, ...)` by ascending client id."""
    names = {name for vectors in each.values() for name in vectors}
    return {name: torch.stack([each[i][name] for i in sorted(each)]) for name in sorted(names)}
