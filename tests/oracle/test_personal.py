"""The personalised methods against their oracle: theta and every vector that a client keeps, and draws that have to be
repeated.

The federation, its settings and the bound are those of `test_oracle`, and as there it is the plain setting in which a
number that is off is outside the bound. Draws are fedray's: their keys are part of what a run is, so here they are
written out again."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedray.common.rng import generator, make_key
from fedray.common.vectors import Vectors
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.state import State
from fedray.models.network import Layout

from . import partial, personal
from .averaging import fedavg
from .case import Case
from .personal import Generator, Noise
from .tensors import Tensors, zeros
from .test_oracle import CLASSES, COHORTS, HIDDEN, SIZES, TOLERANCE, flat, problem, world
from .world import World

SEED = 0


def case(method: str, setting: str = "plain", **options: Any) -> Case:
    return Case(method, options, setting)


STATES: dict[str, State] = {}


def state(given: Case) -> State:
    """fedray's, after the last round; each case is run once."""
    if (key := repr(given)) not in STATES:
        STATES[key] = run(problem(given, SEED), InlineBackend()).state
    return STATES[key]


def draw(t: int, i: int, k: int, n: int, size: int) -> np.ndarray:
    return generator(SEED, f"draw {k} {n}", t, i).choice(SIZES[i], size, replace=False)


PERFEDAVG: list[dict[str, Any]] = [
    {},
    {"inner_lr": 0.3},
    {"outer_lr": 0.05},
    {"inner_weight_decay": 0.3},
    {"hessian_free": True, "delta": 0.1},
    {"hessian_free": True, "delta": 0.2, "inner_lr": 0.3},
    {"hessian_free": True, "delta": 0.1, "inner_weight_decay": 0.3},
]


@pytest.mark.parametrize("setting", ["plain", "together", "softmax"])
@pytest.mark.parametrize("options", PERFEDAVG)
def test_perfedavg(options: dict[str, Any], setting: str) -> None:
    """And a hyper-parameter that is off, or the other form, is outside the bound."""
    given = case("perfedavg", setting, **options)
    found = state(given).theta.numpy()

    def distance(**changed: Any) -> float:
        return float(np.abs(found - flat(personal.perfedavg(world(given, SEED), draw, **changed))).max())

    assert distance(**options) < TOLERANCE
    if setting != "plain":
        return
    for option, value in options.items():
        assert value is True or distance(**options | {option: 1.5 * value}) > 3 * TOLERANCE, option
    assert all(other == options or distance(**other) > 3 * TOLERANCE for other in PERFEDAVG)


@pytest.mark.parametrize("setting", ["plain", "together", "softmax"])
def test_local_only(setting: str) -> None:
    given = case("local-only", setting)
    found, w = state(given), world(given, SEED)
    for i, own in enumerate(personal.local_only(w)):
        assert np.abs(found.clients[i]["own"].numpy() - flat(own)).max() < TOLERANCE
    assert np.abs(found.theta.numpy() - flat(w.x0)).max() < 1e-12


FEDPROTO = [{"average": a, "prototypes": p} for a in ("clients", "samples") for p in ("trained", "running")]


@pytest.mark.parametrize("setting", ["plain", "together"])
@pytest.mark.parametrize("options", FEDPROTO)
def test_fedproto(options: dict[str, str], setting: str) -> None:
    given = case("fedproto", setting, lam=2.0, **options)
    found = state(given)

    def distances(lam: float, **changed: str) -> tuple[float, float]:
        own, P = personal.fedproto(world(given, SEED), CLASSES, lam, **changed)
        assert set(P) == set(found.server.known.nonzero().flatten().tolist())
        return (
            max(float(np.abs(found.clients[i]["own"].numpy() - flat(p)).max()) for i, p in enumerate(own)),
            max(float(np.abs(found.server.prototypes[c].numpy() - p).max()) for c, p in P.items()),
        )

    assert max(distances(2.0, **options)) < TOLERANCE
    if setting == "plain":
        assert min(distances(2.04, **options)) > 3 * TOLERANCE
        assert all(min(distances(2.0, **other)) > 3 * TOLERANCE for other in FEDPROTO if other != options)


def compute_answers(given: Case, client: int, asked: int, **options: Any) -> np.ndarray:
    """The logits of a client's personal model, after the run, on the training samples of another one."""
    built, found = problem(given, SEED), state(given)
    worker, method = Worker(built), built.config.algorithm.model_copy(update=options)
    c = replace(worker.trainer, algorithm=method).personalise(
        Broadcast(round=5, lr=0.1, theta=found.theta, buffers=worker.network.buffers, message=Vectors(), cohort=1),
        ClientTask(client, 1.0, found.clients.get(client, Vectors())),
        0,
    )
    c.start_step(0, *worker.train_samples.make_batch(built.split.train[asked]))
    answers: np.ndarray = method.personal_logits(c).detach().numpy()
    return answers


