"""What a row of the history says of its round's training: its loss and its learning rate."""

import pytest

from fedray.engine.backend import InlineBackend
from fedray.engine.loop import run
from tests.algorithms import quadratic


@pytest.mark.parametrize(("aggregation", "loss"), [("uniform", 47.28125), ("samples", 46.875)])
def test_training_loss_on_quadratics(aggregation: str, loss: float) -> None:
    """A sample's loss is 40 + f. Client 0: f0(0) = 8.5. Client 1: f1(0) = 8.5, then f1'(2, -1.5) = 3.625: their mean
    6.0625. Of both ½ (8.5 + 6.0625), or ⅓ 8.5 + ⅔ 6.0625.
    """
    case = quadratic.Case({"name": "fedavg"}, [{}], training={"aggregation": aggregation})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["train_loss"] == pytest.approx(loss)


def test_the_learning_rate_is_that_of_the_round() -> None:
    """½ · 0.4² in the third."""
    case = quadratic.Case({"name": "fedavg"}, [{}] * 3, training={"lr_decay": 0.4})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["lr"] == pytest.approx(0.08)
