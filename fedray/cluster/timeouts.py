"""How long an actor may take for a call before it counts as hung: a multiple of what its run has measured."""

FACTOR = 20.0
"""How many times the slowest pace measured so far."""
FLOOR = 120.0
"""Seconds that every call may take: a machine that swaps or starts processes is not hung."""
FIRST = 3600.0
"""Seconds for a call of a kind that has not been measured yet."""


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
