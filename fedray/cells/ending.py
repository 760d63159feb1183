"""How a run ended, and what an exception says about that."""

import traceback
from dataclasses import dataclass
from enum import Enum

from fedray.cells.status import Status
from fedray.common.errors import Diverged, PluginError, UserError

INTERRUPTED = "interrupted; run the same command again to resume"


class Answer(Enum):
    """What a callback may answer."""

    STOP = "stop"

    def __repr__(self) -> str:
        return f"fedray.{self.name}"


STOP = Answer.STOP
"""The answer of a callback of `fedray.simulate` that ends the run after this round and keeps its result.

Examples:
    >>> fedray.simulate(config, evaluated=lambda row: fedray.STOP)
    <Result of fedavg on digits: 1 of 2 rounds, test accuracy ...>
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
    """Return what an exception means for the run that raised it.

    Args:
        error: the exception. A `UserError` fails the run with one line; any other error keeps its traceback.
        trace: text of the traceback if it was raised in another process; default: the exception's own.
    """
    if isinstance(error, Diverged):
        return Ending(Status.DIVERGED, str(error), diverged_round=error.round)
    if isinstance(error, KeyboardInterrupt):
        return Ending(Status.INTERRUPTED, INTERRUPTED)
    if isinstance(error, UserError):
        return Ending(Status.FAILED, str(error), error.trace if isinstance(error, PluginError) else "")
    text = f"{type(error).__name__}: {error}"
    return Ending(Status.FAILED, text, trace or "".join(traceback.format_exception(error)))
