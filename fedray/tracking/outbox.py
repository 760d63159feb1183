"""Calls of a store that may be unreachable for a while, in order, and how far they have got with a run. No MLflow in
here."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedray.cells.cell import Cell
from fedray.common.errors import UserError, format_count, redact
from fedray.common.location import get_patience, start_call
from fedray.common.process import GRACE, ending

log = logging.getLogger("fedray")
T = TypeVar("T")
FIRST, LONGEST = 1.0, 30.0
"""Seconds between attempts while the store is away, doubled from the first to the last value; the last one also
between lines that say how many writes are left."""
SLOW = 60.0
"""Seconds that a call may take. MLflow limits the time to the next byte only, so one answer can take hours."""
STEP = 0.2
"""Seconds after which a call that waits looks up whether it is still to."""


class Outbox(AbstractContextManager["Outbox"]):
    """Calls functions one after another in a thread of its own, the only one that uses the store; these use `deliver`.

    At the end of the block it waits until all have been called.

    Attributes:
        refusal: the exception that a function raised.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._patience, self._clock, self._sleep = get_patience(), clock, sleep
        self._pool = ThreadPoolExecutor(1, "mlflow")
        self._sent: deque[Future[Any]] = deque()
        self._waited = -math.inf  # since when somebody waits for it; inf: nobody does
        self._ended = math.inf  # since when this process is to end
        self._given_up: BaseException | None = None
        self.refusal: BaseException | None = None

    def __exit__(self, *_: object) -> None:
        self._waited = min(self._waited, self._clock())
        self._pool.shutdown()

    def send(self, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write` after everything sent before. Its exception is raised by `finish`."""
        self._waited = math.inf
        self._sent.append(self._pool.submit(self._call, write, *arguments))

    def ask(self, read: Callable[..., T], *arguments: Any) -> T:
        """Call `read` after everything sent before and return its result. Raises its exception, or an earlier one."""
        answer = self._pool.submit(read, *arguments)
        self.finish()
        return answer.result()

    def finish(self, wait: bool = True) -> None:
        """Wait until everything has been called. Raises the first exception so far, unless it was raised before."""
        if wait:
            self._waited = min(self._waited, self._clock())
        said = self._clock()
        while self._sent and (wait or self._sent[0].done()):
            if self._clock() - said >= LONGEST:
                log.warning("MLflow: %s left", self._format_left())
                said = self._clock()
            error = self._sent[0].exception()
            self._sent.popleft()
            if self.refusal is None and error is not None:  # the others fail for the same reason
                self.refusal = error
                raise error

    def _call(self, write: Callable[..., object], *arguments: Any) -> None:
        self._check_end("")
        write(*arguments)

    def deliver(self, call: Callable[[], T], away: Callable[[Exception], bool]) -> T:
        """Return what a call of the store answers; while the store is away, the call is repeated.

        It may be repeated after it has arrived (if its answer was lost), so that must be harmless. One that has no
        answer yet is not repeated: it is waited for further, and a process that ends leaves it behind. away: returns
        True for an exception that means the store cannot be reached; others are raised.

        Raises UserError if the store has been away for the user's patience, KeyboardInterrupt if this process is to end
        and somebody has waited for GRACE seconds since; nothing is called from then on. While functions are sent, and
        nobody waits for their end, it may be away for ever.
        """
        self._check_end("")
        began, pause, lost = self._clock(), FIRST, ""
        while True:
            answer, asked = start_call(call), self._clock()
            while not wait_for([answer], STEP).done:
                slow = "" if self._clock() - asked < SLOW else f"no answer in {SLOW:.3g} s"
                lost = self._note(began, lost, slow)
            error = answer.exception()
            if not isinstance(error, Exception) or not away(error):
                break
            reason = redact(str(error).splitlines()[0])[:200] if str(error) else type(error).__name__
            again, pause = self._clock() + pause, min(2 * pause, LONGEST)
            while self._clock() < again:
                lost = self._note(began, lost, reason)
                self._sleep(min(STEP, again - self._clock()))
        if lost:
            log.warning("MLflow is reachable again; %s waiting", format_count(self._count_waiting(), "write"))
        return answer.result()

    def _note(self, began: float, lost: str, reason: str) -> str:
        """Return why the store counts as away, newest first; empty if it does not. Raises as `deliver`."""
        if reason and not lost:
            log.warning("MLflow is unreachable (%s); buffering writes and retrying", reason)
        lost = reason or lost
        self._check_end(lost)
        if lost and self._clock() - max(began, self._waited) >= self._patience:
            self._given_up = UserError(
                f"MLflow has been unreachable for {self._patience:.0f} s ({lost}); not in it yet: "
                f"{self._format_left()}. Run the same command again when it is back: that completes the log"
            )
            raise self._given_up
        return lost

    def _check_end(self, lost: str) -> None:
        """Raise what the outbox has given up with; GRACE seconds after SIGTERM, however many writes wait."""
        if self._given_up is None and ending.is_set():
            self._ended = min(self._ended, self._clock())
            if self._clock() - max(self._ended, self._waited) >= GRACE:
                why = lost or f"{GRACE:.3g} s were not enough"
                log.warning("not in MLflow yet: %s (%s)", self._format_left(), why)
                self._given_up = KeyboardInterrupt()
        if self._given_up is not None:
            raise self._given_up

    def _format_left(self) -> str:
        """Return how many writes the store lacks, with the current one."""
        return format_count(1 + self._count_waiting(), "write")

    def _count_waiting(self) -> int:
        """Return the number of writes behind the current call."""
        return max(0, sum(not one.done() for one in tuple(self._sent)) - 1)


@dataclass
class CellRun:
    """A cell's run in MLflow, while it is written.

    Attributes:
        cell: the cell; its configuration becomes parameters and `config.yaml`.
        tags: for grouping runs.
        parent: id of the sweep's run.
        files: artefacts of the cell: file name -> content.
        shown: this call only shows the run, whose rounds are all made.
        tried: the store has been asked to make it.
        id: empty until the store has made or found it.
        start: milliseconds since 1970 at which it was made; rows are stamped from there.
        logged: the last round that the store has.
        unwritten: rows that the store has refused, which are sent again with the next ones.
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
    tried: bool = False
    id: str = ""
    start: int = 0
    logged: int = 0
    unwritten: Sequence[Mapping[str, float]] = ()
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    spent: float = 0.0
    untimed: int = 0

    @property
    def sweep(self) -> str:
        """The name of the sweep that runs it; empty for a run on its own."""
        return self.tags.get("fedray.sweep", "")
