"""Scaffnew: SCAFFOLD with a drawn number of steps and 1/p in place of it; variates that sum to 0; its optimum."""

from typing import Any

import pytest
import torch

from fedray.algorithms.base import Server, Vectors
from fedray.algorithms.scaffnew import Scaffnew
from fedray.common.errors import UserError
from fedray.common.rng import seed_torch
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout
from tests.algorithms.digits import final, problem
from tests.algorithms.quadratic import Case
from tests.algorithms.quadratic import problem as quadratic

SERVER = Server(torch.zeros(0), Vectors(), Layout((), ()), 6)


def drawn(p: float, rounds: int) -> list[int]:
    """The first numbers of steps of a run with seed 0."""
    found = []
    for t in range(rounds):
        with seed_torch(0, "steps", t):
            steps = Scaffnew(p=p).drawn_steps(SERVER)
        assert steps is not None
        found.append(steps)
    return found


def test_steps_are_geometric() -> None:
    """Mean 1/p and P(K = 1) = p, within five standard errors of 2000 draws."""
    found = torch.tensor(drawn(0.25, 2000), dtype=torch.float64)
    assert found.min() == 1
    assert abs(float(found.mean()) - 4) < 5 * (0.75**0.5 / 0.25) / 2000**0.5
    assert abs(float((found == 1).double().mean()) - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5


def test_everyone_makes_the_drawn_steps() -> None:
    """In the first round, without variates, it is FedAvg with the same number of steps."""
    steps = drawn(0.2, 1)[0]
    left = final({"name": "scaffnew", "p": 0.2}, rounds=1).theta
    assert torch.equal(left, final("fedavg", rounds=1, per_round=6, local_epochs=None, local_steps=steps).theta)


def test_fine_tuning_makes_its_epochs_whatever_is_drawn() -> None:
    """Two of client 3's 65 samples in batches of 16 are 10 steps; they are FedAvg's."""
    found = []
    for method in ({"name": "scaffnew", "p": 0.2}, {"name": "fedavg"}):
        built = problem(method, per_round=6)
        running, worker = Simulation(built, InlineBackend()), Worker(built)
        sent = running._make_broadcast(running._make_server(0, 6))
        assert sent.steps == (drawn(0.2, 1)[0] if method["name"] == "scaffnew" else None) != 10
        found.append(worker.trainer.personalise(sent, ClientTask(3, 1.0, Vectors()), 2))
    assert [c.steps for c in found] == [10, 10]
    assert torch.equal(found[0].theta, found[1].theta)


@pytest.mark.parametrize("aggregation", ["uniform", "samples"])
def test_the_mean_of_the_variates_stays_0(aggregation: str) -> None:
    """Weighted as the average is."""
    state = final({"name": "scaffnew", "p": 0.3}, aggregation=aggregation)
    sizes = torch.tensor([20.0, 35, 50, 65, 75, 85])
    weights = sizes / sizes.sum() if aggregation == "samples" else torch.full((6,), 1 / 6)
    h = torch.stack([state.clients[i].h for i in range(6)])
    assert h.abs().max() > 0.01
    assert (weights @ h).abs().max() < 1e-5


def test_it_reaches_the_minimum() -> None:
    """The problem of `test_fixed_points`: x* = (1/3, 1/3), and h_i ends at g_i(x*) = ±(10/3, -10/3)."""
    case = Case(
        {"name": "scaffnew", "p": 0.25},
        [{}] * 150,
        samples=[[(1, 2, -3, 2)], [(2, 1, 2, -3)]],
        start=(4, -3),
        training={"lr": 0.1, "batch_size": "full"},
    )
    state = run(quadratic(case), InlineBackend()).state
    assert state.theta.tolist() == pytest.approx([1 / 3, 1 / 3], abs=1e-4)
    assert state.clients[0].h.tolist() == pytest.approx([10 / 3, -10 / 3], abs=1e-3)
    assert state.clients[1].h.tolist() == pytest.approx([-10 / 3, 10 / 3], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_round": 5}, r"clients\.per_round: found 5; scaffnew needs all 6 clients in every round"),
        ({"per_round": 0.5}, r"clients\.per_round: found 0\.5; scaffnew needs"),
        ({"clients": {"cohorts": [[0, 1]] * 4}}, r"clients\.cohorts: found rounds with fewer; scaffnew needs all 6"),
        ({"on_divergence": "drop"}, r"training\.on_divergence: found drop; scaffnew needs all 6 clients"),
    ],
)
def test_absent_clients_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        problem("scaffnew", **options)
    problem("scaffnew", per_round=1.0)
    problem("scaffnew", clients={"cohorts": [[3, 2, 1, 0, 4, 5]] * 4})
