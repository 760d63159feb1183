"""Fixed points of methods on the two-client quadratic problem, which show the purpose of drift correction.

One sample each, five full-batch steps at η = 0.1 a round. The mean loss has its minimum where
(x1 + 3) + 2 (x1 - 2) = 0 and 2 (x2 - 2) + (x2 + 3) = 0: x* = (1/3, 1/3). Five steps carry a client of curvature a by
1 - (1 - η a)^5 of its way to its own minimum, 0.40951 for a = 1 and 0.67232 for a = 2, so FedAvg ends where
0.40951 (x1 + 3) + 0.67232 (x1 - 2) = 0: x = (0.10733, 0.10733).
"""

from typing import Any

import pytest
import torch

from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from tests.algorithms.quadratic import Case, problem

SAMPLES = [[(1, 2, -3, 2)], [(2, 1, 2, -3)]]


def end(algorithm: dict[str, Any], rounds: int = 60, **training: Any) -> list[float]:
    case = Case(
        algorithm,
        [{}] * rounds,
        samples=SAMPLES,
        start=(4, -3),
        training={"lr": 0.1, "batch_size": "full", "local_epochs": None, "local_steps": 5, **training},
    )
    return run(problem(case), InlineBackend()).theta.tolist()


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "scaffold"},
        {"name": "feddyn", "alpha": 0.5},
        {"name": "feddyn", "alpha": 1.0},
        {"name": "feddc", "alpha": 0.1},
    ],
)
def test_corrected_methods_reach_the_minimum(algorithm: dict[str, Any]) -> None:
    assert end(algorithm) == pytest.approx([1 / 3, 1 / 3], abs=1e-3)


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, {"name": "fedavgm", "beta": 0.5}, {"name": "fednova"}])
def test_uncorrected_methods_end_beside_it(algorithm: dict[str, Any]) -> None:
    """Momentum on the server moves there faster and no further; nor does FedNova, whose clients work equally here."""
    assert end(algorithm) == pytest.approx([0.10733, 0.10733], abs=1e-3)


def test_scaffold_variates_end_at_the_gradients() -> None:
    """At x*, c_0 = g0(x*) = (10/3, -10/3) and c_1 = -c_0: every local step is 0."""
    case = Case(
        {"name": "scaffold"},
        [{}] * 60,
        samples=SAMPLES,
        start=(4, -3),
        training={"lr": 0.1, "batch_size": "full", "local_epochs": None, "local_steps": 5},
    )
    state = run(problem(case), InlineBackend()).state
    assert torch.allclose(state.clients[0]["c"], torch.tensor([10 / 3, -10 / 3]), atol=1e-3)
    assert torch.allclose(state.clients[1]["c"], torch.tensor([-10 / 3, 10 / 3]), atol=1e-3)
