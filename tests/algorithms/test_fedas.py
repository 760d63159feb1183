"""FedAS: FedPer where nothing is aligned and F_i = n_i; what is weighed, aligned and kept."""

from math import floor, log, log2
from typing import Any

import pytest
import torch
from pydantic import Field

from fedray.algorithms.base import Client, Received, Server, Vectors
from fedray.algorithms.fedas import FedAS, apart
from fedray.client import LocalClient
from fedray.engine.backend import InlineBackend
from fedray.engine.local_training import personal_client, start_client
from fedray.engine.messages import ClientTask
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker
from fedray.models.network import Layout
from tests.algorithms.clients import arguments
from tests.algorithms.digits import SIZES, TRAINING, final, problem, states

ANYWAY = "tests.algorithms.test_fedas:WeighsBySamples"


class WeighsBySamples(FedAS):
    """F_i = n_i."""

    def information(self, c: Client) -> float:
        return float(c.samples)


def test_without_alignment_and_by_samples_it_is_fedper() -> None:
    left, right = final({"name": ANYWAY, "align_lr": 0}), final("fedper", aggregation="samples")
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)
    for i, kept in left.clients.items():
        assert torch.allclose(kept.own, right.clients[i].own, rtol=0, atol=1e-6)


class GrowsEachRound(FedAS):
    """F_i = n_i 2^(e t): as large or small as one likes, and always in the same proportion."""

    e: int = Field(0)

    def information(self, c: Client) -> float:
        return c.samples * 2.0 ** (self.e * round(log(c.lr / c.first_lr, TRAINING["lr_decay"])))


@pytest.mark.parametrize("e", [-14, 14])
def test_information_of_any_size(e: int) -> None:
    """In the fourth round 2^-42 n_i, of which exact sums keep nothing, or 2^42 n_i, which they refuse."""
    grows = {"name": "tests.algorithms.test_fedas:GrowsEachRound", "align_lr": 0, "e": e}
    left, right = final(grows), final({"name": ANYWAY, "align_lr": 0})
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)
    weighed = sum(SIZES[int(i)] for i in Simulation(problem("fedas"), InlineBackend()).cohort(3)) / 3
    assert float(left.server.scale) == 2.0 ** (floor(log2(weighed)) + 3 * e)


def test_the_scale_stays_where_there_is_no_information() -> None:
    server = Server(torch.zeros(2), Vectors(scale=torch.tensor(4.0)), Layout(("a",), ((2,),)), 6, 3)
    zero = torch.zeros(())
    FedAS().aggregate(server, Received(Vectors(weighted=torch.zeros(2), information=zero, update=torch.zeros(2))))
    assert server.state.scale == 4
    assert torch.equal(server.theta, torch.zeros(2))


def test_one_client_weighs_1() -> None:
    """Whatever its information is."""
    options: dict[str, Any] = {"clients": {"cohorts": [[4]] * 4}}
    left, right = final({"name": "fedas", "align_lr": 0}, **options), final("fedper", **options)
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"align_lr": 0.5}, {"fisher": "samples"}])
def test_otherwise_it_is_not(options: dict[str, Any]) -> None:
    left, right = final({"name": "fedas", "align_lr": 0, **options}), final("fedper")
    assert (left.theta - right.theta).abs().max() > 1e-4
    assert (left.theta - final({"name": "fedas", "align_lr": 0}).theta).abs().max() > 1e-4


def client(method: str = "fedas") -> tuple[LocalClient, FedAS]:
    """Client 4 at the start of its second round, in which it was with the others in the first."""
    built = problem(method, clients={"cohorts": [[1, 4], [4, 5], [0, 1], [0, 1]]})
    running = Simulation(built, InlineBackend())
    running.step()
    state, worker = running.state(), Worker(built)
    c = start_client(
        *arguments(worker, running._broadcast(running._server(1, 2)), ClientTask(4, 0.5, state.clients[4]))
    )
    return c, built.config.algorithm


def test_alignment_brings_the_features_nearer() -> None:
    """To the class means of the client's last body; the head stays."""
    c, method = client()
    output, y = c.shard(method.last(c))
    means = torch.stack([output.features[y == label].mean(0) for label in range(10)])
    before = c.theta
    x, labels = c.population.samples.batch(c.indices)

    def distance(theta: torch.Tensor) -> float:
        c.network.load(theta)
        return float(apart(x, labels, means)(c.network).detach())

    method.begin(c)
    assert distance(c.theta) < distance(before)
    head = c.layout.head > 0
    assert torch.equal(c.theta[head], before[head])


def test_the_personal_model_is_the_last_one() -> None:
    """Head and body as training left them, though the server's body has moved on."""
    *_, state = states("fedas")
    built = problem("fedas")
    running, worker = Simulation(built, InlineBackend()), Worker(built)
    running.restore(state)
    for i, kept in state.clients.items():
        c = personal_client(*arguments(worker, running._broadcast(running._server(4, 1)), ClientTask(i, 1.0, kept)), 0)
        assert torch.equal(c.theta, torch.cat([kept.body, kept.own]))
        assert not torch.equal(c.theta[: len(kept.body)], state.theta[: len(kept.body)])
