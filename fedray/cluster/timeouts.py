"""How long a call may take before its process counts as hung: a multiple of what its run has measured.

A trial enforces the limit of its client actors' calls, the driver that of its trials' (`sweep.trials.watchdog`).
"""

import time
from collections.abc import Callable

FACTOR = 20.0
"""How many times the slowest pace measured so far."""
FLOOR = 120.0
"""Seconds that every call may take: a machine that swaps or starts processes is not hung."""
FIRST = 3600.0
"""Seconds for a call of a kind that has not been measured yet."""
SILENT = 2 * FLOOR
"""Seconds that a trial may let pass after a report without a heartbeat."""


class CallTimeouts:
    """The slowest pace of each kind of call, in seconds per unit of work (local steps, chunks, clients)."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}

    def get_limit(self, kind: str, work: float, attempt: int) -> float:
        """Return how many seconds a call may take, doubled with each attempt: a call that is only slow ends at last."""
        slowest = self._slowest.get(kind)
        allowed = FIRST if slowest is None else max(FLOOR, FACTOR * slowest * work)
        return float(allowed * 2**attempt)

    def note(self, kind: str, work: float, seconds: float) -> None:
        """Note how many seconds a call of this kind has taken."""
        self._slowest[kind] = max(self._slowest.get(kind, 0.0), seconds / work)


class Heartbeat:
    """Tells the driver how long a trial may stay silent, so that a slow trial is not taken for a hung one.

    A trial reports about every second if rounds are short. Only before a call that may take longer it announces that.

    Args:
        send: tells the driver in how many seconds it will hear of the trial again.
    """

    def __init__(self, send: Callable[[float], None] = lambda seconds: None) -> None:
        self._send, self._until = send, 0.0

    def note_report(self) -> None:
        """The trial reports now; without a heartbeat the driver waits `SILENT` seconds from here."""
        self._until = time.monotonic() + SILENT

    def announce(self, seconds: float) -> None:
        """Announce a call that may take so long, unless it fits into the silence that the driver allows anyway."""
        if time.monotonic() + seconds > self._until:
            self._send(seconds + FLOOR)
            self._until = time.monotonic() + seconds + FLOOR
