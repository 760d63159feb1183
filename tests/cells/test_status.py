"""One word per run, and what an exception means for it."""

import pytest

from fedray.cells.status import Status, describe_error
from fedray.common.errors import Diverged, UserError


def test_a_finished_run_counts_before_every_other_one() -> None:
    assert min(Status, key=lambda status: status.rank) is Status.FINISHED
    assert max(Status, key=lambda status: status.rank) is Status.MISSING


@pytest.mark.parametrize("tag", [None, "", "superseded", "of a stranger"])
def test_a_tag_without_a_known_word_is_a_run_in_progress(tag: str | None) -> None:
    assert Status.parse(tag) is Status.RUNNING


def test_each_status_either_has_an_outcome_or_is_open_or_failed() -> None:
    for status in Status:
        assert (status.is_final or status.is_early) + status.is_open + (status is Status.FAILED) == 1
    assert [status for status in Status if status.is_success] == ["finished", "stopped", "pruned"]
    assert [status for status in Status if status.is_final] == ["finished", "diverged"]


def test_divergence_names_its_round() -> None:
    ending = describe_error(Diverged(3, 7, "the loss is nan"))
    assert (ending.status, ending.diverged_round, ending.traceback) == (Status.DIVERGED, 3, "")
    assert "client 7" in ending.message


def test_a_mistake_of_the_user_is_one_line_without_a_traceback() -> None:
    ending = describe_error(UserError("training.lr: found 'x'"))
    assert (ending.status, ending.message, ending.traceback) == (Status.FAILED, "training.lr: found 'x'", "")


def test_any_other_error_keeps_its_traceback() -> None:
    try:
        raise ZeroDivisionError("in a plug-in")
    except ZeroDivisionError as error:
        ending = describe_error(error)
    assert (ending.status, ending.message) == (Status.FAILED, "ZeroDivisionError: in a plug-in")
    assert "test_any_other_error_keeps_its_traceback" in ending.traceback
    assert describe_error(ValueError("x"), "of an actor").traceback == "of an actor"


def test_ctrl_c_interrupts() -> None:
    assert describe_error(KeyboardInterrupt()).status is Status.INTERRUPTED
