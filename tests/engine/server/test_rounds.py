"""What a round draws and leaves: the key of every random draw (a key that changes, or that two draws share, changes
published numbers), bytes sent to and by clients as methods define them, the times of its parts, its loss and rate."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.common import rng
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.sampling import draw_cohort
from fedray.engine.server.profile import PARTS, Profile
from tests import small
from tests.algorithms import quadratic
from tests.conftest import Call, each

Key = tuple[int, str, int, int]


def config(**changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "data": {"name": "digits", "augment": ["flip"], "validation": {"fraction": 0.2}},
        "clients": {"total": 3, "cohorts": [[0, 2], [1, 2]]},
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


def test_a_key_is_the_beginning_of_a_hash_and_cohorts_are_keyed_by_round_and_attempt(drawn: list[Key]) -> None:
    digest = hashlib.sha256(b"7/shuffle/3/5").digest()
    assert rng.make_key(7, "shuffle", 3, 5) == int.from_bytes(digest[:8], "little") // 2
    # Only client 0 has samples: drawn pairs without it are redrawn.
    chosen = config(clients={"total": 6, "per_round": 2})
    for t in (0, 5):
        assert draw_cohort(chosen, np.array([9, 0, 0, 0, 0, 0]), t).tolist() == [0]
        attempts = [key for key in drawn if key[2] == t]
        assert attempts == [(7, "cohort", t, attempt) for attempt in range(len(attempts))]
    assert len(drawn) > 2


def test_the_keys_of_a_run_and_of_a_model_that_counts_as_trained(drawn: list[Key]) -> None:
    """Clients 0, 2 in round 0 and 1, 2 in round 1; after it all three are fine-tuned, with draws of their own."""
    run(Problem.build(config()), InlineBackend())
    cohorts = [(0, i) for i in (0, 2)] + [(1, i) for i in (1, 2)]
    split = {(7, purpose, 0, 0) for purpose in ("partition", "partition test", "test split", "split")}
    split |= {(0, "data", 0, 0), *((7, "validation", 0, i) for i in range(3))}
    start = {(7, purpose, 0, 0) for purpose in ("init", "adapters", "check", "initial", "server state")}
    server = {(7, purpose, t, 0) for purpose in ("weights", "message", "server") for t in (0, 1)}
    local = {(7, purpose, t, i) for purpose in ("shuffle", "augment", "torch") for t, i in cohorts}
    tuned = {(7, f"personal {purpose}", 1, i) for purpose in ("shuffle", "augment", "torch") for i in range(3)}
    assert set(drawn) == split | start | server | local | tuned
    drawn.clear()
    # FedGELA's: the local training of another round.
    run(Problem.build(config(algorithm="fedgela", model={"name": "mlp", "hidden": [10]})), InlineBackend())
    assert {key for key in drawn if key[1] == "personal shuffle"} == {(7, "personal shuffle", 1, i) for i in range(3)}
    assert {key for key in drawn if key[1] == "shuffle"} == {(7, "shuffle", t, i) for t in (0, 1) for i in (t, 2)}


@each(
    ({"per_round": 4}, [[1, 16, 17, 19], [1, 9, 13, 15], [7, 10, 11, 19]]),
    ({"per_round": 0.2, "sampling": "bernoulli"}, [[0, 1, 2, 7, 11, 13, 14], [13, 15], [1, 10, 16, 17]]),
)
def test_recorded_cohorts(clients: dict[str, Any], expected: list[list[int]]) -> None:
    """20 clients in rounds 0 to 2, seed 7: a change of NumPy or of this code that alters draws does not go unseen."""
    chosen = config(clients={"total": 20, **clients})
    assert [draw_cohort(chosen, np.ones(20, dtype=np.int64), t).tolist() for t in range(3)] == expected


P, HEAD, NORM, RUNNING = 64 * 8 + 8 + 8 * 10 + 10, 8 * 10 + 10, 2 * 8, 2 * 8


def problem(algorithm: Any, rounds: int = 3, model: dict[str, Any] | None = None, **more: Any) -> Problem:
    """Two of four clients in each round, an MLP of P parameters."""
    training = {"rounds": rounds, "local_steps": 1, "batch_size": 16}
    whole = {"name": "mlp", "hidden": [8], **(model or {})}
    return small.problem(algorithm, **{"clients": (4, 2), "model": whole, "training": training, **more})


BATCH = {"feature_norm": "batch"}


@each(
    ("fedavg", {}, P, P),
    ("scaffold", {}, 2 * P, 2 * P),  # c; the change of c_i
    ("fedtoga", {}, 2 * P, P),  # Delta
    ("fedsmoo", {}, 2 * P, 2 * P),  # s; mu_i
    ("fednova", {}, P, P + 1),  # tau, a number
    ("fedrep", {}, P - HEAD, P - HEAD),  # the body
    ("local-only", {}, 0, 0),
    # Running statistics, unless clients keep the parameters of their layer, here the body's
    ("fedavg", BATCH, P + NORM + RUNNING, P + NORM + RUNNING),
    ("fedbn", BATCH, P, P),
    ("lg-fedavg", BATCH, HEAD, HEAD),
)
def test_bytes_are_those_of_what_the_method_sends(algorithm: str, model: dict[str, Any], down: int, up: int) -> None:
    """Float32, two clients, three rounds."""
    result = run(problem(algorithm, model=model), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * down, 2 * 3 * 4 * up)
    summary = result.summary()
    sent = (summary["megabytes_down"], summary["megabytes_up"], result.history[-1]["megabytes_sent"])
    assert sent == (24 * down / 1e6, 24 * up / 1e6, 24 * (down + up) / 1e6)
    assert summary["seconds_per_round_with_evaluation"] > summary["seconds_per_round"]


def test_only_what_took_part_counts() -> None:
    """Cohorts of 1, 3 and 2 clients: six transfers each way; a row holds what was sent up to its round."""
    cohorts = {"total": 4, "per_round": 2, "cohorts": [[0], [1, 2, 3], [0, 3]]}
    result = run(problem("fedavg", clients=cohorts, evaluation={"every": 1}), InlineBackend())
    assert [row["megabytes_sent"] for row in result.history] == pytest.approx([n * 8 * P / 1e6 for n in (1, 4, 6)])


RUN = small.sections(
    clients=(4, 2), training={"rounds": 3, "local_epochs": 1, "batch_size": 50}, evaluation={"every": 2, "last": 1},
    runtime={"backend": "inline", "checkpoint_every": 2},
)  # fmt: skip


def test_the_parts_are_the_whole(tmp_path: Path) -> None:
    """One part per lap and nothing twice: together at most the run's own time, each where it belongs."""
    profile, began = Profile(), time.perf_counter()
    found = fedray.simulate(RUN, checkpoints=tmp_path, evaluated=lambda row: time.sleep(0.05), profile=profile)
    whole = time.perf_counter() - began
    assert found.summary()["state_sha256"] == fedray.simulate(RUN).summary()["state_sha256"]
    assert [set(row) for row in profile.rounds] == [set(PARTS)] * 3
    assert sum(sum(row.values()) for row in profile.rounds) <= whole
    assert [row["report"] >= 0.05 for row in profile.rounds] == [False, True, True]  # evaluated: 2, and the last one
    assert all(row["local"] > 0 and row["reduce"] > 0 for row in profile.rounds)


