"""Writes that must arrive, in order, at a store that may be unreachable for a while, and how far they have got with a
run. No MLflow in here."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from fedray.cells.cell import Cell
from fedray.common.errors import UserError, format_count, redact
from fedray.common.location import start_call
from fedray.common.process import GRACE, ending

log = logging.getLogger("fedray")
T = TypeVar("T")
FIRST, LONGEST = 1.0, 30.0
"""Seconds between attempts while the store is away, doubled from the first to the last value."""
SLOW = 60.0
"""Seconds that a write may take. MLflow limits the time to the next byte only, so one answer can take hours."""


class Outbox:
    """A queue of writes. Sending waits for a write at most SLOW seconds: one that fails is retried at a later call.

    A write may be retried after it has arrived (if its answer was lost), so repeating it must be harmless. One that has
    no answer yet is not repeated: later calls wait for it further, and a process that ends leaves it behind. away:
    returns True for an exception that means the store cannot be reached; others are raised.
    """

    def __init__(
        self,
        away: Callable[[Exception], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._away, self._clock, self._sleep = away, clock, sleep
        self._waiting: deque[Callable[[], object]] = deque()
        self._current: Future[object] | None = None
        self._waited = 0.0
        self._pause = 0.0
        self._next = clock()
        self._last = ""

    def send(self, write: Callable[[], object]) -> None:
        """Write now, or once all earlier writes have arrived."""
        self._waiting.append(write)
        self.flush()

    def flush(self) -> None:
        """Write the queue, unless the store is away and the next attempt is not due yet."""
        while self._waiting and self._clock() >= self._next:
            try:
                self._write_next()
            except Exception as error:
                if not self._away(error):
                    self._waiting.popleft()
                    raise
                self._last = redact(str(error).splitlines()[0])[:200] if str(error) else type(error).__name__
                if not self._pause:
                    log.warning("MLflow is unreachable (%s); buffering writes and retrying", self._last)
                self._pause = min(2 * self._pause or FIRST, LONGEST)
                self._next = self._clock() + self._pause
                return
            self._waiting.popleft()
            if self._pause:
                log.warning("MLflow is reachable again; %d writes are waiting", len(self._waiting))
            self._pause = 0.0

    def _write_next(self) -> None:
        """Make the first write, or wait for it further. Raises its exception; TimeoutError if it has not ended."""
        if self._current is None:
            self._current, self._waited = start_call(self._waiting[0]), 0.0
        before = self._waited
        while not wait([self._current], step := min(SLOW, 0.2)).done:
            self._waited += step
            if self._waited - before >= SLOW or (ending.is_set() and self._waited >= GRACE):
                raise TimeoutError(f"no answer in {min(self._waited, SLOW):.3g} s")
        done, self._current = self._current, None
        done.result()

    def ask(self, read: Callable[[], T], patience: float) -> T:
        """Return a query's answer, which may be retried, once all earlier writes have arrived; raises as `drain`."""
        answer: list[T] = []
        self._waiting.append(lambda: answer.append(read()))
        self.drain(patience)
        return answer[0]

    def drain(self, patience: float) -> None:
        """Wait until everything is written.

        Raises UserError if the store has been away for `patience` seconds, KeyboardInterrupt if it has been away for
        GRACE seconds, and this process is to end.
        """
        since = self._clock()
        left = len(self._waiting)
        self.flush()
        while self._waiting:
            if len(self._waiting) < left:
                since, left = self._clock(), len(self._waiting)
            if ending.is_set() and self._clock() - since >= GRACE:
                log.warning("%s have not arrived in MLflow (%s)", format_count(left, "write"), self._last)
                raise KeyboardInterrupt
            if self._clock() - since >= patience:
                raise UserError(
                    f"MLflow has been unreachable for {patience:.0f} s ({self._last}); {left} writes have "
                    "not arrived. Run the same command again when it is back: that completes the log"
                )
            self._sleep(min(0.2, max(self._next - self._clock(), 0.0)))
            self.flush()


@dataclass
class CellRun:
    """A cell's run in MLflow, while it is written.

    Attributes:
        cell: the cell; its configuration becomes parameters and `config.yaml`.
        tags: for grouping runs.
        parent: id of the sweep's run.
        files: artefacts of the cell: file name -> content.
        shown: this call only shows the run, whose rounds are all made.
        id: empty until the store has made or found it.
        start: milliseconds since 1970 at which it was made; rows are stamped from there.
        logged: the last round that the store has.
        began: when the cell was started here, by the monotonic clock in seconds.
        ended: when it ended, by the same clock; None: when the run is closed.
        spent: seconds that earlier calls spent on it.
        untimed: number of earlier calls that were killed, so that their seconds are not known.
    """

    cell: Cell
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    shown: bool = False
    id: str = ""
    start: int = 0
    logged: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    spent: float = 0.0
    untimed: int = 0

    @property
    def sweep(self) -> str:
        """The name of the sweep that runs it; empty for a run on its own."""
        return self.tags.get("fedray.sweep", "")