@functools.cache
def knn_pieces() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the oracle z and h of client 4's training samples, and what client 3 remembers, h and y."""
    w = world(case("knnper"), SEED)
    x = fedavg(w)
    asked, memory = w.net.forward(x, w.clients[4][0]), w.net.forward(x, w.clients[3][0])
    return asked.z, asked.h, memory.h, w.clients[3][1]


@pytest.mark.parametrize(
    ("k", "lam", "scale"), [(3, 0.5, 1.0), (3, 0.9, 0.2), (1, 0.3, 1.0), (50, 1.0, 2.0), (3, 0.0, 1.0)]
)
def test_knnper(k: int, lam: float, scale: float) -> None:
    """Probabilities to 1e-5; they are probabilities; there are 7 samples to remember, so k = 50 is all of them."""
    z, h, memory, labels = knn_pieces()
    found = np.exp(compute_answers(case("knnper"), 3, 4, k=k, lam=lam, scale=scale))
    assert np.allclose(found.sum(1), 1, rtol=0, atol=1e-6)
    assert np.abs(found - personal.knn(z, h, memory, labels, k, lam, scale)).max() < TOLERANCE
    for changed in ({"k": k + 1}, {"lam": 0.9 * lam + 0.02}, {"scale": 1.2 * scale}):
        if (k == 50 and "k" in changed) or (k == 1 and "scale" in changed) or (lam == 0 and "lam" not in changed):
            continue
        other = personal.knn(z, h, memory, labels, **{"k": k, "lam": lam, "scale": scale} | changed)
        assert np.abs(found - other).max() > 3 * TOLERANCE, changed


GENERATOR = {"hidden": 5, "noise": 3, "batch": 6, "steps": 4}
OPTIONS = {"alpha": 1.5, "beta": 0.8, "diversity": 0.7, "decay": 0.9, "lr": 0.02, "weight_decay": 0.05}
NAMES = ("W1", "b1", "scale", "shift", "W2", "b2")
TENSORS = [(5, 3 + CLASSES), (5,), (5,), (5,), (HIDDEN, 5), (HIDDEN,)]


