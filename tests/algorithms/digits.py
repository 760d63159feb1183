"""A small real problem: 330 of scikit-learn's digits, six clients of unequal size, a network with one hidden layer.

Everything that could hide an identity is on: weight decay, clipping, momentum, decaying learning rate, partial last
batches, three of six clients a round, averages by samples."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from tests import small

SIZES = (20, 35, 50, 65, 75, 85)
TRAINING = {
    "rounds": 4, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "lr_decay": 0.9, "momentum": 0.5, "weight_decay": 1e-3,
    "clip_norm": 1.0, "aggregation": "samples",
}  # fmt: skip


@cache
def data(sizes: tuple[int, ...] = SIZES) -> Dataset:
    """The digits; client i gets the next `sizes[i]` of them in order."""
    whole, n = Digits().load(), sum(sizes)
    held = whole.x_train[:n], whole.y_train[:n], whole.x_test[:100], whole.y_test[:100]
    return Dataset("digits", *held, 10, whole.mean, whole.std, client_train=np.repeat(np.arange(len(sizes)), sizes))


def problem(
    algorithm: str | Mapping[str, Any], sizes: tuple[int, ...] = SIZES, per_round: int | float = 3,
    model: str | Mapping[str, Any] = "", clients: Mapping[str, Any] | None = None, seed: int = 0, **training: Any,
) -> Problem:  # fmt: skip
    """Problem of one algorithm; `training` overrides TRAINING."""
    return small.problem(
        algorithm, {"total": len(sizes), "per_round": per_round, **(clients or {})}, model or 16, "natural",
        arrays=data(sizes), seed=seed, training={**TRAINING, "momentum": small.momentum(algorithm), **training},
        evaluation={"every": 100, "last": 1},
    )  # fmt: skip


def states(algorithm: str | Mapping[str, Any], **options: Any) -> Iterator[State]:
    """The state after each round."""
    simulation = Simulation(problem(algorithm, **options), InlineBackend())
    while not simulation.done:
        simulation.step()
        yield simulation.state


@cache
def _final(text: str) -> State:
    *_, last = states(**json.loads(text))
    return last


def final(algorithm: str | Mapping[str, Any], **options: Any) -> State:
    """The state after the last round; runs of equal arguments are shared between tests."""
    if "sizes" in options:
        *_, last = states(algorithm, **options)
        return last
    return _final(json.dumps({"algorithm": algorithm, **options}, sort_keys=True))
