"""Optional hooks of the contract: each reduces to the special case it generalises, bit for bit. Their draws are keyed
by round and client: global generators and other draws change no bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor, nn

import fedray
from fedray.algorithms.base import Algorithm, Client, Cohort, Received, Server, Uploads, Vectors
from fedray.client import LocalClient
from fedray.common.errors import UserError
from fedray.datasets.dataset import Dataset
from fedray.engine.state import load_state
from fedray.partitions.schemes import IID
from fedray.partitions.shards import Shards
from fedray.probes.probe import EvaluatedRound, Probe
from tests import small
from tests.algorithms.digits import final, states

PARTLY = {"model": "tests.algorithms.test_methods:Partly", "batch_size": 18}
"""A frozen layer, BatchNorm, dropout."""
NORMALISED = {"model": "tests.algorithms.test_contract:Normalised", "batch_size": 18}


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


class Unscaled(Normalised):
    def __init__(self) -> None:
        super().__init__()
        self[2] = nn.BatchNorm1d(12, affine=False)


class Shadow(Algorithm):
    """FedAvg, and in each client also a model that trains alone on the same batches."""

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(v=theta)

    def begin(self, c: Client) -> None:
        c.local.v = c.state.v

    def direction(self, c: Client) -> Tensor:
        c.local.v = c.second.step(c.local.v, c.second.grad(c.local.v))
        return c.grad(c.theta)

    def upload(self, c: Client) -> Uploads:
        c.state.v = c.local.v
        return {}


@pytest.mark.parametrize("options", [PARTLY, NORMALISED])
def test_a_second_model_leaves_the_first_alone(options: dict[str, Any]) -> None:
    left, right = final("tests.algorithms.test_contract:Shadow", **options), final("fedavg", **options)
    assert torch.equal(left.theta, right.theta)
    assert torch.equal(left.buffers, right.buffers)


class Two(Algorithm):
    """The server has a second model, too, that clients test as it arrives, or a copy of it."""

    copies: bool = False
    personal = "trained"

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(w=theta)

    def message(self, server: Server) -> Vectors:
        return Vectors(w=server.state.w)

    def direction(self, c: Client) -> Tensor:
        c.second.grad(c.message.w)
        return c.grad(c.theta)

    def prepare(self, c: Client) -> None:
        c.second.use(c.message.w.clone() if self.copies else c.message.w)


def test_what_the_second_model_uses_is_tested_with_its_statistics() -> None:
    kind = "tests.algorithms.test_contract:Two"
    options = {"training": {"rounds": 2}, "evaluation": {"personal": {"train": True}}}
    asked = small.sections(kind, (4, 4), NORMALISED["model"], **options)
    ours, theirs = (fedray.simulate({**asked, "algorithm": {"name": kind, "copies": c}}) for c in (False, True))
    assert ours.table("clients").equals(theirs.table("clients"))


SEEN: list[tuple[float, int, tuple[float, ...]]] = []


class Counts(Algorithm):
    def begin(self, c: Client) -> None:
        for share, size in ((1.0, 7), (0.5, 7), (0.5, None)):
            for k in c.batches(f"{share} {size}", size, share):
                SEEN.append((share, k, tuple(c.x.flatten(1).sum(1).tolist())))


def test_batches_are_a_permutation_and_keyed() -> None:
    """20 samples: 3 batches of at most 7, of half of them 2, or one of the run's size; each sample at most once."""
    options = {"rounds": 1, "clients": {"cohorts": [[0]]}}
    SEEN.clear()
    list(states(f"{__name__}:Counts", **options))
    first = list(SEEN)
    SEEN.clear()
    list(states(f"{__name__}:Counts", **options))
    assert first == SEEN
    assert [(k, len(x)) for _, k, x in SEEN] == [(0, 7), (1, 7), (2, 6), (0, 7), (1, 3), (0, 10)]
    samples = [sorted(v for share, _, x in SEEN[part] for v in x) for part in (slice(0, 3), slice(3, 5), slice(5, 6))]
    assert len(set(samples[0])) == 20
    assert set(samples[1]) < set(samples[0])
    assert samples[1] != samples[2]


def draw() -> float:
    """A number that depends on the generators of torch, NumPy and Python."""
    return float(torch.rand(())) + float(np.random.rand()) + random.random()


