"""A history row's entries on its round's training: loss and learning rate."""

import pytest

from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from tests.algorithms import quadratic


@pytest.mark.parametrize(
    ("aggregation", "epochs", "loss"),
    [("uniform", 1, 47.28125), ("samples", 1, 46.875), ("uniform", 2, 40 + (4.8125 + 5.025390625) / 2)],
)
def test_training_loss_on_quadratics(aggregation: str, epochs: int, loss: float) -> None:
    """A sample's loss is 40 + f. Client 0: f0(0) = 8.5. Client 1: f1(0) = 8.5, then f1'(2, -1.5) = 3.625: their mean
    6.0625. Of both ½ (8.5 + 6.0625), or ⅓ 8.5 + ⅔ 6.0625.

    Another epoch. Client 0 is at (-1.5, 2): 1.125, in the mean 4.8125. Client 1 at (2.5, -0.25): ½ (2 · ¼ + 2.75²) =
    4.03125, then, by g1 = (1, 2.75), at (2, -1.625): ½ (1 + 2.625²) = 3.9453125, in the mean of four 5.025390625.
    """
    case = quadratic.Case({"name": "fedavg"}, [{}], training={"aggregation": aggregation, "local_epochs": epochs})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["train_loss"] == pytest.approx(loss)


def test_the_learning_rate_is_that_of_the_round() -> None:
    """½ · 0.4² in the third."""
    case = quadratic.Case({"name": "fedavg"}, [{}] * 3, training={"lr_decay": 0.4})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["lr"] == pytest.approx(0.08)
