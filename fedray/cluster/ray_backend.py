"""Training on Ray actors: one long-lived actor per bundle, one call per actor and round; dead actors are replaced.

If one process is enough, the trial's own process trains.
"""

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from fedray.cluster.object_states import (
    STAYS_FROM,
    Arrays,
    ObjectState,
    as_arrays,
    as_vectors,
    assign_to_actors,
    pack,
    unpack,
)
from fedray.cluster.timeouts import FLOOR, CallTimeouts, Heartbeat
from fedray.common.errors import UserError
from fedray.common.explain import LESS_MEMORY
from fedray.common.vectors import Vectors
from fedray.components.plugins import blame
from fedray.components.sources import Sources, list_held, take_sources
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.disk import client_files
from fedray.engine.disk.client_files import Version, Written
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import map_vectors
from fedray.engine.process.evaluate import count_chunks, evaluate
from fedray.engine.process.personal import evaluate_personal
from fedray.engine.process.train import train
from fedray.engine.process.worker import Worker
from fedray.engine.state import ClientState, StateDamaged, StateRef, load_state
from fedray.partitions.held_out import Split

log = logging.getLogger("fedray")
T = TypeVar("T")
RESPAWNS = 4
"""Number of times that one call may lose its actor before the trial gives up (and is restarted, perhaps elsewhere)."""
STARTING = 600.0
"""Seconds that a new actor may take to be placed and to start."""

SentTask = tuple[int, float, Arrays | StateRef]