class Noisy(Algorithm):
    """Draws in every hook of server and clients, as one with differential privacy does."""

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(v=theta + draw())

    def weights(self, cohort: Cohort) -> np.ndarray:
        given = np.array([1 + draw() for _ in cohort.samples])
        return given / given.sum()

    def broadcast(self, server: Server) -> Tensor:
        return server.theta + 1e-3 * draw()

    def message(self, server: Server) -> Vectors:
        return Vectors(v=server.state.v + draw())

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta) + 1e-3 * draw() * c.message.v

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta + got.update + 1e-3 * draw()


class Rolling(Probe):
    metrics = {"rolled": "a number", "rolled_step": "a number"}

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        return {"rolled_step": draw()}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"rolled": draw()}


NOISY, ROLLING = f"{__name__}:Noisy", f"{__name__}:Rolling"


def train(seed: int, probes: list[str]) -> fedray.Result:
    """Train with the global generators in a state of their own, as after a resume."""
    for reset in (torch.manual_seed, np.random.seed, random.seed):
        reset(seed)
    brief = {"training": {"rounds": 3, "local_steps": 2}, "evaluation": {"every": 1, "probes": probes}}
    return fedray.simulate(small.sections(algorithm=NOISY, **brief), progress=False)


def test_bits_do_not_depend_on_global_generators_nor_on_probes() -> None:
    one, other, alone = train(1, [ROLLING]), train(2, [ROLLING]), train(3, [])
    assert one.summary()["theta_sha256"] == other.summary()["theta_sha256"] == alone.summary()["theta_sha256"]
    assert one.history == other.history
    assert {"rolled", "rolled_step"} <= one.history[-1].keys()
    assert len({row["rolled"] for row in one.history}) == len(one.history), "each round draws anew"


class Other(Rolling):
    """Draws before `Rolling`, takes a plain gradient, uses the second model and makes a pass."""

    metrics = {"other": "a number"}

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        c.second.step(c.theta, c.second.grad(c.theta))
        found = draw() + float(c.grad(c.theta).sum())
        return {"other": found + len([*c.batches("own")])}

    def of_client(self, seen: Any) -> dict[str, float]:
        return {"other_end": float(seen.c.grad(seen.c.theta).sum()) + draw()}

    of_round = Probe.of_round


class Smoothed(Algorithm):
    """Its loss is its own, and in every second step there is none; it sends the number of the last step."""

    def loss(self, forward: Any, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(forward(x).logits, y, label_smoothing=0.3)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.loss) if c.step % 2 else torch.zeros_like(c.theta)

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(step=torch.zeros(()))

    def upload(self, c: Client) -> Uploads:
        c.state.step = torch.tensor(float(c.step))
        return {}


def test_a_probe_may_compute_with_the_client() -> None:
    """Neither the run nor another probe notices: losses, running statistics, states, the step."""
    asked = small.sections(Smoothed, (3, 3), NORMALISED["model"], training={"rounds": 2, "local_steps": 3})
    results = [
        fedray.simulate(asked | {"evaluation": {"every": 1, "probes": probes}})
        for probes in ([], [f"{__name__}:Other", ROLLING], [ROLLING])
    ]
    assert len({result.summary()["state_sha256"] for result in results}) == 1
    assert len({tuple(row["train_loss"] for row in result.history) for result in results}) == 1
    assert len({tuple(row["rolled_step"] for row in result.history) for result in results[1:]}) == 1
    assert len({tuple(row["rolled"] for row in result.history) for result in results[1:]}) == 1


DRAWN: list[float] = []


class Draws(Algorithm):
    def begin(self, c: Client) -> None:
        for _ in c.batches("meta", 20):
            DRAWN.extend(float(c.draw()[0].double().sum()) for _ in range(2))
        DRAWN.append(float(c.draw()[0].double().sum()))

    def direction(self, c: Client) -> Tensor:
        DRAWN.append(float(c.draw()[0].double().sum()))
        return c.grad(c.theta)


def test_every_draw_of_a_client_is_a_new_batch_and_keyed() -> None:
    """In each turn of a pass, after it, and in the steps."""
    seen: list[list[float]] = []
    for _ in range(2):
        DRAWN.clear()
        fedray.simulate(small.sections(Draws, (2, 2), training={"rounds": 1, "local_steps": 3, "batch_size": 20}))
        seen.append(list(DRAWN))
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(seen[0]) > 2 * (2 * 30 + 1 + 3)