def test_it_is_printed_and_logged(project: Path, call: Call) -> None:
    from mlflow import MlflowClient

    Path("run.json").write_text(json.dumps(RUN))  # JSON is YAML
    out = call("run", "run.json", "--profile").done
    assert all(f"\n{part}" in out for part in PARTS)
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiments = [e.experiment_id for e in client.search_experiments() if e.name == "fedray"]
    (run,) = client.search_runs(experiments, "tags.`fedray.kind` = 'cell'")
    assert {f"summary/profile_{part}_seconds" for part in PARTS} <= run.data.metrics.keys()
    assert "profile.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}


@each(("uniform", 1, 47.28125), ("samples", 1, 46.875), ("uniform", 2, 40 + (4.8125 + 5.025390625) / 2))
def test_training_loss_on_quadratics(aggregation: str, epochs: int, loss: float) -> None:
    """A sample's loss is 40 + f. Client 0: f0(0) = 8.5. Client 1: f1(0) = 8.5, then f1'(2, -1.5) = 3.625: their mean
    6.0625. Of both ½ (8.5 + 6.0625), or ⅓ 8.5 + ⅔ 6.0625.

    Another epoch. Client 0 is at (-1.5, 2): 1.125, in the mean 4.8125. Client 1 at (2.5, -0.25): ½ (2 · ¼ + 2.75²) =
    4.03125, then, by g1 = (1, 2.75), at (2, -1.625): ½ (1 + 2.625²) = 3.9453125, in the mean of four 5.025390625."""
    case = quadratic.Case({"name": "fedavg"}, {}, training={"aggregation": aggregation, "local_epochs": epochs})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["train_loss"] == pytest.approx(loss)
