"""How long a call may take before whoever makes it counts as hung: a multiple of what its run has measured."""

import time
from collections.abc import Callable

FACTOR = 20.0
"""How many times the slowest pace measured so far."""
FLOOR = 120.0
"""Seconds that every call may take: a machine that swaps or starts processes is not hung."""
FIRST = 3600.0
"""Seconds for a call of a kind that has not been measured yet."""
SILENT = 2 * FLOOR
"""Seconds that a trial may let pass after a report without another word."""


class CallTimeouts:
    """The slowest pace of each kind of call, in seconds per unit of work (local steps, chunks, clients)."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}

    def limit(self, kind: str, work: float, attempt: int) -> float:
        """Seconds that a call may take, doubled with each attempt: what is only slow comes through in the end."""
        slowest = self._slowest.get(kind)
        allowed = FIRST if slowest is None else max(FLOOR, FACTOR * slowest * work)
        return float(allowed * 2**attempt)

    def measured(self, kind: str, work: float, seconds: float) -> None:
        """A call of this kind took so long."""
        self._slowest[kind] = max(self._slowest.get(kind, 0.0), seconds / work)


class Silence:
    """How long a trial may stay silent before its driver takes it for hung.

    A trial reports about every second where rounds are short. Before a call that may take longer it says so, so that
    its driver never takes a slow one for a hung one.

    Args:
        tell: tells the driver the seconds until which it will hear of the trial again.
    """

    def __init__(self, tell: Callable[[float], None] = lambda seconds: None) -> None:
        self._tell, self._until = tell, 0.0

    def reported(self) -> None:
        """The driver hears of the trial now; without another word it waits `SILENT` from here."""
        self._until = time.monotonic() + SILENT

    def ask(self, seconds: float) -> None:
        """A call begins that may take so long."""
        if time.monotonic() + seconds > self._until:
            self._tell(seconds + FLOOR)
            self._until = time.monotonic() + seconds + FLOOR
