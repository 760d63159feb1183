"""Bytes sent to and by clients, against what the methods are defined to send; evaluation's seconds."""

from pathlib import Path
from typing import Any

import pytest

from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small

P, HEAD = 64 * 8 + 8 + 8 * 10 + 10, 8 * 10 + 10
NORM, RUNNING = 2 * 8, 2 * 8


def problem(algorithm: Any, rounds: int = 3, model: dict[str, Any] | None = None, **more: Any) -> Problem:
    """Two of four clients in each round, an MLP of P parameters."""
    training = {"rounds": rounds, "local_steps": 1, "batch_size": 16}
    whole = {"name": "mlp", "hidden": [8], **(model or {})}
    return small.problem(algorithm, **{"clients": (4, 2), "model": whole, "training": training, **more})


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        ("fedavg", P, P),
        ("scaffold", 2 * P, 2 * P),  # c; the change of c_i
        ("fedtoga", 2 * P, P),  # Delta
        ("fedsmoo", 2 * P, 2 * P),  # s; mu_i
        ("fednova", P, P + 1),  # tau, a number
        ("fedrep", P - HEAD, P - HEAD),  # the body
        ("local-only", 0, 0),
    ],
)
def test_bytes_are_those_of_what_the_method_sends(algorithm: str, down: int, up: int) -> None:
    """Float32, two clients, three rounds."""
    result = run(problem(algorithm), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * down, 2 * 3 * 4 * up)
    summary = result.summary()
    assert summary["megabytes_down"] + summary["megabytes_up"] == pytest.approx(result.history[-1]["megabytes_sent"])
    assert summary["seconds_per_round_with_evaluation"] > summary["seconds_per_round"]


def test_the_head_of_newcomers_is_sent_alone() -> None:
    """Up body and head; down the body, and from the second round on the last cohort's average of the head."""
    result = run(problem({"name": "fedrep", "newcomer": "average"}), InlineBackend())
    assert result.state.sent == (2 * 4 * (P - HEAD + 2 * P), 2 * 3 * 4 * P)


def test_running_statistics_are_sent_both_ways() -> None:
    result = run(problem("fedavg", model={"feature_norm": "batch"}), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * (P + NORM + RUNNING),) * 2


@pytest.mark.parametrize(
    ("algorithm", "sent"),
    [("fedbn", P), ("fedper", P - HEAD + NORM + RUNNING), ("lg-fedavg", HEAD), ("local-only", 0)],
)
def test_running_statistics_that_clients_keep_are_not_sent(algorithm: str, sent: int) -> None:
    """They belong where the parameters of their layer do, here to the body."""
    result = run(problem(algorithm, model={"feature_norm": "batch"}), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * sent,) * 2


def test_only_what_took_part_counts() -> None:
    """Cohorts of 1, 3 and 2 clients: six transfers each way; a row holds what was sent up to its round."""
    cohorts = {"total": 4, "per_round": 2, "cohorts": [[0], [1, 2, 3], [0, 3]]}
    result = run(problem("fedavg", clients=cohorts, evaluation={"every": 1}), InlineBackend())
    assert [row["megabytes_sent"] for row in result.history] == pytest.approx([n * 8 * P / 1e6 for n in (1, 4, 6)])


def test_bytes_and_seconds_outlive_a_checkpoint(tmp_path: Path) -> None:
    simulation = Simulation(problem("fedavg", evaluation={"every": 1}), InlineBackend())
    simulation.step()
    state = simulation.state
    assert state.evaluation_seconds > 0
    Checkpoints(tmp_path).save(state)
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert (loaded.sent, loaded.evaluation_seconds) == (state.sent, state.evaluation_seconds)
    resumed = run(simulation.problem, InlineBackend(), loaded)
    assert {"megabytes_up", "seconds_per_round_with_evaluation"} <= resumed.summary().keys()
