"""The problem of the hand-derived rounds: two clients with quadratic losses, trained by the real engine.

A sample is (a1, a2, b1, b2); its loss is f(y) = ½ Σ_j a_j (y_j - b_j)², with gradient g(y) = a (y - b), entry by entry.
Unless a case says otherwise:

    x = (0, 0), η = ½, batches of one sample in order, one local epoch, uniform average, both clients in every round
    client 0: one sample,  g0(y)  = (y1 + 3, 2 (y2 - 2)),  so K_0 = 1 and g0(0)  = (3, -4)
    client 1: two samples, g1(y)  = (2 (y1 - 2), y2 + 3),  so K_1 = 2 and g1(0)  = (-4, 3)
                           g1'(y) = (y1 - 3, y2 - 1) in its second step

Norms of 5 keep SAM's arithmetic in whole numbers: with ρ = 5 a perturbation is the gradient itself. Methods that use
outputs, features or inner layers have small models of their own, with the same engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.algorithms.base import Vectors
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from tests import small

Sample = tuple[float, float, float, float]
Point = tuple[float, float]

CLIENTS: tuple[tuple[Sample, ...], ...] = (((1, 2, -3, 2),), ((2, 1, 2, -3), (1, 1, 3, 1)))
TRAINING = {"rounds": 10, "lr": 0.5, "batch_size": 1, "local_epochs": 1, "shuffle": False}


class Quadratic(nn.Module):
    """The samples' losses as logits: cross-entropy of (0, 40 + f) with label 1's complement, 0, is 40 + f.

    Nothing of the engine is replaced: the derivative of that cross-entropy by the second logit is 1/(1 + e^-(40 + f)),
    which is 1 in float32, so the gradient is exactly f's."""

    head = "point"

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.point = nn.Linear(len(start), 1, bias=False)
        self.point.weight.data = torch.tensor([list(start)], dtype=torch.float32)

    def read(self) -> Tensor:
        """Return the parameters `(1, P)`, read through the head."""
        y: Tensor = self.point(torch.eye(self.point.in_features)).T
        return y

    def forward(self, samples: Tensor) -> Tensor:
        a, b = samples.chunk(2, dim=1)
        y = self.read()
        loss = 0.5 * (a * (y - b) ** 2).sum(1)
        return torch.stack([torch.zeros_like(loss), 40 + loss], dim=1)


class Line(Quadratic):
    """The same losses of y = (weight, bias) of one layer."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__(start[:1])
        self.point = nn.Linear(1, 1)
        self.point.weight.data, self.point.bias.data = torch.tensor([[start[0]]]), torch.tensor([start[1]])

    def read(self) -> Tensor:
        at = self.point(torch.tensor([[0.0], [1.0]]))
        return torch.cat([at[1] - at[0], at[0]])[None]


class Case:
    """Initial conditions of a derivation and the numbers it arrives at.

    rounds: after each, name -> values: `theta`, `NAME` of the server, `I.NAME` of client I. server, clients: initial
    vectors, if the zeros of round 0 would hide a term; start: x. model, labels, classes: a model other than
    `Quadratic`, and each sample's label for it; theta: then x, instead of the model's own."""

    def __init__(
        self, algorithm: Mapping[str, Any], *rounds: Mapping[str, Any],
        samples: Sequence[Sequence[Sequence[float]]] = CLIENTS, training: Mapping[str, Any] = {}, start: Point = (0, 0),
        server: Mapping[str, Sequence[float]] = {}, clients: Mapping[int, Mapping[str, Sequence[float]]] = {},
        cohorts: Sequence[Sequence[int]] | None = None, model: Mapping[str, Any] = {},
        labels: Sequence[Sequence[int]] = (), classes: int = 2, theta: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self.algorithm, self.rounds, self.samples, self.training = algorithm, rounds, samples, training
        self.start, self.server, self.clients, self.cohorts = start, server, clients, cohorts
        self.model, self.labels, self.classes, self.theta = model, labels, classes, theta


def problem(case: Case) -> Problem:
    """The case as the engine's configuration and data set; for label 0 Quadratic's loss is the intended one."""
    x = np.array([sample for shard in case.samples for sample in shard], dtype=np.float32)
    y = np.array([label for shard in case.labels for label in shard] or np.zeros(len(x)), dtype=np.int64)
    owner = np.repeat(np.arange(len(case.samples)), [len(shard) for shard in case.samples])
    return small.problem(
        dict(case.algorithm), {"total": len(case.samples), "per_round": len(case.samples), "cohorts": case.cohorts},
        case.model or {"name": "tests.algorithms.quadratic:Quadratic", "start": list(case.start)}, "natural",
        arrays=Dataset("quadratic", x, y, x, y, case.classes, client_train=owner),
        training={**TRAINING, "rounds": len(case.rounds), **case.training}, evaluation={"every": 100, "last": 1},
    )  # fmt: skip


def check(case: Case, tolerance: float = 1e-6) -> None:
    """Run the case's rounds in the engine and compare every number it lists."""
    simulation = Simulation(problem(case), InlineBackend())
    state = simulation.state
    simulation.restore(
        replace(
            state,
            theta=_vector(case.theta) if case.theta else state.theta,
            server=Vectors(state.server | {name: _vector(value) for name, value in case.server.items()}),
            clients={
                i: Vectors({name: _vector(value) for name, value in kept.items()}) for i, kept in case.clients.items()
            },
        )
    )
    for t, expected in enumerate(case.rounds):
        simulation.step()
        for name, value in expected.items():
            found = look_up(simulation.state, name)
            assert torch.allclose(found, _vector(value), rtol=tolerance, atol=tolerance), (
                f"round {t}: {name} is {found.tolist()}, the derivation says {list(value)}"
            )


def look_up(state: State, name: str) -> Tensor:
    """`theta`, `NAME` of the server or `I.NAME` of client I."""
    client, dot, vector = name.partition(".")
    if dot:
        return state.clients[int(client)][vector]
    return state.theta if name == "theta" else state.server[name]


def _vector(value: Sequence[float]) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


LN2 = log(2)


def times_ln2(values: Sequence[float], divisor: float = 1.0) -> tuple[float, ...]:
    """Logits that are logarithms of powers of two make rational probabilities."""
    return tuple(LN2 * value / divisor for value in values)


class Softmax(nn.Sequential):
    """Logits W x for one input: theta = W, three classes, all of it head."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 3, bias=False))
        nn.init.zeros_(self[0].weight)


class TwoLayers(nn.Module):
    """Features h = A x and logits H h; H = 0, so at first no class gradient reaches A.

    As a rule two classes and two features. theta = (A, H), row by row, and the head's bias if there is one. The
    features pass an activation, the identity, whose input is the tap."""

    taps = ("activation",)
    head = "classifier"

    def __init__(self, body: Sequence[Sequence[float]], classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(len(body[0]), len(body), bias=False)
        self.activation = nn.Identity()
        self.classifier = nn.Linear(len(body), classes, bias=bias)
        self.body.weight.data = torch.tensor(body, dtype=torch.float32)
        nn.init.zeros_(self.classifier.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.activation(self.body(x)))


class Normed(nn.Sequential):
    """Logits H (γ n(x) + β) for one input, n by BatchNorm with an eps of nothing: theta = (γ, β, H), two classes."""

    head = "1"

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 2, bias=False))
        self[1].weight.data = torch.tensor(weights)[:, None]
