"""The grammar of metrics' names, the rounds at the end of a run that count, and a run's status."""

from collections.abc import Sequence

import pytest

from fedray.cells.metric import KNOWN, Metric, describe_accuracy, describe_rounds, find_last_values, list_last_rounds
from fedray.cells.status import Status, describe_error
from fedray.common.errors import Diverged, UserError
from fedray.config import Evaluation
from fedray.engine.server.profile import Profile
from tests.conftest import each


@each(
    ("test_accuracy", "test_accuracy", "", "", None, False),
    ("last10_test_loss", "test_loss", "last10_", "", None, True),
    ("best_personal_accuracy_e5", "personal_accuracy", "best_", "5", None, False),
    ("personal_best", "personal_best", "", "", None, False),
    ("accuracy_e5", "accuracy_e5", "", "", None, False),  # fine-tuning is for personal models
    ("rounds_to:80", "rounds_to", "", "", 80.0, True),
    ("rounds_to:fedavg", "rounds_to", "", "", "fedavg", True),
)
def test_name_parts(name: str, plain: str, prefix: str, epochs: str, target: float | str | None, smaller: bool) -> None:
    found = Metric.parse(name)
    assert (found, found.is_smaller_better) == (Metric(name, plain, prefix, epochs, target), smaller)


@each(
    ("speedup:80/fedavg", "rounds_to:80", 80.0, "fedavg", False),
    ("slowdown:79.5/fedsam ρ=0.1", "rounds_to:79.5", 79.5, "fedsam ρ=0.1", True),
)
def test_ratios_of_rounds(name: str, rounds: str, target: float | str, reference: str, smaller: bool) -> None:
    found = Metric.parse(name)
    assert (found.rounds, found.target, found.reference) == (rounds, target, reference)
    assert found.is_smaller_better == smaller


@each("rounds_to", "rounds_to:0.8", "rounds_to:101", "speedup", "slowdown:80", "speedup:0/fedavg")
def test_targets_that_no_run_can_have_and_ratios_without_a_method(name: str) -> None:
    kind = name.partition(":")[0]
    form = "/METHOD with a test accuracy from 1 to 100 is required" if kind != "rounds_to" else ""
    with pytest.raises(UserError, match=f"--metric: found '{name}'; {kind}:PERCENT{form}"):
        Metric.parse(name, "--metric")


def test_every_metric_is_best_at_one_end_and_may_look_at_the_test_set() -> None:
    """A new metric belongs to one of these lists: nothing is read off its letters."""
    losses = {"validation_loss", "test_loss", "train_loss"}
    deviations = {
        "personal_std", "personal_train_std", "unseen_std", "validation_client_std", "validation_personal_std",
    }  # fmt: skip
    costs = {
        "seconds", "seconds_per_round", "seconds_per_round_with_evaluation", "megabytes_down", "megabytes_up",
        "megabytes_sent", "megabytes_kept_by_client", "megabytes_held_by_client", "megabytes_kept_by_server",
        "relative_flops", "dropped_clients",
    }  # fmt: skip
    accuracies = {
        f"{name}_accuracy"
        for name in (
            "test", "test_balanced", "train", "personal", "personal_weighted", "personal_train", "generic", "unseen",
            "unseen_finetuned", "validation", "validation_client", "validation_personal",
        )
    }  # fmt: skip
    tested = ("personal", "personal_train", "unseen", "validation_client", "validation_personal")
    tails = {f"{name}_worst10" for name in tested}
    clients = {"personal_best", "personal_worst", "personal_train_best", "personal_train_worst"}
    known = losses | deviations | costs | accuracies | tails | clients | {"test_macro_f1", "test_auc"}
    assert KNOWN.keys() == known, "name it here, too"
    lower = {name for name in known if Metric.parse(name).is_smaller_better}
    assert lower == losses | deviations | costs, "give it `lower` in BY_ROUND if small values are good"
    assert all(Metric.parse(name).is_smaller_better for name in Profile().average_seconds())
    held_out = [name for name in ("last10_validation_client_accuracy", "best_test_accuracy", "final_personal_accuracy")]
    assert [Metric.parse(name).is_on_test_set for name in held_out] == [False, True, True]


@pytest.mark.parametrize(("rounds", "first"), [(1, 1), (9, 9), (10, 9), (20, 17), (49, 41), (50, 41), (800, 791)])
def test_a_fifth_of_the_rounds_but_one_to_ten(rounds: int, first: int) -> None:
    """49 // 5 = 9: 41 to 49; from 50 on ten; below ten rounds only the last one."""
    assert list_last_rounds(rounds) == range(first, rounds + 1)


