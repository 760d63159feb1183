"""The key of every random draw of a run: a key that changes, or that two draws share, changes published numbers."""

import hashlib
from typing import Any

import numpy as np
import pytest

from fedray.common import rng
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.sampling import draw_cohort
from tests import small

Key = tuple[int, str, int, int]


def config(**changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "data": {"name": "digits", "augment": ["flip"], "validation": {"fraction": 0.2}},
        "clients": {"total": 3, "per_round": 2, "cohorts": [[0, 2], [1, 2]]},
        "training": {"rounds": 2, "local_epochs": 1},
        "evaluation": {"every": 2, "last": 1, "personal": {"epochs": 1}},
    }
    return small.config(**{"model": 4, "seed": 7, **base, **changes})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """The keys that have been used, in order."""
    used: list[Key] = []

    def key(seed: int, purpose: str, round: int = 0, client: int = 0, compute: Any = rng.make_key) -> int:
        used.append((seed, purpose, round, client))
        return int(compute(seed, purpose, round, client))

    monkeypatch.setattr(rng, "make_key", key)
    return used


def test_a_key_is_the_beginning_of_a_hash() -> None:
    digest = hashlib.sha256(b"7/shuffle/3/5").digest()
    assert rng.make_key(7, "shuffle", 3, 5) == int.from_bytes(digest[:8], "little") // 2


def test_the_keys_of_a_run(drawn: list[Key]) -> None:
    """Clients 0, 2 in round 0 and 1, 2 in round 1; after it all three are fine-tuned, with draws of their own."""
    run(Problem.build(config()), InlineBackend())
    cohorts = [(0, i) for i in (0, 2)] + [(1, i) for i in (1, 2)]
    split = {(7, "partition", 0, 0), (7, "partition test", 0, 0), *((7, "validation", 0, i) for i in range(3))}
    start = {(7, purpose, 0, 0) for purpose in ("init", "adapters", "check", "initial", "server state")}
    server = {(7, purpose, t, 0) for purpose in ("weights", "message", "server") for t in (0, 1)}
    local = {(7, purpose, t, i) for purpose in ("shuffle", "augment", "torch") for t, i in cohorts}
    tuned = {(7, f"personal {purpose}", 1, i) for purpose in ("shuffle", "augment", "torch") for i in range(3)}
    assert set(drawn) == split | start | server | local | tuned


def test_a_model_that_counts_as_trained_is_trained_with_draws_of_its_own(drawn: list[Key]) -> None:
    """FedGELA's: the local training of another round."""
    run(Problem.build(config(algorithm="fedgela", model={"name": "mlp", "hidden": [10]})), InlineBackend())
    assert {key for key in drawn if key[1] == "personal shuffle"} == {(7, "personal shuffle", 1, i) for i in range(3)}
    assert {key for key in drawn if key[1] == "shuffle"} == {(7, "shuffle", t, i) for t in (0, 1) for i in (t, 2)}


def test_cohorts_are_keyed_by_round_and_attempt(drawn: list[Key]) -> None:
    """Only client 0 has samples: drawn pairs without it are redrawn."""
    chosen = config(clients={"total": 6, "per_round": 2})
    for t in (0, 5):
        assert draw_cohort(chosen, np.array([9, 0, 0, 0, 0, 0]), t).tolist() == [0]
        attempts = [key for key in drawn if key[2] == t]
        assert attempts == [(7, "cohort", t, attempt) for attempt in range(len(attempts))]
    assert len(drawn) > 2


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ({"per_round": 4}, [[1, 16, 17, 19], [1, 9, 13, 15], [7, 10, 11, 19]]),
        ({"per_round": 0.2, "sampling": "bernoulli"}, [[0, 1, 2, 7, 11, 13, 14], [13, 15], [1, 10, 16, 17]]),
    ],
)
def test_recorded_cohorts(clients: dict[str, Any], expected: list[list[int]]) -> None:
    """20 clients in rounds 0 to 2, seed 7: a change of NumPy or of this code that alters draws does not go unseen."""
    chosen = config(clients={"total": 20, **clients})
    assert [draw_cohort(chosen, np.ones(20, dtype=np.int64), t).tolist() for t in range(3)] == expected
