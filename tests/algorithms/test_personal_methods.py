"""Local-only, FedProto, PerFedAvg, kNN-Per, FedGen: what they have in common with others, what stays where it is."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import algorithm
from fedray.common.errors import Diverged, UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig
from fedray.datasets.arrays import Digits
from fedray.engine.backend import InlineBackend
from fedray.engine.local_training import personal_client
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker
from tests.algorithms.clients import arguments
from tests.algorithms.digits import SIZES, final, problem, states

FEDGEN = {"name": "fedgen", "hidden": 12, "noise": 4, "steps": 3}


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"name": "perfedavg", "inner_lr": 0}, {}),
        ({"name": "perfedavg", "inner_lr": 0, "hessian_free": True}, {}),
        ({"name": "knnper", "lam": 1.0}, {}),
        ({**FEDGEN, "alpha": 0, "beta": 0}, {}),
        ({**FEDGEN, "epochs": 0}, {}),
        (FEDGEN, {"rounds": 1}),
    ],
)
def test_fedavg_bit_for_bit(options: dict[str, Any], training: dict[str, Any]) -> None:
    assert torch.equal(final(options, **training).theta, final("fedavg", **training).theta)


@pytest.mark.parametrize(
    "options",
    [{"name": "perfedavg"}, {"name": "perfedavg", "hessian_free": True}, {**FEDGEN, "alpha": 0}, {**FEDGEN, "beta": 0}],
)
def test_otherwise_not_fedavg(options: dict[str, Any]) -> None:
    assert (final(options).theta - final("fedavg").theta).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "training"), [({"name": "fedproto", "lam": 0}, {}), ({"name": "fedproto"}, {"rounds": 1})]
)
def test_fedproto_is_local_only(options: dict[str, Any], training: dict[str, Any]) -> None:
    """λ = 0, or the first round, in which there are no prototypes; from the second on its clients differ."""
    left, right = final(options, **training), final("local-only", **training)
    assert left.clients.keys() == right.clients.keys()
    assert all(torch.equal(kept["own"], right.clients[i]["own"]) for i, kept in left.clients.items())
    second = final({"name": "fedproto"}, rounds=2), final("local-only", rounds=2)
    assert any((kept["own"] - second[1].clients[i]["own"]).abs().max() > 1e-3 for i, kept in second[0].clients.items())


def test_local_only_is_fedavg_of_one_client() -> None:
    """A federation of client 2 alone ends where client 2 does among six that do not meet."""
    cohorts = [[1, 2], [2], [0, 2]]
    alone = final("fedavg", rounds=3, clients={"cohorts": [[2]] * 3}, lr_decay=1.0, shuffle=False)
    among = final("local-only", rounds=3, clients={"cohorts": cohorts}, lr_decay=1.0, shuffle=False)
    assert torch.allclose(among.clients[2]["own"], alone.theta, rtol=0, atol=1e-6)
    assert among.clients.keys() == {0, 1, 2}


class Normalised(nn.Module):
    """With BatchNorm, whose running statistics are a client's own where the whole model is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.top = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.norm(self.body(x.flatten(1))).relu())


def test_running_statistics_are_a_clients_own() -> None:
    """They follow client 2's samples alone, over its rounds; the server's stay as the model was made: 0 and 1."""
    options = {
        "model": "tests.algorithms.test_personal_methods:Normalised",
        "lr_decay": 1.0,
        "shuffle": False,
        "batch_size": 10,
    }
    alone = final("fedavg", rounds=2, clients={"cohorts": [[2]] * 2}, **options)
    among = final("local-only", rounds=3, clients={"cohorts": [[1, 2], [1], [0, 2]]}, **options)
    assert torch.allclose(among.clients[2]["own_buffers"], alone.buffers, rtol=0, atol=1e-5)
    assert among.buffers.tolist() == 8 * [0] + 8 * [1]
    for name in ("fedproto", "perfedavg", "fedgen"):
        state = final({**FEDGEN, "alpha": 1, "beta": 1} if name == "fedgen" else name, rounds=2, **options)
        assert ("own_buffers" in next(iter(state.clients.values()), {})) == (name == "fedproto")
        assert (state.buffers[8:] == 1).all() == (name == "fedproto")