class ClientActor:
    """A process that trains clients; it keeps nothing of a client between calls."""

    def open(self, config: bytes, data: Dataset, split: Split, sources: Sources) -> str:
        """Prepare for a run, whose configuration comes packed; everything of the previous run is replaced.

        Return `Network.sha256` of the model as this process has built it.
        """
        take_sources(sources)
        run = RunConfig.unpack(config)
        self._components = run.components
        with blame(*run.components):
            self._worker = Worker(Problem(run, data, split))
        return self._worker.network.sha256

    def train(self, broadcast: dict[str, Any], tasks: list[SentTask], stays_from: int | None) -> Any:
        """Train clients. Everything is returned, not put into the store, so that it outlives this actor.

        stays_from: size in bytes from which a state is a return value of its own; None: all travel with the reply.
        Return the reply; with `stays_from` a tuple of the reply and, for each task, its client's state, or None for a
        small state, which is in the reply.
        """
        with blame(*self._components):
            reply = train(self._worker, *_receive_call(broadcast, tasks))
        states = {i: as_arrays(load_state(state)) for i, state in reply.states.items()}
        sizes = {i: sum(array.nbytes for array in state.values()) for i, state in states.items()}
        apart = [] if stays_from is None else [i for i, size in sizes.items() if size >= stays_from]
        head = {
            "sums": as_arrays(reply.sums),
            "diverged": reply.diverged,
            "probes": reply.probes,
            "sent": reply.sent,
            "states": {i: state for i, state in states.items() if i not in apart},
            "largest": max(sizes.values(), default=0),
            "each": {i: as_arrays(each) for i, each in reply.each.items()},
        }
        return head if stays_from is None else (head, *(states[i] if i in apart else None for i, *_ in tasks))

    def evaluate(self, model: Arrays, chunks: list[int], split: str, round: int) -> Arrays:
        """Return exact sums over some chunks of a set of samples."""
        there = as_vectors(model, copied=True)
        with blame(*self._components):
            return as_arrays(evaluate(self._worker, there.theta, there.buffers, chunks, split, round))

    def evaluate_personal(
        self, broadcast: dict[str, Any], tasks: list[SentTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        """Test the personal models of clients."""
        with blame(*self._components):
            return evaluate_personal(self._worker, *_receive_call(broadcast, tasks), request)

    def write_states(self, directory: str, versions: list[tuple[int, int, Arrays | StateRef]]) -> dict[int, Written]:
        """Write clients' states, each hashed here once."""
        return client_files.write_states(directory, [Version(i, at, unpack(state)) for i, at, state in versions])


class RayBackend:
    """Actors of one trial or of a single run. Results do not depend on their number.

    group: the trial's placement group, one bundle per actor; None outside of a trial. A caller may set `data` to the
    reference of the data set if it has put it into the object store (one copy per node), and `heartbeat` to the
    trial's. `moved` counts how often a client was trained away from its home, the actor of its time before.
    """

    def __init__(self, runtime: Runtime, group: PlacementGroup | None = None) -> None:
        self.runtime, self.group, self.heartbeat = runtime, group, Heartbeat()
        self.data: ray.ObjectRef[Dataset] | None = None
        self.stays_from, self.moved = STAYS_FROM, 0
        self.processes = runtime.actor_count
        self._actors: list[Any] = [None] * self.processes

    def open(self, problem: Problem) -> None:
        own = ((one.section, one.name) for one in problem.config.components if ":" in one.name)
        sources = ray.put(list_held(own))
        self._setup = problem.config.pack(), self.data or ray.put(problem.data), ray.put(problem.split), sources
        self._steps = [problem.config.training.count_steps(int(n)) for n in problem.split.dealt.sizes]
        self.moved = 0
        self._chunks = {split: count_chunks(len(samples)) for split, samples in problem.evaluated.items()}
        self._timeouts = CallTimeouts()
        self._homes: dict[int, int] = {}
        self._apart = True
        for slot, actor in enumerate(self._actors):
            if actor is None:
                self._spawn(slot)
        self._refuse_other_model = problem.refuse_other_model
        for sha256 in self._call("open", [self._setup] * len(self._actors)):
            self._refuse_other_model(sha256)

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        stays_from = self.stays_from if self._apart else None
        dealt = [(*call, stays_from) for call in self._make_calls(broadcast, tasks)]
        placed = {i: slot for slot, (_, sent, _) in enumerate(dealt) for i, *_ in sent}
        self.moved += sum(self._homes.get(i, slot) != slot for i, slot in placed.items())
        self._homes |= placed
        replies, largest = [], 0
        for (_, sent, _), answer in zip(
            [call for call in dealt if call[1]], self._call("train", dealt, broadcast.kind), strict=True
        ):
            head, *refs = answer if isinstance(answer, list) else [answer]
            states: dict[int, ClientState] = {i: as_vectors(state, True) for i, state in head["states"].items()}
            states |= {i: ObjectState(ref) for (i, *_), ref in zip(sent, refs, strict=False) if i not in states}
            each = {i: as_vectors(each, True) for i, each in head["each"].items()}
            replies.append(
                Reply(as_vectors(head["sums"]), each, states, head["diverged"], head["probes"], head["sent"])
            )
            largest = max(largest, head["largest"])
        self._apart = largest >= self.stays_from
        if self._apart:
            map_vectors()  # this process does not train, and keeps a reference for each client
        return replies

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test", round: int = 0) -> list[dict[str, Tensor]]:
        sent = ray.put(as_arrays({"theta": theta, "buffers": buffers}))
        chunks = [list(range(slot, self._chunks[split], len(self._actors))) for slot in range(len(self._actors))]
        calls = [(sent, share, split, round) for share in chunks]
        return [as_vectors(answer) for answer in self._call("evaluate", calls)]

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        calls = [(*call, request) for call in self._make_calls(broadcast, tasks)]
        return _join(self._call("evaluate_personal", calls, request.kind))

    def write_states(self, directory: str, versions: Sequence[Version]) -> dict[int, Written]:
        homes = [self._homes.get(version.client) for version in versions]
        shares = assign_to_actors([1] * len(versions), homes, len(self._actors))
        calls = [(directory, [(*versions[k][:2], pack(versions[k].state)) for k in share]) for share in shares]
        try:
            return _join(self._call("write_states", calls))
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, OSError) else error) from None

    def _make_calls(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[tuple[Any, list[SentTask]]]:
        """Return the arguments of one call per actor: the broadcast, stored once, and the actor's tasks."""
        vectors = as_arrays({"theta": broadcast.theta, "buffers": broadcast.buffers})
        sent = ray.put(vars(broadcast) | vectors | {"message": as_arrays(broadcast.message)})
        homes = [self._homes.get(task.client) for task in tasks]
        shares = assign_to_actors([self._steps[task.client] for task in tasks], homes, len(self._actors))
        return [(sent, [(tasks[k].client, tasks[k].weight, pack(tasks[k].state)) for k in share]) for share in shares]

    def close(self) -> None:
        for actor in self._actors:
            if actor is not None:
                ray.kill(actor)
        self._actors = [None] * len(self._actors)

    def _spawn(self, slot: int) -> None:
        runtime = self.runtime
        strategy: Any = "DEFAULT"
        if self.group is not None:
            strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=slot)
        self._actors[slot] = (
            ray.remote(ClientActor)
            .options(num_cpus=runtime.cpus_per_actor, num_gpus=runtime.gpus_per_actor, scheduling_strategy=strategy)
            .remote()
        )

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], kind: str = "") -> list[Any]:
        """Call each actor once and return the answers in slot order; calls without work are left out.

        An actor that dies, or takes so long that it must hang, is replaced and its call repeated: it had committed
        nothing, so the numbers are the same. kind: the name under which the call is timed; empty for the method's.
        """
        busy = [slot for slot, args in enumerate(arguments) if method == "open" or len(args[1]) > 0]
        began = dict.fromkeys(busy, time.monotonic())
        pending = {slot: self._start_call(slot, method, arguments[slot]) for slot in busy}
        answers, opened = [], dict[int, Any]()
        disturbed = False  # True: answers read later have waited for a lost slot
        for slot in busy:
            work = self._measure_work(method, arguments[slot])
            for attempt in range(RESPAWNS + 1):
                ends = began[slot] + self._timeouts.get_limit(kind or method, work, attempt)
                left = max(ends - time.monotonic(), FLOOR if disturbed else 1.0)  # an old answer has yet to be fetched
                self.heartbeat.announce(left)
                try:
                    if slot in opened:  # a failure to open a new actor is raised first
                        self._refuse_other_model(ray.get(opened.pop(slot), timeout=left))
                    first, *others = pending[slot]
                    answer = ray.get(first, timeout=left)
                    answers.append([answer, *others] if others else answer)
                    if not disturbed:
                        self._timeouts.note(kind or method, work, time.monotonic() - began[slot])
                    break
                except (RayActorError, OutOfMemoryError, GetTimeoutError) as error:
                    disturbed = True
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
                        opened[slot] = self._actors[slot].open.remote(*self._setup)
                    began[slot] = time.monotonic() + STARTING
                    pending[slot] = self._start_call(slot, method, arguments[slot])
                except RayTaskError as error:
                    if isinstance(error.cause, RayError):
                        raise RayError(f"a client's state was lost: {type(error.cause).__name__}") from error
                    raise (error.cause if isinstance(error.cause, UserError | StateDamaged) else error) from None
        return answers

    def _start_call(self, slot: int, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Start a call and return the references of its return values; only the first is read."""
        apart = len(arguments[1]) if method == "train" and arguments[2] is not None else 0
        call = getattr(self._actors[slot], method).options(num_returns=1 + apart).remote(*arguments)
        return list(call) if apart else [call]

    def _measure_work(self, method: str, arguments: tuple[Any, ...]) -> float:
        """Return the quantity that a call's duration grows with: local steps, or chunks of a set of samples."""
        if method in ("train", "evaluate_personal"):
            return float(sum(self._steps[client] for client, *_ in arguments[1]))
        return 1.0 if method == "open" else float(len(arguments[1]))


def _join(answers: Sequence[dict[int, T]]) -> dict[int, T]:
    return {i: value for answer in answers for i, value in answer.items()}


def _receive_call(sent: dict[str, Any], tasks: list[SentTask]) -> tuple[Broadcast, list[ClientTask]]:
    vectors = as_vectors({name: sent[name] for name in ("theta", "buffers")}, copied=True)
    broadcast = Broadcast(**sent | vectors | {"message": as_vectors(sent["message"], copied=True)})
    return broadcast, [ClientTask(i, weight, unpack(state)) for i, weight, state in tasks]


class TrialBackend(InlineBackend):
    """One worker, in a process of Ray. States are in the node's object store, as with actors.

    Calls have the same limits as calls of actors; this process cannot enforce them, so the driver does by `heartbeat`.
    """

    def __init__(self) -> None:
        self.heartbeat = Heartbeat()
        self.stays_from = STAYS_FROM

    def open(self, problem: Problem) -> None:
        self._timeouts = CallTimeouts()
        self._steps = [problem.config.training.count_steps(int(n)) for n in problem.split.dealt.sizes]
        with self.bound("open", ()):
            super().open(problem)

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        replies = super().train(broadcast, tasks)
        for reply in replies:
            reply.states |= {i: self.spill(s) for i, s in reply.states.items() if not isinstance(s, StateRef)}
        return replies

    def spill(self, state: Vectors) -> ClientState:
        sent = as_arrays(state)
        return ObjectState(ray.put(sent)) if sum(array.nbytes for array in sent.values()) >= self.stays_from else state

    @contextlib.contextmanager
    def bound(self, kind: str, work: Collection[object]) -> Iterator[None]:
        """Announce a call, and time it, for the duration of a block; a client's work is its local steps."""
        amount = float(sum(self._steps[w.client] if isinstance(w, ClientTask) else 1 for w in work)) or 1.0
        self.heartbeat.announce(self._timeouts.get_limit(kind, amount, 0))
        began = time.monotonic()
        yield
        self._timeouts.note(kind, amount, time.monotonic() - began)
