"""`fedray run --profile`: every second of a round belongs to one part, in the output and in MLflow."""

import json
import subprocess
import sys
import time
from pathlib import Path

import fedray
from fedray.engine.server.profile import PARTS, Profile
from tests import small

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


def test_it_is_printed_and_logged(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    file = tmp_path / "run.json"  # JSON is YAML
    file.write_text(json.dumps(RUN))
    done = subprocess.run(
        [sys.executable, "-m", "fedray.cli", "run", str(file), "--profile"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"\n{part}" in done.stdout for part in PARTS)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiments = [e.experiment_id for e in client.search_experiments() if e.name == "fedray"]
    (run,) = client.search_runs(experiments, "tags.`fedray.kind` = 'cell'")
    assert {f"summary/profile_{part}_seconds" for part in PARTS} <= run.data.metrics.keys()
    assert "profile.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
