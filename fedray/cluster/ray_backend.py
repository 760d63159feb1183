"""Training on Ray actors: one long-lived actor per bundle, one call per actor and round, respawn of the dead."""

import heapq
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from fedray.cluster.timeouts import CallTimeouts
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset, as_tensor
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.worker import LESS_MEMORY, Worker, number_of_chunks
from fedray.partitions.shards import Shards

log = logging.getLogger("fedray")
RESPAWNS = 4
"""How often one call may lose its actor before the trial gives up (and is started again, elsewhere perhaps)."""
STARTING = 600.0
"""Seconds that a new actor may take to be placed and to start."""

Arrays = dict[str, np.ndarray]


class ClientActor:
    """A process that trains clients. It remembers nothing of a client between calls."""

    def open(
        self, config: dict[str, Any], data: Dataset, shards: Shards, tests: Shards | None, validation: Shards | None
    ) -> None:
        """Make ready for a run; replaces all of the one before."""
        self._worker = Worker(Problem(RunConfig.parse(config), data, shards, tests, validation))

    def train(self, broadcast: dict[str, Any], tasks: list[tuple[int, float, Arrays]]) -> dict[str, Any]:
        """Train clients. The result is returned, not put, so that it outlives this actor."""
        reply = self._worker.train(_broadcast(broadcast), _tasks(tasks))
        return {
            "sums": _arrays(reply.sums),
            "diverged": reply.diverged,
            "probes": reply.probes,
            "states": {i: _arrays(state) for i, state in reply.states.items()},
            "each": {i: _arrays(each) for i, each in reply.each.items()},
        }

    def evaluate(self, model: dict[str, np.ndarray], chunks: list[int], split: str) -> Arrays:
        """Exact sums over some chunks of a set of samples."""
        return _arrays(self._worker.evaluate(_tensor(model["theta"]), _tensor(model["buffers"]), chunks, split))

    def evaluate_personal(
        self, broadcast: dict[str, Any], tasks: list[tuple[int, float, Arrays]], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        """Test the personal models of clients."""
        return self._worker.evaluate_personal(_broadcast(broadcast), _tasks(tasks), request)


class RayBackend:
    """The actors of one trial, or of a single run. Results do not depend on how many there are.

    group: the trial's placement group, whose last `runtime.actors` bundles are the actors'; None outside of a trial.
    `data` may be set to the data set's reference where the caller has put it into the object store (one copy a node).
    """

    def __init__(self, runtime: Runtime, group: PlacementGroup | None = None) -> None:
        self.runtime, self.group = runtime, group
        self.data: ray.ObjectRef[Dataset] | None = None
        self._actors: list[Any] = [None] * runtime.actors

    def open(self, problem: Problem) -> None:
        self._setup = (
            problem.config.resolved(),
            self.data or ray.put(problem.data),
            ray.put(problem.shards),
            None if problem.tests is None else ray.put(problem.tests),
            None if problem.validation is None else ray.put(problem.validation),
        )
        self._steps = [problem.config.training.steps(int(n)) for n in problem.shards.sizes]
        self._chunks = {split: number_of_chunks(len(samples)) for split, samples in problem.evaluated.items()}
        self._timeouts = CallTimeouts()
        for slot, actor in enumerate(self._actors):
            if actor is None:
                self._spawn(slot)
        self._call("open", [self._setup] * len(self._actors))

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        return [
            Reply(
                _sums(answer["sums"]),
                {i: _vectors(each) for i, each in answer["each"].items()},
                {i: _vectors(state) for i, state in answer["states"].items()},
                answer["diverged"],
                answer["probes"],
            )
            for answer in self._call("train", self._dealt(broadcast, tasks))
        ]

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test") -> list[dict[str, Tensor]]:
        sent = ray.put({"theta": theta.numpy(), "buffers": buffers.numpy()})
        chunks = [list(range(slot, self._chunks[split], len(self._actors))) for slot in range(len(self._actors))]
        return [_sums(answer) for answer in self._call("evaluate", [(sent, share, split) for share in chunks])]

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        calls = [(*call, request) for call in self._dealt(broadcast, tasks)]
        return {i: scores for answer in self._call("evaluate_personal", calls) for i, scores in answer.items()}

    def _dealt(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask]
    ) -> list[tuple[Any, list[tuple[int, float, Arrays]]]]:
        """The arguments of one call per actor: the broadcast, stored once, and the actor's tasks."""
        sent = ray.put(
            vars(broadcast)
            | {
                "theta": broadcast.theta.numpy(),
                "buffers": broadcast.buffers.numpy(),
                "message": _arrays(broadcast.message),
            }
        )
        shares = longest_first([self._steps[task.client] for task in tasks], len(self._actors))
        return [
            (sent, [(tasks[k].client, tasks[k].weight, _arrays(tasks[k].state)) for k in share]) for share in shares
        ]

    def close(self) -> None:
        for actor in self._actors:
            if actor is not None:
                ray.kill(actor)
        self._actors = [None] * len(self._actors)

    def _spawn(self, slot: int) -> None:
        runtime = self.runtime
        strategy: Any = "DEFAULT"
        if self.group is not None:
            bundle = self.group.bundle_count - runtime.actors + slot
            strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
        self._actors[slot] = (
            ray.remote(ClientActor)
            .options(num_cpus=runtime.cpus_per_actor, num_gpus=runtime.gpus, scheduling_strategy=strategy)
            .remote()
        )

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One call per actor, answers in slot order; calls without work are left out.

        An actor that dies, or takes so long that it must hang, is replaced and its call repeated: it had committed
        nothing, so the numbers are the same.
        """
        busy = [slot for slot, args in enumerate(arguments) if method == "open" or len(args[1]) > 0]
        began = dict.fromkeys(busy, time.monotonic())
        pending = {slot: getattr(self._actors[slot], method).remote(*arguments[slot]) for slot in busy}
        answers = []
        for slot in busy:
            work = self._work(method, arguments[slot])
            for attempt in range(RESPAWNS + 1):
                left = began[slot] + self._timeouts.limit(method, work, attempt) - time.monotonic()
                try:
                    answers.append(ray.get(pending[slot], timeout=max(left, 1.0)))
                    if attempt == 0:
                        self._timeouts.measured(method, work, time.monotonic() - began[slot])
                    break
                except (RayActorError, OutOfMemoryError, GetTimeoutError) as error:
                    why = "hangs" if isinstance(error, GetTimeoutError) else f"died ({type(error).__name__})"
                    if attempt == RESPAWNS:
                        raise RayError(
                            f"client actor {slot} {why}, {attempt + 1} times in one call of {method}; "
                            f"if memory ran out, {LESS_MEMORY}"
                        ) from error
                    log.warning("client actor %d %s; respawning it", slot, why)
                    ray.kill(self._actors[slot])
                    self._spawn(slot)
                    if method != "open":
                        self._actors[slot].open.remote(*self._setup)
                    began[slot] = time.monotonic() + STARTING
                    pending[slot] = getattr(self._actors[slot], method).remote(*arguments[slot])
                except RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, UserError) else error) from None
        return answers

    def _work(self, method: str, arguments: tuple[Any, ...]) -> float:
        """What a call's duration goes with: local steps, or chunks of a set of samples."""
        if method in ("train", "evaluate_personal"):
            return float(sum(self._steps[client] for client, *_ in arguments[1]))
        return float(len(arguments[1])) if method == "evaluate" else 1.0


