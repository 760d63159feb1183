"""FedPer, FedBN, Ditto, APFL, FedALA, FedAS: reductions to other methods, and the state that clients keep.

With BatchNorm and partial participation on; bit for bit where the arithmetic is the same.
"""

import logging
from math import floor, log, log2
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.base import Client, Received, Server
from fedray.algorithms.fedas import FedAS
from fedray.common.vectors import Vectors
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout, Network
from tests.algorithms.digits import SIZES, TRAINING, data, final, problem, states

BATCHED: dict[str, Any] = {"model": "tests.algorithms.test_contract:Normalised", "batch_size": 18}
"""BatchNorm; no last batch of one."""


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ditto", "lam": 3.0},
        {"name": "ditto", "personal_epochs": 2},
        {"name": "apfl", "alpha": 0.3},
        {"name": "apfl", "adaptive": True},
        {"name": "apfl", "mix": "logits"},
        {"name": "fedala", "weight_lr": 0.0},
    ],
)
def test_the_shared_model_is_fedavgs(options: dict[str, Any]) -> None:
    left, right = final(options, **BATCHED), final("fedavg", **BATCHED)
    assert torch.equal(left.theta, right.theta)
    assert torch.equal(left.buffers, right.buffers)
    assert left.history[-1]["train_loss"] == right.history[-1]["train_loss"]


@pytest.mark.parametrize("options", [{"name": "ditto"}, {"name": "apfl"}, {"name": "apfl", "mix": "logits"}])
def test_under_dropout_too(options: dict[str, Any]) -> None:
    partly = {"model": "tests.algorithms.test_own_parts:Partly", "batch_size": 18}
    assert torch.equal(final(options, **partly).theta, final("fedavg", **partly).theta)


@pytest.mark.parametrize(
    ("options", "model", "statistics"),
    [
        ({"name": "ditto", "lam": 0}, "v", "second_buffers"),
        ({"name": "apfl", "alpha": 1.0}, "v", "second_buffers"),
        ({"name": "fedproto", "lam": 0}, "own", "own_buffers"),
    ],
)
def test_alone_they_are_local_only(options: dict[str, Any], model: str, statistics: str) -> None:
    left, right = final(options, **BATCHED).clients, final("local-only", **BATCHED).clients
    assert left.keys() == right.keys()
    for i, kept in left.items():
        assert torch.equal(kept[model], right[i].own)
        assert torch.equal(kept[statistics], right[i].own_buffers)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ditto"},
        {"name": "apfl", "adaptive": True},
        {"name": "apfl", "adaptive": True, "mix": "logits"},
        {"name": "fedrod"},
        "local-only",
    ],
)
def test_a_rate_that_falls_within_the_round_is_everyones(options: Any) -> None:
    """At 1e-30 of the rate the second epoch moves nothing: models, own heads and mixtures end as after the first."""
    left, right = final(options, lr_decay_within=1e-30, local_epochs=2), final(options, local_epochs=1)
    assert torch.equal(left.theta, right.theta)
    for i, kept in left.clients.items():
        assert all(torch.equal(vector, right.clients[i][name]) for name, vector in kept.items())


def personal(name: str, options: dict[str, Any], epochs: int = 0) -> list[float]:
    """Personal and generic accuracy of the last round."""
    base = problem({"name": name, **options}).config.resolve()
    config = RunConfig.parse(base | {"evaluation": {"every": 4, "personal": {"epochs": epochs, "split": "share"}}})
    row = run(Problem.build(config, data()), InlineBackend()).history[-1]
    return [row["personal_accuracy"], row["generic_accuracy"]]


def test_the_personal_model_of_fedala_is_the_mix_before_training() -> None:
    """a = 0 leaves W at ¼: o + ¼ (x - o) in the head, x below; x before a client's first activity."""
    built = problem({"name": "fedala", "weight_lr": 0.0}, clients={"cohorts": [[1, 4]] * 4})
    running, worker = Simulation(built, InlineBackend()), Worker(built)
    while not running.done:
        running.step()
    x, kept = running.state.theta, running.state.clients[4]
    told = running._make_broadcast(running._make_server(4, 1))
    task = ClientTask(4, 1.0, Vectors(old=kept.old, w=torch.full((170,), 0.25)))
    found = worker.trainer.personalise(told, task, 0).theta
    assert torch.equal(found[:-170], x[:-170])
    assert torch.allclose(found[-170:], kept.old[-170:] + 0.25 * (x - kept.old)[-170:], rtol=0, atol=1e-6)
    assert (found - x).abs().max() > 1e-3
    newcomer = worker.trainer.personalise(told, ClientTask(0, 1.0, Vectors()), 0).theta
    assert torch.equal(newcomer, x)


