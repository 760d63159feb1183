"""The learning rate of each round, by hand, and in the rows of a run."""

from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.config import Training
from tests import small


def rates(rounds: int, **options: Any) -> list[float]:
    """η_t of every round, η = 1."""
    training = Training(lr=1.0, rounds=rounds, **options)
    return [training.compute_lr(t) for t in range(rounds)]


def test_cosine() -> None:
    """T = 4: (1 + cos(π t/4))/2 at 0, 45, 90 and 135 degrees; the last is (1 - √½)/2, above 0."""
    assert rates(4, lr_schedule="cosine") == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2], rel=1e-12)


def test_step() -> None:
    assert rates(6, lr_schedule="step", lr_step={"every": 2, "factor": 0.5}) == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_exponential() -> None:
    assert rates(3, lr_decay=0.5) == [1, 0.5, 0.25]


def test_the_schedule_begins_after_the_warm_up() -> None:
    """W = 3: quarters of η, then the schedule of the other rounds: cosine over 4 rounds, drops counted from round 3."""
    start = [0.25, 0.5, 0.75]
    assert rates(7, lr_schedule="cosine", warmup=3) == [*start, *rates(4, lr_schedule="cosine")]
    assert rates(6, lr_decay=0.5, warmup=3) == [*start, 1, 0.5, 0.25]
    assert rates(6, lr_schedule="step", lr_step={"every": 1}, warmup=3) == pytest.approx([*start, 1, 0.1, 0.01])


def test_change_from_round_to_round() -> None:
    """`lr_decay` itself, not a quotient of two roundings; 0.5/0.25 in the warm-up; (1 + √½)/2 after cosine's first."""
    assert [Training(lr=0.3, lr_decay=0.9).compute_lr_change(t) for t in (0, 50)] == [0.9, 0.9]
    assert Training(rounds=9, warmup=3, lr_decay=0.9).compute_lr_change(0) == 2
    assert Training(rounds=4, lr_schedule="cosine").compute_lr_change(0) == pytest.approx((1 + 0.5**0.5) / 2)


def test_the_rows_show_the_rate() -> None:
    training = {"rounds": 3, "lr": 0.2, "lr_schedule": "cosine", "warmup": 1, "local_epochs": 1}
    _, _, rows = small.outcome(small.simulation(training=training, evaluation={"every": 1}))
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.2, 0.1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lr_schedule": "cosine", "lr_decay": 0.9},
            r"training\.lr_decay: found 0\.9; it is the exponential schedule's, and training\.lr_schedule is cosine",
        ),
        ({"lr_schedule": "step"}, r"training\.lr_step: lr_schedule step needs it: \{every: ROUNDS, factor: 0\.1\}"),
        ({"lr_step": {"every": 3}}, r"training\.lr_step: has options, but training\.lr_schedule is exponential"),
        ({"lr_schedule": "step", "lr_step": {"every": 0}}, r"training\.lr_step\.every: found 0; .*greater than 0"),
        ({"lr_schedule": "step", "lr_step": {"factor": 0.1}}, r"training\.lr_step\.every is required"),
        ({"rounds": 5, "warmup": 5}, r"training\.warmup: found 5; training\.rounds is only 5"),
        ({"lr_schedule": "linear"}, r"training\.lr_schedule: found 'linear'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small.config(training=options)
