"""Training in the trial's own process, if one process is enough."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import ray
from torch import Tensor

from fedray.cluster.object_states import STAYS_FROM, ObjectState, as_arrays, keeps_states, note_hashes
from fedray.cluster.timeouts import CallTimeouts, Heartbeat
from fedray.common.vectors import Vectors
from fedray.engine.disk.client_files import Version, Written
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.state import ClientState, StateRef


class TrialBackend(InlineBackend):
    """One worker, in a process of Ray. States are in the node's object store, as with actors.

    Calls have the same limits as calls of actors; this process cannot enforce them, so the driver does.

    Attributes:
        heartbeat: may be set to the trial's heartbeat.
    """

    def __init__(self) -> None:
        self.heartbeat = Heartbeat()
        self.stays_from = STAYS_FROM

    def open(self, problem: Problem) -> None:
        self._timeouts = CallTimeouts()
        self._stay = keeps_states(problem.config.algorithm)
        with self._bound("open"):
            super().open(problem)
        self._steps = [problem.config.training.count_steps(int(n)) for n in problem.dealt.sizes]

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        with self._bound("train", self._measure_work(tasks)):
            replies = super().train(broadcast, tasks)
            for reply in replies if self._stay else ():
                reply.states |= {i: self.spill(s) for i, s in reply.states.items() if not isinstance(s, StateRef)}
        return replies

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test") -> list[dict[str, Tensor]]:
        with self._bound(f"evaluate {split}"):
            return super().evaluate(theta, buffers, split)

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        with self._bound(request.kind, self._measure_work(tasks)):
            return super().evaluate_personal(broadcast, tasks, request)

    def write_states(self, directory: str, versions: Sequence[Version]) -> dict[int, Written]:
        with self._bound("write_states", len(versions)):
            written = super().write_states(directory, versions)
        note_hashes({i: known.sha256 for i, known in written.items()}, {i: state for i, _, state in versions})
        return written

    def hash_states(self, states: Mapping[int, ClientState]) -> dict[int, str]:
        with self._bound("hash_states", len(states)):
            hashes = super().hash_states(states)
        note_hashes(hashes, states)
        return hashes

    def spill(self, state: Vectors) -> ClientState:
        sent = as_arrays(state)
        return ObjectState(ray.put(sent)) if sum(array.nbytes for array in sent.values()) >= self.stays_from else state

    def _measure_work(self, tasks: Sequence[ClientTask]) -> float:
        return float(sum(self._steps[task.client] for task in tasks))

    @contextlib.contextmanager
    def _bound(self, kind: str, work: float = 1.0) -> Iterator[None]:
        """Announce a call of this kind and amount of work, and time it, for the duration of a block."""
        work = max(work, 1.0)
        self.heartbeat.announce(self._timeouts.get_limit(kind, work, 0))
        began = time.monotonic()
        yield
        self._timeouts.note(kind, work, time.monotonic() - began)