def test_a_class_that_the_cohort_lacks_keeps_its_prototype() -> None:
    """Clients 0 and 5 in round 0, client 0 alone in round 1: what only client 5 has stays bit for bit."""
    before, after = states({"name": "fedproto"}, rounds=2, clients={"cohorts": [[0, 5], [0]]})
    built = problem("fedproto")
    held = torch.bincount(torch.from_numpy(built.data.y_train[built.shards[0]]), minlength=10) > 0
    moved = (before.server.prototypes != after.server.prototypes).any(1)
    assert torch.equal(before.server.prototypes[~held], after.server.prototypes[~held])
    assert moved[held].all()
    assert before.server.known.all()
    lacking = problem("fedproto", sizes=(2, 3), per_round=1)
    alone = final({"name": "fedproto"}, sizes=(2, 3), per_round=1, rounds=1, clients={"cohorts": [[0]]})
    classes = set(lacking.data.y_train[lacking.shards[0]].tolist())
    assert set(alone.server.known.nonzero().flatten().tolist()) == classes
    assert not alone.server.prototypes[alone.server.known == 0].any()


def with_own(built: Problem, client: int, change: Any) -> Simulation:
    """A run after two rounds of everyone, in which one client's own parameters are then changed."""
    running = Simulation(built, InlineBackend())
    running.step()
    running.step()
    state = running.state()
    changed = Vectors(state.clients[client], own=change(state.clients[client]["own"]))
    running.restore(replace(state, clients=state.clients | {client: changed}))
    return running


@pytest.mark.parametrize("name", ["local-only", "fedproto"])
def test_what_is_a_clients_own_stays_there(name: str) -> None:
    """Client 3's own model is another one: theta, and (Local-only) everyone else, are the same bit for bit."""
    built = problem(name, per_round=6, rounds=3)
    plain, changed = with_own(built, 3, lambda own: own), with_own(built, 3, lambda own: own + 0.1)
    plain.step()
    changed.step()
    left, right = plain.state(), changed.state()
    assert torch.equal(left.theta, right.theta)
    assert not torch.equal(left.clients[3]["own"], right.clients[3]["own"])
    assert all(torch.equal(left.clients[i]["own"], right.clients[i]["own"]) for i in (0, 1, 2, 4, 5))
    if name == "local-only":
        assert not left.server


@pytest.mark.parametrize("name", ["local-only", "fedproto"])
def test_a_poisoned_client_reaches_nobody(name: str) -> None:
    """NaN in client 3: a round without it is as ever, a round with it is refused, and the state stays finite."""
    built = problem(name, rounds=4, clients={"cohorts": [[0, 3], [1, 3], [0, 1], [1, 3]]})
    running = with_own(built, 3, lambda own: own * float("nan"))
    running.step()
    before = running.state()
    with pytest.raises(Diverged, match="in round 4, client 3"):
        running.step()
    after = running.state()
    assert after.sha256() == before.sha256()
    kept = [after.theta, *after.server.values(), after.clients[0]["own"], after.clients[1]["own"]]
    assert all(torch.isfinite(vector).all() for vector in kept)


class TwoLayerHead(nn.Module):
    """A head that is more than a linear layer."""

    head = "top"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.top = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.flatten(1)))


