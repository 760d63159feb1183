"""Problems whose probes are known or easily disturbed, and what a test asks of them."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.partitions.held_out import Split
from fedray.probes import PROBES, make_probes
from tests import small
from tests.algorithms.digits import data

EVERY_PROBE = sorted(PROBES.keys() - {"adaptation"})  # which measures heads of fedgela alone


class Rows(nn.Sequential):
    """A head of given rows and nothing else; the features are the inputs."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        super().__init__(nn.Linear(len(rows[0]), len(rows), bias=False))
        self[0].weight.data = torch.tensor(rows, dtype=torch.float32)


class Careful(nn.Module):
    """Running statistics and dropout."""

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(input_shape), 12)
        self.norm, self.dropout = nn.BatchNorm1d(12), nn.Dropout(0.2)
        self.last = nn.Linear(12, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(torch.relu(self.norm(self.first(x.flatten(1))))))


def digits(
    algorithm: Any, model: Any = "tests.probes.probed:Careful", probes: Sequence[Any] = (), every: int = 1,
    train: bool = False, per_round: int = 3, **training: Any,
) -> Problem:  # fmt: skip
    """Six clients with digits of a Dirichlet split."""
    base = {"rounds": 2, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "weight_decay": 1e-3}
    training = {**base, "momentum": small.momentum(algorithm), "aggregation": "samples", **training}
    evaluation = {"every": every, "last": 1, "probes": probes, "train": train}
    return small.problem(algorithm, (6, per_round), model, 0.3, arrays=data(), training=training, evaluation=evaluation)


def arrays(
    model: Mapping[str, Any], x: Any, y: Sequence[int], owner: Sequence[int], algorithm: Any = "fedavg",
    test: tuple[Any, Sequence[int]] | None = None, probes: Sequence[Any] = (), classes: int = 2, **training: Any,
) -> Problem:  # fmt: skip
    """A problem of the test's own samples; one local step on the whole shard unless `training` says otherwise."""
    x_test, y_test = test or (x, y)
    held = [np.array(x, dtype=np.float32), np.array(y), np.array(x_test, dtype=np.float32), np.array(y_test)]
    own = Dataset("own", *held, classes, client_train=np.array(owner))
    sections = {"training": {"rounds": 1, "local_steps": 1, "batch_size": "full", **training}}
    sections["evaluation"] = {"probes": probes}
    return small.problem(algorithm, (max(owner) + 1, 1.0), model, "natural", arrays=own, **sections)


def last_row(problem: Problem) -> dict[str, float]:
    return run(problem, InlineBackend()).history[-1]


@cache
def measure_everything() -> tuple[dict[str, float], dict[str, float]]:
    """The last row of FedSOL without probes and with all of them."""
    return last_row(digits("fedsol")), last_row(digits("fedsol", probes=EVERY_PROBE))


def percent_right(problem: Problem, theta: Tensor, buffers: Tensor, split: str) -> float:
    network, held = problem.build_network("cpu"), problem.data
    pixels, y = (held.x_test, held.y_test) if split == "test" else (held.x_train, held.y_train)
    network.load(theta)
    network.buffers.copy_(buffers)
    network.train(False)
    with torch.no_grad():
        logits = network((torch.from_numpy(pixels).float() / 255 - held.mean[0]) / held.std[0]).logits
    return 100 * float((logits.argmax(1) == torch.from_numpy(y)).double().mean())


def with_probes(problem: Problem, probes: Sequence[str]) -> Problem:
    evaluation = problem.config.evaluation.model_copy(update={"probes": make_probes(probes)})
    config = problem.config.model_copy(update={"evaluation": evaluation})
    return Problem(config, problem.data, Split(problem.split.train))


def everything() -> Problem:
    """All probes, on three chunks of test samples (tests/cluster/test_ray_backend.py deals them to actors)."""
    problem = digits("fedsol", probes=EVERY_PROBE, train=True)
    held, samples = problem.data, np.arange(1100) % len(problem.data.y_test)
    parts = held.x_train, held.y_train, held.x_test[samples], held.y_test[samples]
    return Problem(problem.config, Dataset("digits", *parts, 10, held.mean, held.std), Split(problem.split.train))
