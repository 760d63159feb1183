"""Methods whose clients keep something against their oracle: theta and every vector that a client keeps.

Five rounds, half of the clients in each.
"""

from typing import Any

import numpy as np
import pytest

from fedray.common.rng import generator
from fedray.common.vectors import Vectors
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker

from . import partial
from .case import Case
from .test_oracle import COHORTS, SIZES, TOLERANCE, flat, problem, world
from .world import World

SEED = 0
ACTIVE = sorted({i for cohort in COHORTS for i in cohort})


PFEDME = {"lam": 4.0, "inner_steps": 3, "inner_lr": 0.08}
ALA = {"layers": 1, "share": 0.7, "weight_lr": 2.0, "start_epochs": 3}
AS = {"align_lr": 0.5, "align_batch": 3}
METHODS: list[tuple[str, dict[str, Any]]] = [
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


def oracle(w: World, method: str, options: dict[str, Any]) -> partial.Kept:
    """The final model and what every client's vector is called."""

    def order(t: int, i: int, purpose: str, share: float) -> np.ndarray:
        drawn = generator(SEED, f"{purpose} batches", t, i).permutation(SIZES[i])[: max(1, round(share * SIZES[i]))]
        return drawn if w.order else np.sort(drawn)  # w.order is empty if the setting does not shuffle

    function = getattr(partial, method.replace("-", "_"))
    return function(w, **options) if method in WITHOUT_ORDER else function(w, order, **options)


def distances(method: str, options: dict[str, Any], setting: str, **changed: Any) -> dict[str, float]:
    """Largest difference of theta and of each kept vector; and how far the oracle moved."""
    given = Case(method, options, setting)
    found, w = run(problem(given, SEED), InlineBackend()).state, world(given, SEED)
    x, vectors = oracle(w, method, options | changed)
    result = {"theta": float(np.abs(found.theta.numpy() - flat(x)).max())}
    for vector, each in vectors.items():
        pairs = [(found.clients[i][vector].numpy().ravel(), flat(each[i])) for i in ACTIVE if each[i]]
        result[vector] = max((float(np.abs(a - b).max()) for a, b in pairs if a.size), default=0.0)
    assert np.abs(flat(x) - flat(w.x0)).max() > 0.05
    return result


@pytest.mark.parametrize("setting", ["plain", "together"])
@pytest.mark.parametrize(("method", "options"), METHODS)
def test_what_clients_keep_is_the_oracles(method: str, options: dict[str, Any], setting: str) -> None:
    assert max(distances(method, options, setting).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [(method, options, name) for method, options in METHODS for name in options if type(options[name]) is float],
)
def test_the_comparison_can_fail(method: str, options: dict[str, Any], name: str) -> None:
    """2 % off, what counts samples or passes by more, is outside the bound."""
    factor = 1.4 if name in ("share", "threshold") else 1.02
    assert max(distances(method, options, "plain", **{name: factor * options[name]}).values()) > 3 * TOLERANCE


def compute_answers(given: Case, client: int) -> np.ndarray:
    """The logits of a client's personal model, after the run, on the first client's samples."""
    built = problem(given, SEED)
    state, worker = run(built, InlineBackend()).state, Worker(built)
    c = worker.trainer.personalise(
        Broadcast(round=5, lr=0.1, theta=state.theta, buffers=worker.network.buffers, message=Vectors(), cohort=1),
        ClientTask(client, 1.0, state.clients[client]),
        0,
    )
    c.start_step(0, *worker.train_samples.make_batch(built.shards[0]))
    answers: np.ndarray = built.config.algorithm.personal_logits(c).detach().numpy()
    return answers


@pytest.mark.parametrize("client", [3, 4])
def test_what_a_client_of_apfl_answers(client: int) -> None:
    """a z_v + (1 - a) z_x, which is not what the model a v + (1 - a) x answers."""
    given = Case("apfl", {"alpha": 0.3, "adaptive": True, "mix": "logits"})
    found, w = compute_answers(given, client), world(given, SEED)
    x, vectors = oracle(w, given.method, given.options)
    v, a, X = vectors["v"][client], float(vectors["alpha"][client]["alpha"][0]), w.clients[0][0]
    expected = a * w.net.forward(v, X).z + (1 - a) * w.net.forward(x, X).z
    assert np.abs(found - expected).max() < TOLERANCE
    assert np.abs(expected - w.net.forward(a * v + (1 - a) * x, X).z).max() > 3 * TOLERANCE
