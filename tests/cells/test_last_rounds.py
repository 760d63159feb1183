"""Which rounds count at the end of a run, and how they are named."""

from collections.abc import Sequence

import pytest

from fedray.cells.metric import describe_accuracy, describe_rounds, find_last_values, list_last_rounds
from fedray.config import Evaluation


@pytest.mark.parametrize(
    ("rounds", "first"),
    [(1, 1), (4, 4), (5, 5), (9, 9), (10, 9), (20, 17), (49, 41), (50, 41), (59, 50), (100, 91), (800, 791)],
)
def test_a_fifth_of_the_rounds_but_one_to_ten(rounds: int, first: int) -> None:
    """49 // 5 = 9: 41 to 49; from 50 on ten; below ten rounds only the last one."""
    assert list_last_rounds(rounds) == range(first, rounds + 1)


@pytest.mark.parametrize(
    ("rounds", "asked", "globally", "personally"),
    [
        (100, {}, tuple(range(91, 101)), ()),
        (100, {"last": 1}, (100,), ()),
        (100, {"every": 4, "last": 1}, (92, 96, 100), ()),
        (20, {}, (17, 18, 19, 20), ()),
        (3, {}, (3,), ()),
        (100, {"personal": {}}, tuple(range(91, 101)), (100,)),
        (100, {"last": 1, "personal": {"every": 3}}, (93, 96, 99, 100), (93, 96, 99, 100)),
        (98, {"last": 1, "personal": {"every": 9}}, (90, 98), (90, 98)),
    ],
)
def test_evaluations_that_are_averaged(
    rounds: int, asked: dict[str, object], globally: tuple[int, ...], personally: tuple[int, ...]
) -> None:
    """With every fourth round of 100 and the last: 92, 96, 100. A round with personal tests is an evaluated one; of 98
    rounds 89 to 98 count: 90 is tested either way, and the last.
    """
    evaluation = Evaluation.model_validate(asked)
    assert evaluation.list_averaged(rounds) == globally
    assert evaluation.list_averaged(rounds, personal=True) == personally


def test_by_default_short_runs_are_evaluated_in_every_round() -> None:
    """11 rounds: the last ten are 2 to 11."""
    evaluation = Evaluation()
    assert [t for t in range(1, 8) if evaluation.is_due(t, 7)] == [1, 2, 3, 4, 5, 6, 7]
    assert [t for t in range(1, 12) if evaluation.is_due(t, 11)] == list(range(2, 12))


def test_rows_without_the_metric_are_left_out() -> None:
    """Rounds 17 to 20 of 20 count; personal accuracy is known only in 10 and 20."""
    history = [{"round": float(t), "test_accuracy": 2.0 * t} for t in range(1, 21)]
    for t in (10, 20):
        history[t - 1]["personal_accuracy"] = 3.0 * t
    assert find_last_values(history, "personal_accuracy") == {20: 60}
    assert find_last_values(history, "test_accuracy") == {17: 34, 18: 36, 19: 38, 20: 40}
    assert describe_accuracy(history) == "37.00 %, mean of rounds 17 to 20; personal 60.00 %, round 20"
    del history[-1]["personal_accuracy"]
    assert describe_accuracy(history) == "37.00 %, mean of rounds 17 to 20"


HUNDRED, FIFTY, TWENTY = range(91, 101), range(41, 51), range(17, 21)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([HUNDRED, HUNDRED], "mean of rounds 91 to 100"),
        ([(100,)], "round 100"),
        ([(100,), (50,)], "the last round"),
        ([(92, 96, 100)], "mean of the tests in rounds 91 to 100"),
        ([HUNDRED, (100,)], "mean of the tests in rounds 91 to 100"),
        ([HUNDRED, FIFTY], "mean of the last 10 rounds"),
        ([HUNDRED, TWENTY], "mean of the tests in the last fifth of the rounds, at most 10"),
        ([HUNDRED, (50,)], "mean of the tests in the last fifth of the rounds, at most 10"),
        ([], "mean of the tests in the last fifth of the rounds, at most 10"),
    ],
)
def test_words_are_true_for_all_runs(runs: Sequence[Sequence[int]], said: str) -> None:
    assert describe_rounds(runs) == said
