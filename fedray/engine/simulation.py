"""The round loop: draw a cohort, train it, aggregate, commit, test. `state()` and `restore()` are complete."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Received, Server
from fedray.common.errors import Diverged
from fedray.common.rng import generator, key
from fedray.common.vectors import Vectors
from fedray.engine.backend import Backend
from fedray.engine.exact_sum import finite, total
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.profile import Profile
from fedray.engine.state import State, theta_sha256
from fedray.engine.worker import MAX_TEST_LOSS
from fedray.evaluation import angles, personal
from fedray.evaluation.probes import by_class, drift_between, over_cohort
from fedray.models.network import Layout

log = logging.getLogger("fedray")


@dataclass(frozen=True)
class Result:
    """What a run gives.

    history: a row per evaluated round (`round`, `test_accuracy` in percent, `test_loss`, `train_loss`, `lr`, and what
    `evaluation` asks for beside).
    theta: float32 `(P,)`, in `model.parameters()` order; layout: its slices.
    """

    history: list[dict[str, float]]
    theta: Tensor
    layout: Layout
    state: State

    def summary(self) -> dict[str, Any]:
        """Last round's metrics, hashes and mean seconds per round (evaluation excluded)."""
        last = self.history[-1]
        personal = ("personal_accuracy", "personal_std", "personal_worst10", "generic_accuracy")
        return {
            "test_accuracy": last["test_accuracy"],
            "test_loss": last["test_loss"],
            "train_loss": last["train_loss"],
            **{name: last[name] for name in personal if name in last},
            "rounds": self.state.round,
            "theta_sha256": theta_sha256(self.theta),
            "state_sha256": self.state.sha256(),
            "seconds_per_round": self.state.seconds / self.state.round,
        }


