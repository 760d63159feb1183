"""A short real run on digits of a method of each kind: it learns, about as well as FedAvg does in the same time."""

from functools import cache
from typing import Any

import pytest
from torch import Tensor, nn

from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from tests import small

OPTIONS: dict[str, dict[str, Any]] = {
    "mofedsam": {"rho": 0.05, "beta": 0.3},
    "fedgela": {"scale_w": 4},
}
"""The defaults are the papers', for networks of a million parameters and more; the norm of this one's is 3.7."""

TRAINING: dict[str, dict[str, Any]] = {"fedadamw": {"lr": 0.01}, "fedmuon": {"lr": 0.02}}


class Projected(nn.Module):
    """One hidden layer and a linear projection, as in FedGELA's paper: features of either sign reach every class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
        self.classifier = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


MODELS: dict[str, Any] = {"fedgela": "tests.algorithms.test_learns:Projected"}


@cache
def measure_accuracy(name: str) -> float:
    """Test accuracy in percent after twelve rounds: ten clients, Dirichlet(0.3), two epochs; five a round."""
    training = {"rounds": 12, "local_epochs": 2, "batch_size": 20, "lr": 0.1, "weight_decay": 1e-3}
    problem = small.problem(
        {"name": name, **OPTIONS.get(name, {})},
        (10, 5),
        MODELS.get(name, 32),
        0.3,
        training={**training, **TRAINING.get(name, {})},
        evaluation={"every": 12, "last": 1},
    )
    return run(problem, InlineBackend()).history[-1]["test_accuracy"]


@pytest.mark.parametrize("name", ["fedgela", "fedsol", "fedtoga", "mofedsam", "fedmuon", "fedadamw"])
def test_it_learns(name: str) -> None:
    """Within 8 points of FedAvg, which itself is above 90 and started at about 10."""
    assert measure_accuracy("fedavg") > 90
    assert measure_accuracy(name) > measure_accuracy("fedavg") - 8
