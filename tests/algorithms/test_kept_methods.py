"""FedPer, LG-FedAvg, FedBN, Ditto, APFL, pFedMe, FedALA: what they have in common with others; what stays with clients.

With BatchNorm and partial participation on; bit for bit where the arithmetic is the same.
"""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.common.vectors import Vectors
from fedray.config import RunConfig
from fedray.engine.backend import InlineBackend
from fedray.engine.local_training import personal_client
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker
from fedray.models.network import Network
from tests.algorithms.clients import arguments
from tests.algorithms.digits import data, final, problem

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
@pytest.mark.parametrize("training", [{}, BATCHED])
def test_the_shared_model_is_fedavgs(options: dict[str, Any], training: dict[str, Any]) -> None:
    left, right = final(options, **training), final("fedavg", **training)
    assert torch.equal(left.theta, right.theta)
    assert torch.equal(left.buffers, right.buffers)
    assert left.history[-1]["train_loss"] == right.history[-1]["train_loss"]


@pytest.mark.parametrize("options", [{"name": "ditto"}, {"name": "apfl"}, {"name": "apfl", "mix": "logits"}])
def test_under_dropout_too(options: dict[str, Any]) -> None:
    partly = {"model": "tests.algorithms.test_parts_kept:Partly", "batch_size": 18}
    assert torch.equal(final(options, **partly).theta, final("fedavg", **partly).theta)


@pytest.mark.parametrize("options", [{"name": "ditto", "lam": 0}, {"name": "apfl", "alpha": 1.0}])
@pytest.mark.parametrize("training", [{}, BATCHED])
def test_alone_they_are_local_only(options: dict[str, Any], training: dict[str, Any]) -> None:
    left, right = final(options, **training).clients, final("local-only", **training).clients
    assert left.keys() == right.keys()
    for i, kept in left.items():
        assert torch.equal(kept.v, right[i].own)
        assert not training or torch.equal(kept.second_buffers, right[i].own_buffers)


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


@pytest.mark.parametrize("mix", ["parameters", "logits"])
def test_apfl_without_a_model_of_its_own(mix: str) -> None:
    """a = 0: v stays x⁰ but for weight decay, and the personal model is x."""
    options = {"alpha": 0.0, "mix": mix}
    state = final({"name": "apfl", **options}, weight_decay=0)
    start = problem("apfl").network("cpu").initial
    assert all(torch.equal(kept.v, start) for kept in state.clients.values())
    assert personal("apfl", options) == personal("fedavg", {})


def test_apfl_mixes_the_same_in_a_linear_model() -> None:
    """Logits of a linear model are linear in its parameters; of the MLP they are not."""
    for model, equal in (({"name": "mlp", "hidden": []}, True), ("mlp", False)):
        left, right = (
            final({"name": "apfl", "adaptive": True, "mix": mix}, model=model).clients
            for mix in ("parameters", "logits")
        )
        assert all(torch.allclose(kept.v, right[i].v, rtol=0, atol=1e-5) for i, kept in left.items()) == equal


def test_apfl_with_logits_asks_both_models() -> None:
    """a = 1: the client's own v alone answers, so it scores what Local-only scores; a = ½ scores something else."""
    alone = personal("apfl", {"alpha": 1.0, "mix": "logits"})[0]
    assert alone == personal("local-only", {})[0]
    assert personal("apfl", {"mix": "logits"})[0] != alone


def personal(name: str, options: dict[str, Any], epochs: int = 0) -> list[float]:
    """Personal and generic accuracy of the last round."""
    base = problem({"name": name, **options}).config.resolved()
    config = RunConfig.parse(base | {"evaluation": {"every": 4, "personal": {"epochs": epochs, "split": "share"}}})
    row = run(Problem.build(config, data()), InlineBackend()).history[-1]
    return [row["personal_accuracy"], row["generic_accuracy"]]


def test_ditto_held_fast_is_fedprox() -> None:
    """In the first round v starts at x, so it is FedProx's local model with μ = λ."""
    once: dict[str, Any] = {"rounds": 1, "clients": {"cohorts": [[3]]}}
    left, right = final({"name": "ditto", "lam": 0.5}, **once), final({"name": "fedprox", "mu": 0.5}, **once)
    assert torch.allclose(left.clients[3].v, right.theta, rtol=0, atol=1e-6)


PLAIN: dict[str, Any] = {
    "weight_decay": 0,
    "momentum": 0,
    "clip_norm": None,
    "lr_decay": 1.0,
    "batch_size": "full",
    "local_epochs": None,
}


def test_pfedme_of_one_step_is_fedprox() -> None:
    """R = 1, η λ = 1: y = θ after K steps of length a on the whole shard, which is FedProx's local training, μ = λ."""
    left = final({"name": "pfedme", "lam": 4.0, "inner_steps": 3, "inner_lr": 0.05}, **PLAIN, lr=0.25, local_steps=1)
    right = final({"name": "fedprox", "mu": 4.0}, **PLAIN, lr=0.05, local_steps=3)
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-5)


