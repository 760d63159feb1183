"""How far a run of a cell is, in one word, how it ended, and what an exception says about that."""

import traceback
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

from fedray.common.errors import Diverged, PluginError, UserError
from fedray.common.process import INTERRUPTED

SUPERSEDED = "superseded"
"""Word in place of a status: another run of the cell counts instead of this one."""


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
    UNLOGGED = "finished but not yet in MLflow"
    """Trained to its last round, but the driver was killed before it logged that; the same command logs it. No run has
    this status: the cell's checkpoints in this storage tell."""
    RUNNING = "running"
    """In progress, or its driver was killed."""
    MISSING = "missing"
    """The cell has no run."""

    @classmethod
    def parse(cls, tag: str | None) -> Self:
        """Return the status that a run's tag names; a run without a known one is taken to be running."""
        return cls(tag if tag in list(cls) else "running")

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
    def is_open(self) -> bool:
        """True if the run has not come to an end of its own."""
        return self in (Status.INTERRUPTED, Status.UNLOGGED, Status.RUNNING, Status.MISSING)


class Answer(Enum):
    """A callback's answer."""

    STOP = "stop"

    def __repr__(self) -> str:
        return f"fedray.{self.name}"


STOP = Answer.STOP
"""The answer of a callback of `fedray.simulate` that ends the run after this round and keeps its result.

Examples:
    >>> fedray.simulate(config, evaluated=lambda row: fedray.STOP)
    <Result of fedavg on digits: stopped after 1 of 2 rounds, test accuracy ...>
"""


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: its status from now on.
        message: the reason in one line; empty if the run finished.
        traceback: for an error that is not the user's to correct; else empty.
        diverged_round: 1-based round in which numbers went wrong; None for any other ending.
        stopper: name of the rule that ended the run early; else empty.
    """

    status: Status
    message: str = ""
    traceback: str = ""
    diverged_round: int | None = None
    stopper: str = ""


def describe_error(error: BaseException, trace: str = "") -> Ending:
    """Return what an exception means for the run that raised it; trace: its traceback, if it was in another process.

    A `UserError` fails the run with one line; any other error keeps its traceback.
    """
    if isinstance(error, Diverged):
        return Ending(Status.DIVERGED, str(error), diverged_round=error.round)
    if isinstance(error, KeyboardInterrupt):
        return Ending(Status.INTERRUPTED, INTERRUPTED)
    if isinstance(error, UserError):
        return Ending(Status.FAILED, str(error), error.trace if isinstance(error, PluginError) else "")
    text = f"{type(error).__name__}: {error}"
    return Ending(Status.FAILED, text, trace or "".join(traceback.format_exception(error)))
