"""Limits of calls: a process counts as hung after a multiple of the time that its run has measured.

A trial enforces the limits for its client actors, the driver the limits for its trials (`sweep.tune.Watchdog`).
"""

import time
from collections.abc import Callable

FACTOR = 20.0
"""Multiple of the slowest pace measured so far."""
FLOOR = 120.0
"""Seconds that every call may take: a machine may swap, or start processes, without being hung."""
FIRST = 3600.0
"""Seconds for a call of a kind that has not been measured yet."""
SILENT = 2 * FLOOR
"""Seconds that a trial may be silent after a report without a heartbeat."""


class CallTimeouts:
    """The slowest pace of each kind of call, in seconds per unit of work (local steps, chunks, clients)."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}

    def get_limit(self, kind: str, work: float, attempt: int) -> float:
        """Return the seconds that a call may take, doubled with each attempt, so that a slow call ends eventually."""
        slowest = self._slowest.get(kind)
        allowed = FIRST if slowest is None else max(FLOOR, FACTOR * slowest * work)
        return float(allowed * 2**attempt)

    def note(self, kind: str, work: float, seconds: float) -> None:
        """Record the duration of a call of this kind in seconds."""
        self._slowest[kind] = max(self._slowest.get(kind, 0.0), seconds / work)


class Heartbeat:
    """Tells the driver how long a trial may stay silent, so that a slow trial is not presumed hung.

    A trial reports about every second if rounds are short. It announces only calls that may take longer. send: tells
    the driver within how many seconds it will hear from the trial again.
    """

    def __init__(self, send: Callable[[float], None] = lambda seconds: None) -> None:
        self._send, self._until = send, 0.0

    def note_report(self) -> None:
        """Note that the trial reports now; without a heartbeat the driver then waits `SILENT` seconds."""
        self._until = time.monotonic() + SILENT

    def announce(self, seconds: float) -> None:
        """Announce a call that may take this long, unless the driver allows that much silence anyway."""
        if time.monotonic() + seconds > self._until:
            self._send(seconds + FLOOR)
            self._until = time.monotonic() + seconds + FLOOR