def test_pfedme_of_one_inner_step_is_fedavg() -> None:
    """R = K = 1: x moves by η λ a g(x)."""
    left = final({"name": "pfedme", "lam": 4.0, "inner_steps": 1, "inner_lr": 0.1}, **PLAIN, lr=0.125, local_steps=1)
    right = final("fedavg", **PLAIN, lr=0.05, local_steps=1)
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)


def test_pfedme_stays_where_its_server_does() -> None:
    """What clients keep depends on neither the server's step nor each other in the first round."""
    small, large = (final("pfedme", rounds=1, server_lr=lr, lr=0.02).clients for lr in (1e-6, 1.0))
    assert all(torch.equal(kept.personal, large[i].personal) for i, kept in small.items())


def test_fedala_first_is_fedavg() -> None:
    """Nobody has a local model before the first round."""
    assert torch.equal(final("fedala", rounds=1).theta, final("fedavg", rounds=1).theta)


def test_fedala_that_takes_nothing_of_x_is_local_only() -> None:
    """W = 0 everywhere, after a first round of everybody: each goes on from its own model, while x is averaged."""
    method = {"name": "fedala", "layers": 9, "weight_lr": 0.0}
    options: dict[str, Any] = {"per_round": 6, "rounds": 3}
    running = Simulation(problem(method, **options), InlineBackend())
    running.step()
    for kept in running.state().clients.values():
        kept.w = torch.zeros_like(kept.old)
    while not running.done:
        running.step()
    alone = final("local-only", **options).clients
    for i, kept in running.state().clients.items():
        assert torch.allclose(kept.old, alone[i].own, rtol=0, atol=1e-6)


def test_the_personal_model_of_fedala_is_the_mix_before_training() -> None:
    """a = 0 leaves W at ¼: o + ¼ (x - o) in the head, x below; x before a client's first activity."""
    built = problem({"name": "fedala", "weight_lr": 0.0}, clients={"cohorts": [[1, 4]] * 4})
    running, worker = Simulation(built, InlineBackend()), Worker(built)
    while not running.done:
        running.step()
    x, kept = running.state().theta, running.state().clients[4]
    told = running._broadcast(running._server(4, 1))
    task = ClientTask(4, 1.0, Vectors(old=kept.old, w=torch.full((170,), 0.25)))
    found = personal_client(*arguments(worker, told, task), 0).theta
    assert torch.equal(found[:-170], x[:-170])
    assert torch.allclose(found[-170:], kept.old[-170:] + 0.25 * (x - kept.old)[-170:], rtol=0, atol=1e-6)
    assert (found - x).abs().max() > 1e-3
    newcomer = personal_client(*arguments(worker, told, ClientTask(0, 1.0, Vectors())), 0).theta
    assert torch.equal(newcomer, x)


def test_fedala_learns_weights_in_the_top_alone() -> None:
    """Of the MLP's 64 x 16 + 16 + 16 x 10 + 10 parameters the last 170 have an entry of W, in [0, 1], some below 1."""
    clients = final("fedala").clients
    learnt = [kept.w for kept in clients.values() if "w" in kept]
    assert len(learnt) > 2
    for w in learnt:
        assert w.shape == (170,)
        assert (w.min() >= 0) & (w.max() <= 1) & (w.min() < 1)


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


@pytest.mark.parametrize(("name", "part"), [("fedper", "body"), ("lg-fedavg", "head"), ("fedbn", "not_norm")])
def test_the_shared_part_of_the_first_round_is_fedavgs(name: str, part: str) -> None:
    left, right = final(name, **BATCHED, rounds=1), final("fedavg", **BATCHED, rounds=1)
    network = problem(name, **BATCHED).network("cpu")
    shared = network.layout.part(part) > 0
    assert torch.equal(left.theta[shared], right.theta[shared])
    assert torch.equal(left.theta[~shared], network.initial[~shared])
    assert not torch.equal(right.theta[~shared], network.initial[~shared])


@pytest.mark.parametrize("name", ["fedper", "lg-fedavg", "fedbn"])
def test_one_client_alone_is_fedavg(name: str) -> None:
    """Up to rounding: what is kept is y_K, what is averaged x + (y_K - x)."""
    options: dict[str, Any] = {**BATCHED, "clients": {"cohorts": [[4]] * 4}}
    left, right = final(name, **options), final("fedavg", **options)
    network = problem(name, **BATCHED).network("cpu")
    own = network.index(problem(name, **BATCHED).config.algorithm.keeps)
    whole = left.theta.index_copy(0, own, left.clients[4].own)
    assert torch.allclose(whole, right.theta, rtol=0, atol=1e-5)


def test_fedper_and_lg_fedavg_divide_the_model() -> None:
    layout = problem("fedper").network("cpu").layout
    sizes = [int(layout.part(part).sum()) for part in ("head", "body")]
    for name, size in zip(("fedper", "lg-fedavg"), sizes, strict=True):
        assert all(len(state.own) == size for state in final(name).clients.values())
    assert sum(sizes) == layout.size


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
    """As it stands by default, whatever `epochs` says; the port's fine-tuning changes the score, not the training."""
    assert personal("fedper", {}, 5) == personal("fedper", {}, 0)
    assert personal("fedper", {"adapts": "all"}, 5) != personal("fedper", {}, 0)
    assert torch.equal(final({"name": "fedper", "adapts": "head"}).theta, final("fedper").theta)
