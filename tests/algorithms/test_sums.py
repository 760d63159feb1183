"""What methods send through exact sums: the smallest values that matter survive, and large ones are no divergence.

`PIXELS` are digits whose first row is black and that are not normalised: the 8 · 16 weights of its pixels in a hidden
layer of 16 get no gradient. All 100 clients are in every cohort, so π_i is about 1/100.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedray
from fedray.algorithms import ALGORITHMS
from fedray.common.vectors import Vectors
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine import exact_sum
from fedray.engine.exact_sum import REST
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import Result
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.algorithms.digits import problem
from tests.algorithms.test_contract import NORMALISED

ROUNDS, WIDTH = 2, 16
DEAD = torch.zeros(WIDTH, 8, 8, dtype=torch.bool)
DEAD[:, 0] = True


@cache
def pixels(largest: float) -> Dataset:
    """The digits with pixels from 0 to `largest`."""
    whole = Digits().load()
    x, x_test = (part.astype(np.float32) * np.float32(largest / 255) for part in (whole.x_train, whole.x_test))
    x[:, :, 0] = x_test[:, :, 0] = 0
    return Dataset("digits", x, whole.y_train, x_test, whole.y_test, 10)


def run(method: Mapping[str, Any], largest: float = 1.0, **training: Any) -> Result:
    """Rounds of all 100 clients, with steps of one batch of 14 samples."""
    training = {"rounds": ROUNDS, "local_steps": 2, "lr": 0.01, **training}
    evaluation = {"every": ROUNDS, "last": 1}
    sections = small.sections(method, (100, 100), WIDTH, training=training, evaluation=evaluation)
    return fedray.simulate(sections, data=pixels(largest))


@cache
def fedavg() -> Result:
    """A run in which what has no gradient stays at x⁰."""
    return run({"name": "fedavg"})


def dead(vector: Tensor) -> Tensor:
    """The entries of the weights that get no gradient."""
    return vector[: DEAD.numel()][DEAD.flatten()]


def hold(floor: float, without_gradient: float | None = None) -> Callable[[Vectors], None]:
    """Check that v is at least `floor` and, where there is no gradient, as given; by default `floor`."""

    def check(server: Vectors) -> None:
        expected = floor if without_gradient is None else without_gradient
        assert server.v.min() >= floor * (1 - 1e-6)
        assert torch.allclose(dead(server.v), torch.tensor(expected), rtol=1e-3, atol=0)
        assert server.v.max() > 1.5 * expected, "nothing has a gradient"

    return check


def check_tensors(server: Vectors) -> None:
    """FedAdamW's means over a tensor: each has entries with a gradient."""
    assert server.v.min() > 0


def check_momentum(server: Vectors) -> None:
    """FedMuon's M is 0 without a gradient."""
    assert torch.equal(dead(server.momentum), torch.zeros(8 * WIDTH))
    assert server.momentum.abs().max() > 0


SQUARED, LEFT = 1e-3**2, 1e-3**2 * 0.99**ROUNDS
"""τ², the first v of the server's optimisers, and what is left of it after `ROUNDS` rounds at β2 = 0.99."""
MOMENTS: list[tuple[dict[str, Any], Callable[[Vectors], None]]] = [
    ({"name": "fedlada"}, hold(1e-16)),
    ({"name": "fedlada", "eps": 1e-18}, hold(1e-36)),
    ({"name": "fedlada", "form": "vision"}, hold(0.0)),
    ({"name": "fedadamw"}, check_tensors),
    ({"name": "fedadamw", "second_moment": "full"}, hold(0.0)),
    ({"name": "fedmuon"}, check_momentum),
    ({"name": "fedadam"}, hold(LEFT)),
    ({"name": "fedyogi"}, hold(LEFT, SQUARED)),
    ({"name": "fedadagrad"}, hold(SQUARED)),
    ({"name": "fedadagrad", "start": "zero"}, hold(0.0)),
]


@pytest.mark.parametrize(("method", "check"), MOMENTS, ids=[" ".join(map(str, m.values())) for m, _ in MOMENTS])
def test_dead_parameters_in_a_cohort_of_100(method: dict[str, Any], check: Callable[[Vectors], None]) -> None:
    """No divergence, averaged moments of at least the formula's floor, and what has no gradient stays at x⁰."""
    result = run(method, lr=0.1)
    check(result.state.server)
    assert torch.equal(dead(result.theta), dead(fedavg().theta))


@pytest.mark.parametrize(
    "method",
    [{"name": "fedlada"}, {"name": "fedlada", "form": "vision"}, {"name": "fedadamw", "second_moment": "full"}],
    ids=lambda method: " ".join(map(str, method.values())),
)
def test_large_gradients_are_no_divergence(method: dict[str, Any]) -> None:
    """Pixels up to 2,000 give gradients of hundreds, whose v were too large for the scale of 2^12 that they had."""
    result = run(method | {"beta2": 0.9}, 2000.0, lr=1e-4)
    assert result.state.server.v.max() > 64


VARIANTS: list[tuple[Any, dict[str, Any]]] = [
    *((name, {}) for name in sorted(ALGORITHMS)),
    ("fedavg", NORMALISED),
    ({"name": "fedper", "newcomer": "average"}, {}),
    ({"name": "lg-fedavg", "newcomer": "average"}, {}),
    ({"name": "scaffold@forms", "variates": "samples"}, {}),
    ({"name": "fedspeed@forms", "dual_mean": "cohort"}, {}),
]
"""Methods, and the options and models with which they send more."""


class Listing(InlineBackend):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        replies = super().train(broadcast, tasks)
        self.names.update(name for reply in replies for name in reply.sums)
        return replies


def test_every_upload_is_in_the_table() -> None:
    """The table of `fedray.engine.exact_sum` has each upload of each method, with its kind of sum, and no other."""
    rows = [line.strip("| ").split(" | ") for line in (exact_sum.__doc__ or "").splitlines() if line.startswith("| ")]
    table = {name: kind for names, *_, kind in rows[1:-1] for name in names.split(", ")}
    backend = Listing()
    for method, options in VARIANTS:
        Simulation(problem(method, **options, rounds=1, local_epochs=1), backend).step()
    kinds = {name: "wide" if name + REST in backend.names else "plain" for name in backend.names}
    assert {name: kind for name, kind in kinds.items() if not name.endswith(REST)} == table