class Simulation:
    """One run on a backend. The server's vectors stay on the CPU."""

    def __init__(self, problem: Problem, backend: Backend, profile: Profile | None = None) -> None:
        self.problem, self.backend, self.profile = problem, backend, profile
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        network = problem.network("cpu")
        self.layout = network.layout
        backend.open(problem)
        theta = network.theta.clone()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(config.seed, "server state"))
            server = config.algorithm.server_state(theta)
        self._state = State(0, theta, network.buffers.clone(), server)

    @property
    def done(self) -> bool:
        """Whether all rounds are made."""
        return self._state.round >= self.problem.config.training.rounds

    def step(self) -> None:
        """One round. Raises Diverged: of training, with the state of the round before; of testing, after the round."""
        started = time.perf_counter()
        if self.profile is not None:
            self.profile.begin()
        s, algorithm = self._state, self.problem.config.algorithm
        t, looked_at = s.round, self._is_evaluated(s.round + 1)
        cohort, probes = self.cohort(t), self.problem.config.evaluation.probes if looked_at else ()
        drawn = len(cohort)
        while True:
            server = self._server(t, len(cohort))
            weights = {int(i): float(w) for i, w in zip(cohort, self.weights(cohort), strict=True)}
            broadcast = self._broadcast(server, tuple(name for name in probes if name != "classes"))
            tasks = [ClientTask(i, w, s.clients.get(i, Vectors())) for i, w in weights.items()]
            self._lap("broadcast")

            parts = self.backend.train(broadcast, tasks)

            self._lap("local")
            reply = joined(parts)
            if not reply.diverged:
                break
            cohort = self._without(t, cohort, reply)  # and the round is made again, as if they had not been drawn
        sums = total([part.sums for part in parts])
        train_loss, buffers, update = float(sums.pop("train_loss")), sums.pop("buffers", None), sums.get("update")
        measured = over_cohort(reply.probes)
        if "drift" in broadcast.probes and update is not None:
            lengths = {i: probed["drift"] for i, probed in reply.probes.items()}
            measured |= drift_between(lengths, weights, update)
        sums["update"] = self._whole(update)
        sums |= _stacked(reply.each)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.problem.config.seed, "server", t))
            algorithm.aggregate(server, Received(Vectors(sums)))
        for name, vector in (("theta", server.theta), *server.state.items()):
            if not finite(vector):
                raise Diverged(t + 1, None, f"{name} is not finite after aggregation")
        # Only now is anything committed: whatever failed above has left the state as it was.
        s.theta, s.server = server.theta, server.state
        s.buffers = s.buffers if buffers is None else s.buffers + buffers
        s.clients |= {i: state for i, state in reply.states.items() if state}
        s.active |= dict.fromkeys((i for i, state in reply.states.items() if state), t + 1)
        s.round = t + 1
        s.dropped += drawn - len(cohort)
        s.seconds += time.perf_counter() - started
        self._lap("reduce")
        if looked_at:
            dropped = {"dropped_clients": float(s.dropped)} if self._drops else {}
            s.history.append(
                {
                    "round": s.round,
                    **self.evaluate(cohort),
                    "train_loss": train_loss,
                    **measured,
                    "lr": server.lr,
                    **dropped,
                }
            )
        self._lap("evaluate")

    def _lap(self, part: str) -> None:
        if self.profile is not None:
            self.profile.lap(part)

    def _is_evaluated(self, round: int) -> bool:
        asked = self.problem.config.evaluation
        return (
            round % asked.every == 0
            or round > self.problem.config.training.rounds - asked.last
            or (asked.personal is not None and round % asked.personal.every == 0)
        )

    @property
    def _drops(self) -> bool:
        return self.problem.config.training.on_divergence == "drop"

    def _server(self, t: int, cohort: int) -> Server:
        """What the server is in round t: copies, so that a round that fails leaves no trace."""
        s, training = self._state, self.problem.config.training
        return Server(
            s.theta,
            Vectors(s.server),
            self.layout,
            self.problem.config.clients.total,
            cohort,
            t,
            training.lr * training.lr_decay**t,
            training.server_lr,
        )

    def _broadcast(self, server: Server, probes: tuple[str, ...] = ()) -> Broadcast:
        algorithm = self.problem.config.algorithm
        return Broadcast(
            server.round,
            server.lr,
            algorithm.broadcast(server),
            self._state.buffers,
            algorithm.message(server),
            server.cohort,
            probes,
        )

    def _whole(self, update: Tensor | None) -> Tensor:
        """The update of all parameters (P,) from that of the shared ones; zero elsewhere."""
        shares = self.problem.config.algorithm.shares
        if update is None:
            return torch.zeros(self.layout.size)
        if shares == "all":
            return update
        return torch.zeros(self.layout.size).index_copy_(0, self.layout.part(shares).nonzero().flatten(), update)

    def cohort(self, t: int) -> np.ndarray:
        """Clients of round t (from 0), ascending. Those without samples take no part; an empty draw is repeated."""
        clients, sizes = self.problem.config.clients, self.problem.shards.sizes
        if clients.cohorts is not None:
            drawn = np.array(clients.cohorts[t])
            if len(drawn := np.sort(drawn[sizes[drawn] > 0])) == 0:
                raise Diverged(t + 1, None, "every client of clients.cohorts in this round is empty")
            return drawn
        attempt = 0
        while True:
            rng = generator(self.problem.config.seed, "cohort", t, attempt)
            count = clients.cohort_size
            if clients.sampling == "bernoulli":  # the number of successes first, then who: no draw per client
                rate = clients.per_round if isinstance(clients.per_round, float) else count / clients.total
                count = int(rng.binomial(clients.total, rate))
            drawn = rng.choice(clients.total, size=count, replace=False, shuffle=False)
            drawn = np.sort(drawn[sizes[drawn] > 0])
            if len(drawn):
                return drawn
            attempt += 1

    def weights(self, cohort: np.ndarray) -> np.ndarray:
        """π of the cohort, summing to 1: uniform, or proportional to n_i."""
        if self.problem.config.training.aggregation == "uniform":
            return np.full(len(cohort), 1 / len(cohort))
        sizes = self.problem.shards.sizes[cohort]
        result: np.ndarray = sizes / sizes.sum()
        return result

    def evaluate(self, cohort: np.ndarray | None = None) -> dict[str, float]:
        """What the configuration asks for, after the last whole round; accuracies in percent. Raises Diverged.

        cohort: the clients of that round, for whose classes the global model's angles are averaged.
        """
        asked, algorithm, s = self.problem.config.evaluation, self.problem.config.algorithm, self._state
        row: dict[str, float] = {}
        if algorithm.keeps == "none":
            sums = self._sums("test")
            count = len(self.problem.data.y_test)
            row |= {"test_accuracy": 100 * float(sums["correct"].sum()) / count, "test_loss": float(sums["loss"])}
            if "classes" in asked.probes:
                row |= by_class(sums["correct"], self.problem.data.y_test)
            if "angles" in asked.probes:
                held = [self._holds(int(i)) for i in (() if cohort is None else cohort)]
                row |= angles.of_server(s.theta, self.layout, sums["features"], held)
        else:
            row |= personal.everyone(self._evaluate_personal(PersonalEval((0,), own=False, everyone=True)))
        if asked.train:
            count = len(self.problem.data.y_train)
            row["train_accuracy"] = 100 * float(self._sums("train")["correct"].sum()) / count
        if asked.personal is not None and (s.round % asked.personal.every == 0 or self.done):
            epochs = asked.personal.tuned if algorithm.personal == "tuned" else (0,)
            scores = self._evaluate_personal(PersonalEval(epochs, own=True, everyone=not algorithm.generic))
            row |= personal.summary(scores, epochs, row["test_accuracy"] if algorithm.generic else None)
        return row

    def _holds(self, client: int) -> Tensor:
        """Which classes a client has training samples of, bool `(C,)`."""
        data = self.problem.data
        labels = data.y_train[self.problem.shards[client]]
        return torch.from_numpy(np.bincount(labels, minlength=data.num_classes) > 0)

    def _sums(self, split: str) -> dict[str, Tensor]:
        sums = total(self.backend.evaluate(self._state.theta, self._state.buffers, split))
        if float(sums["unbounded"]):
            raise Diverged(self._state.round, None, f"the {split} loss is not finite or above {MAX_TEST_LOSS:g}")
        return sums

    def _evaluate_personal(self, request: PersonalEval) -> dict[int, dict[str, float]]:
        """Every client that has samples (and test samples, where these are asked for) takes the tests."""
        s, tests, tested = self._state, self.problem.tests, self.problem.shards.sizes > 0
        if request.own and tests is not None:
            tested &= tests.sizes > 0
        ids = [int(i) for i in np.flatnonzero(tested)]
        server = self._server(s.round - 1, len(ids))  # the learning rate is that of the round just made
        tasks = [ClientTask(i, 1 / len(ids), s.clients.get(i, Vectors())) for i in ids]
        scores = self.backend.evaluate_personal(self._broadcast(server), tasks, request)
        for i in ids:
            if any(np.isnan(value) for value in scores[i].values()):
                raise Diverged(s.round, i, "the personal model's outputs are not numbers")
        return scores

    def state(self) -> State:
        """The run as it is after the last whole round; the tensors are never modified in place."""
        s = self._state
        return State(
            s.round,
            s.theta,
            s.buffers,
            Vectors(s.server),
            dict(s.clients),
            dict(s.active),
            list(s.history),
            s.seconds,
            s.dropped,
        )

    def restore(self, state: State) -> None:
        """Go on from a state of the same configuration."""
        self._state = state
        self._state = self.state()  # a copy: the caller's own stays as it is

    def result(self) -> Result:
        """What the run has given so far."""
        return Result(list(self._state.history), self._state.theta, self.layout, self.state())

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
    return whole


def _stacked(each: dict[int, Vectors]) -> dict[str, Tensor]:
    """Per-client uploads, `(M, ...)` by ascending client id."""
    names = {name for vectors in each.values() for name in vectors}
    return {name: torch.stack([each[i][name] for i in sorted(each)]) for name in sorted(names)}


def run(problem: Problem, backend: Backend, state: State | None = None) -> Result:
    """All rounds of a problem, from the start or from a state."""
    simulation = Simulation(problem, backend)
    if state is not None:
        simulation.restore(state)
    while not simulation.done:
        simulation.step()
    return simulation.result()