@each(
    (100, {}, tuple(range(91, 101)), ()), (100, {"every": 4, "last": 1}, (92, 96, 100), ()),
    (20, {}, (17, 18, 19, 20), ()), (3, {}, (3,), ()), (100, {"personal": {}}, tuple(range(91, 101)), (100,)),
    (100, {"last": 1, "personal": {"every": 3}}, (93, 96, 99, 100), (93, 96, 99, 100)),
)  # fmt: skip
def test_mean_rounds(rounds: int, asked: dict[str, object], plain: tuple[int, ...], personal: tuple[int, ...]) -> None:
    """With every fourth round of 100 and the last: 92, 96, 100. A round with personal tests is an evaluated one; of 98
    rounds 89 to 98 count: 90 is tested either way, and the last."""
    evaluation = Evaluation.model_validate(asked)
    assert (evaluation.list_averaged(rounds), evaluation.list_averaged(rounds, personal=True)) == (plain, personal)


def test_short_runs_are_evaluated_in_every_round_and_rows_without_the_metric_left_out() -> None:
    """11 rounds: the last ten, 2 to 11. Rounds 17 to 20 of 20 count; personal accuracy is known only in 10 and 20."""
    evaluation = Evaluation()
    assert [t for t in range(1, 8) if evaluation.is_due(t, 7)] == [1, 2, 3, 4, 5, 6, 7]
    assert [t for t in range(1, 12) if evaluation.is_due(t, 11)] == list(range(2, 12))
    history = [{"round": float(t), "test_accuracy": 2.0 * t} for t in range(1, 21)]
    for t in (10, 20):
        history[t - 1]["personal_accuracy"] = 3.0 * t
    assert find_last_values(history, "personal_accuracy") == {20: 60}
    assert find_last_values(history, "test_accuracy") == {17: 34, 18: 36, 19: 38, 20: 40}
    assert describe_accuracy(history) == "37.00 %, mean of rounds 17 to 20; personal 60.00 %, round 20"
    del history[-1]["personal_accuracy"]
    assert describe_accuracy(history) == "37.00 %, mean of rounds 17 to 20"


HUNDRED, FIFTY, TWENTY = range(91, 101), range(41, 51), range(17, 21)


@each(
    ([HUNDRED, HUNDRED], "mean of rounds 91 to 100"), ([(100,)], "round 100"), ([(100,), (50,)], "the last round"),
    ([(92, 96, 100)], "mean of the tests in rounds 91 to 100"), ([HUNDRED, FIFTY], "mean of the last 10 rounds"),
    ([HUNDRED, TWENTY], "mean of the tests in the last fifth of the rounds, at most 10"),
    ([], "mean of the tests in the last fifth of the rounds, at most 10"),
)  # fmt: skip
def test_words_are_true_for_all_runs(runs: Sequence[Sequence[int]], said: str) -> None:
    assert describe_rounds(runs) == said


def test_each_status_either_has_an_outcome_or_is_open_or_failed() -> None:
    """A tag without a known word is a run in progress; a finished run counts before every other one."""
    for status in Status:
        assert (status.is_final or status.is_early) + status.is_open + (status is Status.FAILED) == 1
    assert [status for status in Status if status.is_success] == ["finished", "stopped", "pruned"]
    assert [status for status in Status if status.is_final] == ["finished", "diverged"]
    assert min(Status, key=lambda status: status.rank) is Status.FINISHED
    assert max(Status, key=lambda status: status.rank) is Status.MISSING
    assert {Status.parse(tag) for tag in (None, "superseded", "of a stranger")} == {Status.RUNNING}


@each(
    (Diverged(3, 7, "the loss is nan"), Status.DIVERGED, "client 7", False),
    (UserError("training.lr: found 'x'"), Status.FAILED, "training.lr: found 'x'", False),
    (ZeroDivisionError("in a plug-in"), Status.FAILED, "ZeroDivisionError: in a plug-in", True),
    (KeyboardInterrupt(), Status.INTERRUPTED, "", True),
)
def test_how_an_error_ends_a_run(error: BaseException, status: Status, message: str, traced: bool) -> None:
    """A user's mistake is one line; any other error keeps its traceback, of an actor, too."""
    try:
        raise error
    except BaseException as raised:
        ending = describe_error(raised)
    assert (ending.status, ending.diverged_round) == (status, 3 if status is Status.DIVERGED else None)
    assert message in ending.message
    assert ("test_how_an_error_ends_a_run" in ending.traceback) == (traced and status is Status.FAILED)
    assert describe_error(ValueError("x"), "of an actor").traceback == "of an actor"
