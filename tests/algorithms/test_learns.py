"""A short real run of every method on digits: it learns, about as well as FedAvg does in the same time."""

from functools import cache
from typing import Any

import pytest

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.backend.inline import InlineBackend
from fedray.config import RunConfig
from fedray.data.dataset import Dataset
from fedray.data.sources import Digits
from fedray.problem import Problem
from fedray.simulation import run

OPTIONS: dict[str, dict[str, Any]] = {
    "fedsam": {"rho": 0.05}, "mofedsam": {"rho": 0.05, "beta": 0.3}, "perfedavg": {"inner_lr": 0.01},
    "fedgen": {"alpha": 1, "beta": 1, "steps": 10, "hidden": 64},
    **{f"fedsol+{other}": {"name": "fedsol", "proximal": other}
       for other in ("fedprox", "fednova", "scaffold", "feddyn", "moon")},
}
"""The defaults are the papers', for networks of a million parameters and more; the norm of this one's is 3.7."""

TRAINING: dict[str, dict[str, Any]] = {"mimelite": {"lr": 0.01}}
"""m grows to 1/(1 - β) = 10 times a gradient, so a tenth of the learning rate goes as far; at 0.1 it oscillates."""


@cache
def digits() -> Dataset:
    return Digits().load()


@cache
def accuracy(name: str) -> float:
    """Test accuracy in percent after 12 rounds: ten clients, Dirichlet(0.3), five a round, two epochs.

    Where there is no global model, that of each client's own model on its own test samples, averaged.
    """
    method = algorithm({"name": name, **OPTIONS.get(name, {})})
    config = RunConfig.parse({
        "data": "digits", "partition": {"name": "dirichlet", "alpha": 0.3}, "clients": {"total": 10, "per_round": 5},
        "model": {"name": "mlp", "hidden": [32]}, "algorithm": method,
        "training": {"rounds": 12, "local_epochs": 2, "batch_size": 20, "lr": 0.1, "weight_decay": 1e-3,
                     **TRAINING.get(name, {})},
        "evaluation": {"every": 12, "personal": None if method.generic else {}}, "runtime": {"backend": "inline"}})
    last = run(Problem.build(config, digits()), InlineBackend()).history[-1]
    return last["test_accuracy" if method.generic else "personal_accuracy"]


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() | OPTIONS.keys()))
def test_it_learns(name: str) -> None:
    """Within 8 points of FedAvg, which itself is above 90; chance is 10."""
    assert accuracy("fedavg") > 90
    assert accuracy(name) > accuracy("fedavg") - 8