def drawn(purpose: str, t: int, i: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(make_key(SEED, purpose, t, i))


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


class Draws:
    """fedray's, repeated: one stream per client and round, one of the server per round, which starts with G itself."""

    def __init__(self) -> None:
        self.first = drawn("server", 0)

    def start(self) -> Generator:
        parts = []
        for name, shape in zip(NAMES, TENSORS, strict=True):
            part = torch.full(shape, float(name == "scale"))
            bound = (3 + CLASSES if name in ("W1", "b1") else 5) ** -0.5
            parts.append(part if name in ("scale", "shift") else part.uniform_(-bound, bound, generator=self.first))
        p = Tensors({name: array(part) for name, part in zip(NAMES, parts, strict=True)})
        return Generator(p, np.zeros(5), np.ones(5), zeros(p), zeros(p))

    def client(self, t: int, i: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        stream = drawn("torch", t, i)
        for size in 2 * [min(4, SIZES[i] - start) for start in range(0, SIZES[i], 4)]:
            yield (
                torch.randint(CLASSES, (6,), generator=stream).numpy(),
                *(array(torch.rand(n, 3, generator=stream)) for n in (size, 6)),
            )

    def server(self, t: int, present: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        stream = self.first if t == 0 else drawn("server", t)
        for _ in range(4):
            y = present[torch.randint(len(present), (6,), generator=stream).numpy()]
            yield y, array(torch.rand(6, 3, generator=stream))


def fedgen_oracle(given: Case, **options: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """theta, the generator's parameters and its statistics."""
    draws = Draws()
    noise = Noise(draws.start, draws.client, draws.server)
    x, made = personal.fedgen(world(given, SEED), noise, CLASSES, **{**OPTIONS, **options})
    return flat(x), flat(made.p), np.concatenate([made.mean, made.var])


@pytest.mark.parametrize("setting", ["plain", "together"])
@pytest.mark.parametrize("epochs", [20, 1])
def test_fedgen(setting: str, epochs: int) -> None:
    """theta, generator and its statistics; every hyper-parameter 2 % off is outside the bound."""
    given = case("fedgen", setting, **GENERATOR, **OPTIONS, epochs=epochs)
    found = state(given)
    statistics = torch.cat([found.server["mean"], found.server["var"]])
    sides = [array(side) for side in (found.theta, found.server.generator, statistics)]
    assert Layout(NAMES, tuple(TENSORS)).size == len(sides[1])

    def distances(**changed: Any) -> list[float]:
        other = fedgen_oracle(given, **{"epochs": epochs, **changed})
        return [float(np.abs(a - b).max()) for a, b in zip(sides, other, strict=True)]

    assert max(distances()) < TOLERANCE
    if setting != "plain":
        return
    for name, value in OPTIONS.items():
        assert max(distances(**{name: 1.02 * value if name != "decay" else 0.98 * value})) > 3 * TOLERANCE, name
    assert max(distances(epochs=21 - epochs)) > 3 * TOLERANCE


ACTIVE = sorted({i for cohort in COHORTS for i in cohort})
PFEDME = {"lam": 4.0, "inner_steps": 3, "inner_lr": 0.08}
ALA = {"layers": 1, "share": 0.7, "weight_lr": 2.0, "start_epochs": 3}
AS = {"align_lr": 0.5, "align_batch": 3}
KEEPING: list[tuple[str, dict[str, Any]]] = [
    ("fedper", {}),
    ("fedper", {"adapts": "all"}),
    *[(method, {"newcomer": "average"}) for method in ("fedper", "lg-fedavg")],
    ("lg-fedavg", {}),
    ("fedbn", {}),
    ("ditto", {"lam": 0.7}),
    ("ditto", {"lam": 0.7, "personal_epochs": 3}),
    ("apfl", {"alpha": 0.3}),
    ("apfl", {"alpha": 0.3, "adaptive": True}),
    ("apfl", {"alpha": 0.3, "mix": "logits"}),
    ("apfl", {"alpha": 0.3, "adaptive": True, "mix": "logits"}),
    ("pfedme", PFEDME),
    ("pfedme", PFEDME | {"inner_decay": 0.5}),
    ("pfedme", PFEDME | {"tested": "local"}),
    ("fedala", ALA),
    ("fedala", ALA | {"layers": 2}),
    ("fedala", ALA | {"start_epochs": 40, "threshold": 0.03}),
    ("fedas", AS),
    ("fedas", AS | {"fisher": "samples"}),
    ("fedas", AS | {"aligns_with": "initial"}),
]
"""Each with options, which are the arguments of its oracle too."""
WITHOUT_ORDER = ("fedper", "lg-fedavg", "fedbn")


def kept_oracle(w: World, method: str, options: dict[str, Any]) -> partial.Kept:
    """The final model and what every client's vector is called."""

    def order(t: int, i: int, purpose: str, share: float) -> np.ndarray:
        drawn = generator(SEED, f"{purpose} batches", t, i).permutation(SIZES[i])[: max(1, round(share * SIZES[i]))]
        return drawn if w.order else np.sort(drawn)  # w.order is empty if the setting does not shuffle

    function = getattr(partial, method.replace("-", "_"))
    return function(w, **options) if method in WITHOUT_ORDER else function(w, order, **options)


def distances(method: str, options: dict[str, Any], setting: str, **changed: Any) -> dict[str, float]:
    """Largest difference of theta and of each kept vector; and how far the oracle moved."""
    given = Case(method, options, setting)
    found, w = state(given), world(given, SEED)
    x, vectors = kept_oracle(w, method, options | changed)
    result = {"theta": float(np.abs(found.theta.numpy() - flat(x)).max())}
    for vector, each in vectors.items():
        pairs = [(found.clients[i][vector].numpy().ravel(), flat(each[i])) for i in ACTIVE if each[i]]
        result[vector] = max((float(np.abs(a - b).max()) for a, b in pairs if a.size), default=0.0)
    assert np.abs(flat(x) - flat(w.x0)).max() > 0.05
    return result


@pytest.mark.parametrize(
    ("method", "options", "setting"),
    [
        *[(*each, setting) for each in KEEPING for setting in ("plain", "together")],
        ("ditto", {"lam": 0.7, "personal_epochs": 3}, "whole batches"),
    ],
)
def test_what_clients_keep_is_the_oracles(method: str, options: dict[str, Any], setting: str) -> None:
    assert max(distances(method, options, setting).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [(method, options, name) for method, options in KEEPING for name in options if type(options[name]) is float],
)
def test_the_comparison_of_what_clients_keep_can_fail(method: str, options: dict[str, Any], name: str) -> None:
    """2 % off, what counts samples or passes by more, is outside the bound."""
    factor = 1.4 if name in ("share", "threshold") else 1.02
    assert max(distances(method, options, "plain", **{name: factor * options[name]}).values()) > 3 * TOLERANCE


@pytest.mark.parametrize("client", [3, 4])
def test_what_a_client_of_apfl_answers(client: int) -> None:
    """a z_v + (1 - a) z_x, which is not what the model a v + (1 - a) x answers."""
    given = Case("apfl", {"alpha": 0.3, "adaptive": True, "mix": "logits"})
    found, w = compute_answers(given, client, 0), world(given, SEED)
    x, vectors = kept_oracle(w, given.method, given.options)
    v, a, X = vectors["v"][client], float(vectors["alpha"][client]["alpha"][0]), w.clients[0][0]
    expected = a * w.net.forward(v, X).z + (1 - a) * w.net.forward(x, X).z
    assert np.abs(found - expected).max() < TOLERANCE
    assert np.abs(expected - w.net.forward(a * v + (1 - a) * x, X).z).max() > 3 * TOLERANCE
