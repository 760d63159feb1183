"""The round loop: draw a cohort, train it, aggregate, commit, test. `state()` and `restore()` are complete."""

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Received, Server, Vectors
from fedray.backend.inline import Backend
from fedray.backend.reduce import Accumulator
from fedray.errors import Diverged
from fedray.local import Broadcast, Job
from fedray.models.flat import Layout
from fedray.problem import Problem
from fedray.rng import generator
from fedray.worker import MAX_TEST_LOSS, Partial


@dataclass
class State:
    """All that a run is after `round` rounds. There is no generator state: every draw is keyed."""

    round: int
    theta: Tensor
    buffers: Tensor
    server: Vectors
    clients: dict[int, Vectors] = field(default_factory=dict)
    active: dict[int, int] = field(default_factory=dict)
    """client -> the round (1-based) that last changed its state."""
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time of all rounds, evaluation excluded."""

    def sha256(self) -> str:
        """Hash of server, every client, buffers and round: equal exactly when everything that matters is."""
        digest = hashlib.sha256(str(self.round).encode())
        parts = [("theta", self.theta), ("buffers", self.buffers)]
        parts += [(f"server.{name}", v) for name, v in sorted(self.server.items())]
        for i, state in sorted(self.clients.items()):
            parts += [(f"client.{i}.{name}", v) for name, v in sorted(state.items())]
        for name, v in parts:
            digest.update(f"{name}{v.dtype}{tuple(v.shape)}".encode())
            digest.update(v.contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Result:
    """What a run gives.

    history: a row per evaluated round (`round`, `test_accuracy` in percent, `test_loss`, `train_loss`, `lr`).
    theta: float32 `(P,)`, in `model.parameters()` order; layout: its slices.
    """

    history: list[dict[str, float]]
    theta: Tensor
    layout: Layout
    state: State

    def summary(self) -> dict[str, Any]:
        """Last round's metrics, hashes and mean seconds per round (evaluation excluded)."""
        last = self.history[-1]
        return {
            "test_accuracy": last["test_accuracy"], "test_loss": last["test_loss"], "train_loss": last["train_loss"],
            "rounds": self.state.round, "theta_sha256": theta_sha256(self.theta), "state_sha256": self.state.sha256(),
            "seconds_per_round": self.state.seconds / self.state.round,
        }


def theta_sha256(theta: Tensor) -> str:
    """SHA-256 of the parameters' bytes (float32, little-endian)."""
    return hashlib.sha256(theta.contiguous().numpy().astype("<f4").tobytes()).hexdigest()


class Simulation:
    """One run on a backend. The server's vectors stay on the CPU."""

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.problem, self.backend = problem, backend
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        network = problem.network("cpu")
        self.layout = network.layout
        backend.open(problem)
        theta = network.theta.clone()
        self._state = State(0, theta, network.buffers.clone(), config.algorithm.server_state(theta))

    @property
    def done(self) -> bool:
        """Whether all rounds are made."""
        return self._state.round >= self.problem.config.training.rounds

    def step(self) -> None:
        """One round. Raises Diverged: of training, with the state of the round before; of testing, after the round."""
        started = time.perf_counter()
        config, s = self.problem.config, self._state
        training, algorithm, t = config.training, config.algorithm, s.round
        cohort = self.cohort(t)
        server = Server(s.theta, Vectors(s.server), self.layout, config.clients.total, len(cohort), t,
                        training.lr * training.lr_decay**t, training.server_lr)
        broadcast = Broadcast(t, server.lr, algorithm.broadcast(server), s.buffers, algorithm.message(server),
                              len(cohort))
        weights = self.weights(cohort)
        jobs = [Job(int(i), float(w), s.clients.get(int(i), Vectors())) for i, w in zip(cohort, weights, strict=True)]

        partial = self.backend.train(broadcast, jobs)

        self._refuse_diverged(t, partial)
        sums = Accumulator(partial.sums).result()
        train_loss, buffers = sums.pop("train_loss"), sums.pop("buffers", None)
        algorithm.aggregate(server, Received(Vectors(sums)))
        for name, vector in (("theta", server.theta), *server.state.items()):
            if not bool(torch.isfinite(vector).all()):
                raise Diverged(t + 1, None, f"{name} is not finite after aggregation")
        # Only now is anything committed: whatever failed above has left the state as it was.
        s.theta, s.server = server.theta, server.state
        s.buffers = s.buffers if buffers is None else s.buffers + buffers
        s.clients |= {i: state for i, state in partial.states.items() if state}
        s.active |= dict.fromkeys((i for i, state in partial.states.items() if state), t + 1)
        s.round = t + 1
        s.seconds += time.perf_counter() - started
        if s.round % config.evaluation.every == 0 or s.round > training.rounds - config.evaluation.last:
            s.history.append({"round": s.round, **self.evaluate(), "train_loss": float(train_loss), "lr": server.lr})

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
        return sizes / sizes.sum()

    def evaluate(self) -> dict[str, float]:
        """Accuracy (percent) and mean loss of the global model on the test set. Raises Diverged."""
        sums = Accumulator(self.backend.evaluate(self._state.theta, self._state.buffers)).result()
        if float(sums["unbounded"]):
            raise Diverged(self._state.round, None, f"the test loss is not finite or above {MAX_TEST_LOSS:g}")
        count = len(self.problem.data.y_test)
        return {"test_accuracy": 100 * float(sums["correct"].sum()) / count, "test_loss": float(sums["loss"])}

    def state(self) -> State:
        """The run as it is after the last whole round; the tensors are never modified in place."""
        s = self._state
        return State(s.round, s.theta, s.buffers, Vectors(s.server), dict(s.clients), dict(s.active), list(s.history),
                     s.seconds)

    def restore(self, state: State) -> None:
        """Go on from a state of the same configuration."""
        self._state = state
        self._state = self.state()  # a copy: the caller's own stays as it is

    def result(self) -> Result:
        """What the run has given so far."""
        return Result(list(self._state.history), self._state.theta, self.layout, self.state())

    @staticmethod
    def _refuse_diverged(t: int, partial: Partial) -> None:
        if partial.diverged:
            client = min(partial.diverged)  # the same client, however many actors reported
            raise Diverged(t + 1, client, partial.diverged[client])


def run(problem: Problem, backend: Backend, state: State | None = None) -> Result:
    """All rounds of a problem, from the start or from a state."""
    simulation = Simulation(problem, backend)
    if state is not None:
        simulation.restore(state)
    while not simulation.done:
        simulation.step()
    return simulation.result()