KNOWN: list[tuple[int, bool, float]] = []


class Forgets(Algorithm):
    """A client's state counts its rounds, and is emptied in each second one."""

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(n=torch.zeros(()))

    def begin(self, c: Client) -> None:
        KNOWN.append((c.id, c.first, float(c.state.n)))

    def upload(self, c: Client) -> Uploads:
        if c.state.n >= 1:
            c.state.clear()
        else:
            c.state.n = c.state.n + 1
        return {}


def test_a_client_whose_state_is_emptied_begins_anew(tmp_path: Path) -> None:
    """Rounds 1 and 2, and again; after a resume, too."""
    KNOWN.clear()
    asked = small.sections(Forgets, (2, 2), training={"rounds": 5, "local_steps": 1}, evaluation={"every": 1})
    fedray.simulate(asked, checkpoints=tmp_path, evaluated=lambda row: fedray.STOP if row["round"] == 4 else None)
    fedray.simulate(asked, checkpoints=tmp_path)
    assert [known[1:] for known in KNOWN if known[0] == 0] == [(True, 0), (False, 1), (True, 0), (False, 1), (True, 0)]


class Random(Algorithm):
    """Draws wherever a client or the method itself begins."""

    keeps = "head"
    shares = "body"
    _scale: Tensor = PrivateAttr(default_factory=lambda: torch.rand(1))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(r=0.01 * torch.randn_like(theta))

    def newcomers_own(self, initial: Tensor, message: Vectors) -> Tensor:
        return initial + 0.1 * torch.randn_like(initial)

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta) * (1 + self._scale) + c.state.r


class Halves(IID):
    """Tests each client on samples of its own draw."""

    def split_test(self, data: Dataset, shards: Shards, seed: int, split: str) -> Shards:
        return Shards.from_lists([np.random.choice(len(data.y_test), 40, replace=False) for _ in range(len(shards))])


def test_what_is_drawn_for_a_client_that_begins_is_keyed_by_it() -> None:
    training = {"rounds": 3, "local_steps": 2}
    asked = small.sections(f"{__name__}:Random", (4, 2), partition=f"{__name__}:Halves", training=training)
    found = []
    for seed, personal in ((1, {"every": 1}), (2, {"every": 1}), (3, {"every": 3})):
        torch.manual_seed(seed)
        np.random.seed(seed)
        result = fedray.simulate(asked | {"evaluation": {"personal": personal}})
        found.append((result.summary()["state_sha256"], result.history[-1]["personal_accuracy"]))
    assert found[0] == found[1] == found[2]


class EverySecond(Algorithm):
    """Trains its second model in each second round only, and assigns its state anew."""

    anew: bool = True

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(v=theta, round=torch.zeros(()))

    def direction(self, c: Client) -> Tensor:
        if c.state.round % 2 == 0:
            c.local.v = c.second.step(c.state.v, c.second.grad(c.state.v))
        return c.grad(c.theta)

    def upload(self, c: Client) -> Uploads:
        kept = {"v": c.local.get("v", c.state.v), "round": c.state.round + 1}
        if self.anew:
            c.state = Vectors(kept)
        else:
            c.state |= kept
        return {}


def test_a_state_that_is_assigned_anew_keeps_the_second_models_statistics() -> None:
    asked = small.sections("fedavg", (3, 3), NORMALISED["model"], training={"rounds": 2, "local_steps": 1})
    kind = "tests.algorithms.test_contract:EverySecond"
    ours, theirs = (fedray.simulate(asked | {"algorithm": {"name": kind, "anew": anew}}) for anew in (True, False))
    assert ours.summary()["state_sha256"] == theirs.summary()["state_sha256"]
    assert "second_buffers" in load_state(ours.state.clients[0])


def make(factor: float) -> type[Algorithm]:
    class Made(Algorithm):
        def rate(self, c: Client) -> float:
            return c.lr * factor

    return Made


def test_a_class_made_in_a_function_has_no_checkpoints(tmp_path: Path) -> None:
    """Its results would be those of another one that the function made."""
    asked = small.sections("fedavg", training={"rounds": 1})
    fedray.simulate(asked | {"algorithm": make(0.1)})
    with pytest.raises(UserError, match=r"make\.<locals>\.Made is defined in a function, so a cell cannot tell it"):
        fedray.simulate(asked | {"algorithm": make(0.1)}, checkpoints=tmp_path)
