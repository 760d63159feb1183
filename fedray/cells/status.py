"""How far a run of a cell is, in one word."""

from enum import StrEnum
from typing import Self


class Status(StrEnum):
    """How far a run of a cell is; MLflow holds it in the tag `fedray.status`.

    The members are in order of preference: if a cell has several runs, the one whose status comes first counts.
    """

    FINISHED = "finished"
    """All rounds were made."""
    DIVERGED = "diverged"
    """Numbers became infinite, NaN, or too large to be summed exactly."""
    STOPPED = "stopped"
    """Ended early by the sweep file's `stop`, or by a callback that returned `fedray.STOP`."""
    PRUNED = "pruned"
    """Ended early by a scheduler."""
    FAILED = "failed"
    """Ended by an error."""
    INTERRUPTED = "interrupted"
    """Ended by a signal; the same command resumes it."""
    RUNNING = "running"
    """In progress, or its driver was killed."""
    MISSING = "missing"
    """The cell has no run."""

    @classmethod
    def parse(cls, tag: str | None) -> Self:
        """Return the status that a run's tag names; a run without a known one is taken to be running."""
        try:
            return cls(tag or "running")
        except ValueError:
            return cls("running")

    @property
    def rank(self) -> int:
        """Position in the order of preference; 0 is the best."""
        return list(type(self)).index(self)

    @property
    def is_final(self) -> bool:
        """True if another call of the sweep would give the same outcome, so that the cell is not run again."""
        return self in (Status.FINISHED, Status.DIVERGED)

    @property
    def is_early(self) -> bool:
        """True if the sweep's rules ended the run before its last round."""
        return self in (Status.STOPPED, Status.PRUNED)

    @property
    def is_success(self) -> bool:
        """True if the run ended as intended: its summary metrics are logged, and MLflow shows it as FINISHED."""
        return self is Status.FINISHED or self.is_early

    @property
    def has_outcome(self) -> bool:
        """True if the run came to an end that says something about the configuration."""
        return self.is_final or self.is_early

    @property
    def is_open(self) -> bool:
        """True if the run has not come to an end of its own."""
        return self in (Status.INTERRUPTED, Status.RUNNING, Status.MISSING)
