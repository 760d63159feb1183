"""Where a run's time goes: seconds of each part of each round, for `fedray run --profile`."""

import time
from typing import Any

PARTS = ("broadcast", "local", "reduce", "evaluate", "report", "checkpoint")
"""broadcast: cohort, message, what each client receives. local: the backend's training, transport and waiting included.
reduce: the sums' end, aggregation, the new state. evaluate: all tests. report: MLflow, or whoever is told of a row.
checkpoint: files."""


class Profile:
    """Seconds of each part, a dictionary per round. A run that is not profiled has none of it."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self._since = time.perf_counter()

    def begin(self) -> None:
        """A round begins."""
        self.rounds.append(dict.fromkeys(PARTS, 0.0))
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """What has passed since the last call was this part's."""
        now = time.perf_counter()
        self.rounds[-1][part] += now - self._since
        self._since = now

    def metrics(self) -> dict[str, float]:
        """`profile_PART_seconds`: mean seconds of a round."""
        count = max(len(self.rounds), 1)
        return {f"profile_{part}_seconds": sum(row[part] for row in self.rounds) / count for part in PARTS}

    def record(self) -> dict[str, Any]:
        """What a run's log holds of it: `metrics` and every round's seconds, `rounds`."""
        return {"metrics": self.metrics(), "rounds": self.rounds}

    def table(self) -> str:
        """Mean seconds of a round and share of each part, a line each."""
        means = {part: self.metrics()[f"profile_{part}_seconds"] for part in PARTS}
        whole = sum(means.values()) or 1.0
        return "\n".join(
            f"{part:<11}{seconds:10.4f} s a round{100 * seconds / whole:8.1f} %" for part, seconds in means.items()
        )
