"""Seconds of each part of each round, for `fedray run --profile`."""

import time

PARTS = ("broadcast", "local", "reduce", "evaluate", "report", "checkpoint")
"""broadcast: cohort, message, what each client receives. local: the backend's training, including transport and
waiting.
reduce: adding up the parts' sums, aggregation, the new state. evaluate: all tests. report: MLflow, or another receiver
of rows. checkpoint: files."""


class Profile:
    """Seconds of each part, one dictionary per round. Made only for `--profile`."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Begin a round."""
        self.rounds.append(dict.fromkeys(PARTS, 0.0))
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """Attribute the time since the last call to this part."""
        now = time.perf_counter()
        self.rounds[-1][part] += now - self._since
        self._since = now

    def average_seconds(self) -> dict[str, float]:
        """Return `profile_PART_seconds`: mean seconds per round."""
        count = max(len(self.rounds), 1)
        return {f"profile_{part}_seconds": sum(row[part] for row in self.rounds) / count for part in PARTS}

    def format_table(self) -> str:
        """Format mean seconds per round and each part's share, one line per part."""
        means = dict(zip(PARTS, self.average_seconds().values(), strict=True))
        whole = sum(means.values()) or 1.0
        return "\n".join(
            f"{part:<11}{seconds:10.4f} s a round{100 * seconds / whole:8.1f} %" for part, seconds in means.items()
        )
