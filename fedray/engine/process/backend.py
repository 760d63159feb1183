"""Training in this process, and the interface every backend has."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from fedray.common.vectors import Vectors
from fedray.engine.disk import client_files
from fedray.engine.disk.client_files import Version, Written
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.evaluate import count_chunks, evaluate
from fedray.engine.process.personal import evaluate_personal
from fedray.engine.process.train import train
from fedray.engine.process.worker import Worker
from fedray.engine.state import ClientState


class Backend(Protocol):
    """Interface for training clients. Calls come from one thread, `open` first; results never depend on the backend."""

    processes: int
    """Number of processes that train clients."""

    def open(self, problem: Problem) -> None:
        """Prepare for a problem, replacing everything of the previous one."""

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        """Train every task of a round; returns one reply per process."""

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test", round: int = 0) -> list[dict[str, Tensor]]:
        """Return the exact sums of each process over a whole set of `Problem.evaluated`, as `process.evaluate`."""

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        """Test personal models, as `process.personal`."""

    def write_states(self, directory: str, versions: Sequence[Version]) -> dict[int, Written]:
        """Write clients' states on the machine that holds them, as `client_files.write_states`."""

    def close(self) -> None:
        """Release all resources."""


class InlineBackend:
    """One worker, in this process."""

    processes = 1

    def open(self, problem: Problem) -> None:
        self._worker = Worker(problem)
        problem.refuse_other_model(self._worker.network.sha256)
        self._worker.keep_states(self.spill)

    def spill(self, state: Vectors) -> ClientState:
        """Store the state of a client that leaves the training device; here it stays in this process."""
        return Vectors({name: vector.clone() for name, vector in state.items()})  # copies were page-locked

    @contextlib.contextmanager
    def bound(self, kind: str, work: Collection[object]) -> Iterator[None]:
        """Run a call of a kind, on these clients or chunks, in a block."""
        yield

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        with self.bound(broadcast.kind, tasks):
            return [train(self._worker, broadcast, tasks)]

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test", round: int = 0) -> list[dict[str, Tensor]]:
        chunks = range(count_chunks(len(self._worker.problem.evaluated[split])))
        with self.bound(f"evaluate {split}", chunks):
            return [evaluate(self._worker, theta, buffers, chunks, split, round)]

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        with self.bound(request.kind, tasks):
            return evaluate_personal(self._worker, broadcast, tasks, request)

    def write_states(self, directory: str, versions: Sequence[Version]) -> dict[int, Written]:
        with self.bound("write_states", versions):
            return client_files.write_states(directory, versions)

    def close(self) -> None:
        pass
