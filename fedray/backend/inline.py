"""Training in this process, and the interface every backend has."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedray.local import Broadcast, Job
from fedray.problem import Problem
from fedray.worker import Partial, Worker, test_chunks


class Backend(Protocol):
    """Where clients are trained. Calls come from one thread, `open` first; results never depend on the backend."""

    def open(self, problem: Problem) -> None:
        """Make ready for a problem; whatever the one before left is replaced."""

    def train(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Partial:
        """Train every job of a round."""

    def evaluate(self, theta: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Exact sums over the whole test set, as `Worker.evaluate`."""

    def close(self) -> None:
        """Give everything back."""


class InlineBackend:
    """One worker, in this process."""

    def open(self, problem: Problem) -> None:
        self._worker = Worker(problem)

    def train(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Partial:
        return self._worker.train(broadcast, jobs)

    def evaluate(self, theta: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return self._worker.evaluate(theta, buffers, range(test_chunks(len(self._worker.test_samples))))

    def close(self) -> None:
        pass