class Blocks(nn.Module):
    """Layers in order: first, norm, second, head."""

    head = "last"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 3), nn.LayerNorm(3)
        self.second, self.last = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.norm(self.first(x))))


@pytest.mark.parametrize(("layers", "count"), [(1, 6), (2, 6 + 8), (3, 6 + 8 + 6), (4, 35), (5, 35), (6, 35), (9, 35)])
def test_fedala_counts_layers(layers: int, count: int) -> None:
    """2 x 2 + 2, 3 x 2 + 2, 3 + 3, 4 x 3 + 3 parameters from the top (D-69)."""
    method = problem({"name": "fedala", "layers": layers}).config.algorithm
    positions = method.top(Network(Blocks()).layout)  # type: ignore[attr-defined]
    assert positions.tolist() == list(range(35 - count, 35))


def test_fedbn_without_normalisation_is_fedavg_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fedray"):
        left = run(problem("fedbn"), InlineBackend())
    assert [record.getMessage() for record in caplog.records] == [
        "fedbn: mlp has no normalisation layers, so this is FedAvg"
    ]
    assert torch.equal(left.theta, final("fedavg").theta)
    assert not left.state.clients
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedray"):
        problem("fedbn", **BATCHED)
    assert not caplog.records


def test_fine_tuning_of_fedper() -> None:
    """With default settings `epochs` has no effect; the port's fine-tuning changes the score, not the training."""
    assert personal("fedper", {}, 5) == personal("fedper", {}, 0)
    assert personal("fedper", {"adapts": "all"}, 5) != personal("fedper", {}, 0)
    assert torch.equal(final({"name": "fedper", "adapts": "head"}).theta, final("fedper").theta)


ANYWAY = "tests.algorithms.test_partial_methods:WeighsBySamples"


class WeighsBySamples(FedAS):
    """F_i = n_i."""

    def information(self, c: Client) -> float:
        return float(c.samples)


class GrowsEachRound(FedAS):
    """F_i = n_i 2^(e t): of any size, and always in the same proportion."""

    e: int = Field(0)

    def information(self, c: Client) -> float:
        return c.samples * 2.0 ** (self.e * round(log(c.lr / c.first_lr, TRAINING["lr_decay"])))


@pytest.mark.parametrize("e", [-14, 14])
def test_information_of_any_size(e: int) -> None:
    """Weights of 2^-42 n_i, which exact sums round to nothing, or 2^42 n_i, which they refuse, in the fourth round."""
    grows = {"name": "tests.algorithms.test_partial_methods:GrowsEachRound", "align_lr": 0, "e": e}
    left, right = final(grows), final({"name": ANYWAY, "align_lr": 0})
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)
    weighed = sum(SIZES[int(i)] for i in Simulation(problem("fedas"), InlineBackend()).draw_cohort(3)) / 3
    assert float(left.server.scale) == 2.0 ** (floor(log2(weighed)) + 3 * e)


class Constant(FedAS):
    """F_i = n_i 2^e, from the first round on, when no scale is known yet."""

    e: int = Field(0)

    def information(self, c: Client) -> float:
        return c.samples * 2.0**self.e


@pytest.mark.parametrize("e", [-46, 18])
def test_information_of_any_size_in_the_first_round(e: int) -> None:
    """F_i u_i of about 2^-46 · 50 · 0.01, half a unit of 2^-44 (2^-71 in a wide sum), and of 2^18 and more."""
    constant = {"name": "tests.algorithms.test_partial_methods:Constant", "align_lr": 0, "e": e}
    left, right = final(constant, rounds=1), final({"name": ANYWAY, "align_lr": 0}, rounds=1)
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)


def test_the_scale_stays_where_there_is_no_information() -> None:
    server = Server(torch.zeros(2), Vectors(scale=torch.tensor(4.0)), Layout(("a",), ((2,),)), 6, 3)
    zero = torch.zeros(())
    FedAS().aggregate(server, Received(Vectors(weighted=torch.zeros(2), information=zero, update=torch.zeros(2))))
    assert server.state.scale == 4
    assert torch.equal(server.theta, torch.zeros(2))


def test_the_personal_model_is_the_last_one() -> None:
    """Head and body as training left them, though the server's body has moved on."""
    *_, state = states("fedas")
    built = problem("fedas")
    running, worker = Simulation(built, InlineBackend()), Worker(built)
    running.restore(state)
    for i, kept in state.clients.items():
        c = worker.trainer.personalise(running._make_broadcast(running._make_server(4, 1)), ClientTask(i, 1.0, kept), 0)
        assert torch.equal(c.theta, torch.cat([kept.body, kept.own]))
        assert not torch.equal(c.theta[: len(kept.body)], state.theta[: len(kept.body)])