class NoBias(nn.Module):
    """A linear head without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(64, 8), nn.Linear(8, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.flatten(1)).relu())


def test_models_that_cannot_serve() -> None:
    bare = {"name": "mlp", "hidden": []}
    for name in ("fedproto", "knnper"):
        with pytest.raises(UserError, match=f"all of it head; {name} needs a feature layer"):
            problem(name, model=bare)
    with pytest.raises(UserError, match=r"top\.0\.bias.*fedgen needs one linear layer"):
        problem("fedgen", model="tests.algorithms.test_personal_methods:TwoLayerHead").network("cpu")


@pytest.mark.parametrize("model", ["tests.algorithms.test_personal_methods:NoBias", {"name": "mlp", "hidden": []}])
def test_fedgen_with_a_head_without_bias_or_body(model: Any) -> None:
    """A missing bias is 0; where everything is head the generated features are inputs."""
    state = final({**FEDGEN, "alpha": 1, "beta": 1}, model=model, rounds=2)
    assert state.server.generator.shape == (12 * (4 + 10) + 12 + 24 + (8 if "NoBias" in model else 64) * 13,)
    assert torch.isfinite(state.theta).all()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"name": "perfedavg", "inner_lr": -0.1},
            "algorithm.inner_lr: found -0.1; input should be greater than or equal",
        ),
        ({"name": "perfedavg", "inner_lr": float("nan")}, "algorithm.inner_lr: found nan"),
        ({"name": "knnper", "k": 0}, "algorithm.k: found 0"),
        ({"name": "knnper", "capacity": 0}, "algorithm.capacity: found 0"),
        ({"name": "fedproto", "prototypes": "last"}, "input should be 'trained' or 'running'"),
        ({"name": "fedgen", "batch": 1}, "algorithm.batch: found 1"),
    ],
)
def test_options_that_cannot_be(section: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        algorithm(section)
    assert message in str(raised.value)


def test_fedgen_learns_on_the_server_alone() -> None:
    """Its generator starts with the first round, as its key says, goes on from round to round, and fills no client."""
    first, second = states({**FEDGEN, "alpha": 0, "beta": 0}, rounds=2)
    assert not first.clients
    assert (first.server.generator - second.server.generator).abs().max() > 1e-4
    assert first.server.v.abs().max() > 0
    assert not torch.equal(first.server["mean"], second.server["mean"])


LEARNING = {
    "fedavg": {},
    "local-only": {},
    "fedproto": {},
    "perfedavg": {"inner_lr": 0.02},
    "knnper": {},
    "fedgen": {"alpha": 1, "beta": 1, "steps": 10, "hidden": 64},
}


@pytest.mark.parametrize("name", LEARNING)
def test_personal_models_learn(name: str) -> None:
    """PA and GA on digits after eight rounds: ten clients, Dirichlet(0.3), five a round; shown by `pytest -s`.

    Chance is 10. A client's own samples are of few classes, so that what it learns alone is good there and poor on all
    ten; what is learned together is good on both.
    """
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": {"name": "dirichlet", "alpha": 0.3},
            "clients": {"total": 10, "per_round": 5},
            "model": {"name": "mlp", "hidden": [32]},
            "algorithm": {"name": name, **LEARNING[name]},
            "training": {"rounds": 8, "local_epochs": 2, "batch_size": 20, "lr": 0.1, "weight_decay": 1e-3},
            "evaluation": {"every": 8, "personal": {"epochs": 1}},
            "runtime": {"backend": "inline"},
        }
    )
    last = run(Problem.build(config, Digits().load()), InlineBackend()).history[-1]
    pa, ga = last["personal_accuracy"], last["generic_accuracy"]
    print(f"{name}: PA {pa:.2f} +- {last['personal_std']:.2f}, worst tenth {last['personal_worst10']:.2f}; GA {ga:.2f}")
    assert pa > 85
    assert ga > 80 if config.algorithm.generic else 30 < ga < 70


def test_fedreps_newcomers_are_tested_with_the_average_head() -> None:
    """It is the mean of what the last cohort kept; a client that took part has its own, one that never did the mean."""
    built = problem({"name": "fedrep", "newcomer": "average"}, clients={"cohorts": [[0, 1], [1, 3], [0, 3], [1, 3]]})
    running, worker = Simulation(built, InlineBackend()), Worker(built)
    while not running.done:
        running.step()
    state = running.state()
    n = {i: SIZES[i] / (SIZES[1] + SIZES[3]) for i in (1, 3)}
    average = sum((share * state.clients[i].own for i, share in n.items()), torch.zeros(()))
    head = running.layout.head > 0
    for i, expected in ((0, state.clients[0].own), (2, average)):
        c = personal_client(
            *arguments(worker, running._personal_broadcast(1), ClientTask(i, 1.0, state.clients.get(i, Vectors()))), 0
        )
        assert torch.allclose(c.theta[head], expected, rtol=0, atol=1e-6)
        assert torch.equal(c.theta[~head], state.theta[~head])
