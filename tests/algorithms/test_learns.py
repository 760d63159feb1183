"""A short real run of every method on digits: it learns, about as well as FedAvg does in the same time."""

from functools import cache
from typing import Any

import pytest
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.methods import METHODS

OPTIONS: dict[str, dict[str, Any]] = {
    "fedsam": {"rho": 0.05},
    "fedgloss": {"rho": 0.05, "rho_l": 0.05},
    "mofedsam": {"rho": 0.05, "beta": 0.3},
    "perfedavg": {"inner_lr": 0.01},
    "fedgen": {"alpha": 1, "beta": 1, "steps": 10, "hidden": 64},
    "fedge": {"scale_w": 4},
    "fedgela": {"scale_w": 4},
    **{
        f"fedsol+{other}": {"name": "fedsol", "proximal": other}
        for other in ("fedprox", "fednova", "scaffold", "feddyn", "moon")
    },
}
"""The defaults are the papers', for networks of a million parameters and more; the norm of this one's is 3.7."""

TRAINING: dict[str, dict[str, Any]] = {
    "mimelite": {"lr": 0.01},
    "pfedme": {"lr": 1 / 15},
    **{name: {"lr": 0.01} for name in ("local-adamw", "fedadamw")},
    **{name: {"lr": 0.02} for name in ("local-muon", "fedmuon", "fedlada")},
}
"""MimeLite's m grows to 1/(1 - β) = 10 times a gradient, so a tenth of the learning rate goes as far; at 0.1 it
oscillates. pFedMe's y overshoots θ where η λ > 1."""


class Projected(nn.Module):
    """One hidden layer and a linear projection, as in FedGELA's paper: features of either sign reach every class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
        self.classifier = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


MODELS: dict[str, Any] = dict.fromkeys(("fedge", "fedgela"), "tests.algorithms.test_learns:Projected")


@cache
def digits() -> Dataset:
    return Digits().load()


@cache
def last_row(name: str, partition: str = "dirichlet", epochs: int | None = None) -> dict[str, float]:
    """After 12 rounds of `build`'s problem."""
    return run(build(name, partition, epochs), InlineBackend()).history[-1]


def build(name: str, partition: str = "dirichlet", epochs: int | None = None) -> Problem:
    """Twelve rounds: ten clients, Dirichlet(0.3) or two classes each, two epochs; five a round.

    epochs: of fine-tuning, where personal models are to be tested.
    """
    parts = {"dirichlet": {"name": "dirichlet", "alpha": 0.3}, "pxcy": {"name": "pxcy", "classes": 2}}
    options = {"name": name, **OPTIONS.get(name, {})}
    training = {"rounds": 12, "local_epochs": 2, "batch_size": 20, "lr": 0.1, "weight_decay": 1e-3}
    return small.problem(
        options,
        (10, 5),
        MODELS.get(name, 32),
        parts[partition],
        arrays=digits(),
        training={**training, **TRAINING.get(name, {})},
        evaluation={"every": 12, "last": 1, "personal": None if epochs is None else {"epochs": epochs}},
    )


def accuracy(name: str) -> float:
    """Test accuracy in percent; without a global model, that of each client's own model on its own test samples."""
    generic = algorithm({"name": name, **OPTIONS.get(name, {})}).generic
    return last_row(name)["test_accuracy"] if generic else last_row(name, epochs=10)["personal_accuracy"]


@pytest.mark.parametrize("name", [*METHODS, *sorted(OPTIONS.keys() - ALGORITHMS.keys())])
def test_it_learns(name: str) -> None:
    """Within 8 points of FedAvg, which itself is above 90; chance is 10."""
    assert accuracy("fedavg") > 90
    assert accuracy(name) > accuracy("fedavg") - 8


@pytest.mark.parametrize("name", ["local-adamw", "fedadamw", "fedmuon", "fedgmt", "feduv", "feddecorr", "fedadagrad"])
def test_it_gains_twenty_points(name: str) -> None:
    """At least 20 points above FedAvg's start, which is every method's here: x⁰ before the first round."""
    assert accuracy(name) >= start() + 20


@cache
def start() -> float:
    """Test accuracy of FedAvg's x⁰, in percent."""
    return Simulation(build("fedavg"), InlineBackend()).evaluate()["test_accuracy"]


@pytest.mark.parametrize("name", sorted(name for name, kind in ALGORITHMS.items() if kind.personal == "trained"))
def test_a_client_is_at_home_in_its_two_classes(name: str) -> None:
    """Clients of two classes each: after local training their models know these two; FedAvg's model does not."""
    fedavg = last_row("fedavg", "pxcy", epochs=0)["personal_accuracy"]
    assert fedavg < 75
    assert last_row(name, "pxcy", epochs=0)["personal_accuracy"] > 95


def test_one_classifier_for_all_is_a_better_generic_model() -> None:
    """The same clients: FedAvg's classifier forgets the classes that the cohort lacks, a fixed simplex cannot."""
    assert (
        last_row("fedge", "pxcy", epochs=0)["generic_accuracy"]
        > 10 + last_row("fedavg", "pxcy", epochs=0)["generic_accuracy"]
    )
