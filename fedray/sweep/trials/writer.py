"""Thread that writes to MLflow, so that neither Tune nor an actor waits for the store or for a plot."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Writer:
    """Calls functions one after another in a thread of its own, the only one that uses the tracker.

    At the end of the block it waits until all have been called.

    Attributes:
        refusal: the exception that a call raised.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "mlflow")
        self._sent: deque[Future[Any]] = deque()
        self.refusal: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def send(self, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write` after everything sent before. Its exception is raised by `check` or `finish`."""
        self._sent.append(self._pool.submit(write, *arguments))

    def ask(self, read: Callable[..., T], *arguments: Any) -> T:
        """Call `read` after everything sent before and return its result. Raises its exception, or an earlier one."""
        answer = self._pool.submit(read, *arguments)
        self.finish()
        return answer.result()

    @property
    def idle(self) -> bool:
        """True if everything sent has been called and checked."""
        return not self._sent

    def check(self) -> None:
        """Raise the first exception so far."""
        while self._sent and self._sent[0].done():
            self._raise(self._sent.popleft())

    def finish(self) -> None:
        """Wait until everything has been called. Raises the first exception, unless it was raised before."""
        while self._sent:
            self._raise(self._sent.popleft())

    def _raise(self, sent: Future[Any]) -> None:
        error = sent.exception()
        if self.refusal is None and error is not None:  # the others fail for the same reason
            self.refusal = error
            raise error
