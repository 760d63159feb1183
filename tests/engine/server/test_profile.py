"""What a round leaves: the times of its parts, in the output and in MLflow, and its loss and learning rate."""

import json
import time
from pathlib import Path

import pytest

import fedray
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.profile import PARTS, Profile
from tests import small
from tests.algorithms import quadratic
from tests.conftest import Call

RUN = small.sections(
    clients=(4, 2),
    training={"rounds": 3, "local_epochs": 1, "batch_size": 50},
    evaluation={"every": 2, "last": 1},
    runtime={"backend": "inline", "checkpoint_every": 2},
)


def test_the_parts_are_the_whole(tmp_path: Path) -> None:
    """One part per lap and nothing twice: together at most the run's own time, each where it belongs."""
    profile, began = Profile(), time.perf_counter()
    fedray.simulate(RUN, checkpoints=tmp_path, evaluated=lambda row: time.sleep(0.05), profile=profile)
    whole = time.perf_counter() - began
    assert [set(row) for row in profile.rounds] == [set(PARTS)] * 3
    assert sum(sum(row.values()) for row in profile.rounds) <= whole
    assert [row["report"] >= 0.05 for row in profile.rounds] == [False, True, True]  # evaluated: 2, and the last one
    assert all(row["local"] > 0 and row["reduce"] > 0 for row in profile.rounds)


def test_a_profiled_run_is_the_same_run() -> None:
    plain, profiled = fedray.simulate(RUN), fedray.simulate(RUN, profile=Profile())
    assert plain.summary()["state_sha256"] == profiled.summary()["state_sha256"]


def test_it_is_printed_and_logged(project: Path, call: Call) -> None:
    from mlflow import MlflowClient

    Path("run.json").write_text(json.dumps(RUN))  # JSON is YAML
    code, out, err = call("run", "run.json", "--profile")
    assert code == 0, err
    assert all(f"\n{part}" in out for part in PARTS)
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiments = [e.experiment_id for e in client.search_experiments() if e.name == "fedray"]
    (run,) = client.search_runs(experiments, "tags.`fedray.kind` = 'cell'")
    assert {f"summary/profile_{part}_seconds" for part in PARTS} <= run.data.metrics.keys()
    assert "profile.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}


@pytest.mark.parametrize(
    ("aggregation", "epochs", "loss"),
    [("uniform", 1, 47.28125), ("samples", 1, 46.875), ("uniform", 2, 40 + (4.8125 + 5.025390625) / 2)],
)
def test_training_loss_on_quadratics(aggregation: str, epochs: int, loss: float) -> None:
    """A sample's loss is 40 + f. Client 0: f0(0) = 8.5. Client 1: f1(0) = 8.5, then f1'(2, -1.5) = 3.625: their mean
    6.0625. Of both ½ (8.5 + 6.0625), or ⅓ 8.5 + ⅔ 6.0625.

    Another epoch. Client 0 is at (-1.5, 2): 1.125, in the mean 4.8125. Client 1 at (2.5, -0.25): ½ (2 · ¼ + 2.75²) =
    4.03125, then, by g1 = (1, 2.75), at (2, -1.625): ½ (1 + 2.625²) = 3.9453125, in the mean of four 5.025390625.
    """
    case = quadratic.Case({"name": "fedavg"}, [{}], training={"aggregation": aggregation, "local_epochs": epochs})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["train_loss"] == pytest.approx(loss)


def test_the_learning_rate_is_that_of_the_round() -> None:
    """½ · 0.4² in the third."""
    case = quadratic.Case({"name": "fedavg"}, [{}] * 3, training={"lr_decay": 0.4})
    assert run(quadratic.problem(case), InlineBackend()).history[-1]["lr"] == pytest.approx(0.08)