def longest_first(loads: Sequence[int], parts: int) -> list[list[int]]:
    """Positions 0..len(loads)-1 dealt to `parts`: the longest first, each to the least loaded (Graham 1969).

    The largest part's load is at most 4/3 - 1/(3 parts) of the best possible.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
        load, part = heapq.heappop(heap)
        shares[part].append(k)
        heapq.heappush(heap, (load + loads[k], part))
    return shares


def _arrays(vectors: dict[str, Tensor]) -> Arrays:
    return {name: v.numpy() for name, v in vectors.items()}


def _broadcast(sent: dict[str, Any]) -> Broadcast:
    return Broadcast(
        **sent
        | {"theta": _tensor(sent["theta"]), "buffers": _tensor(sent["buffers"]), "message": _vectors(sent["message"])}
    )


def _tasks(sent: list[tuple[int, float, Arrays]]) -> list[ClientTask]:
    return [ClientTask(i, weight, _vectors(state)) for i, weight, state in sent]


def _vectors(arrays: Arrays) -> Vectors:
    return Vectors({name: _tensor(array) for name, array in arrays.items()})


def _sums(arrays: Arrays) -> dict[str, Tensor]:
    return {name: as_tensor(array) for name, array in arrays.items()}


def _tensor(array: np.ndarray) -> Tensor:
    # A copy: what comes out of the object store is read-only and shared.
    return torch.tensor(array)
