"""Schedulers on a real Ray that end cells by held-out accuracy; one cell at a time, so the order is known.

Three good cells, each of whose validation accuracies is far above chance, then two that learn nothing.
"""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.conftest import Call
from tests.sweep.running import SWEEP, runs, write

ROUNDS = 8
FILE: dict[str, Any] = {
    "name": "halved",
    "base": SWEEP["base"]
    | {
        "data": {"name": "digits", "validation": {"fraction": 0.2}},
        "algorithm": "fedavg",
        "training": {"rounds": ROUNDS, "local_epochs": 2, "batch_size": 20},
    },
    "grid": {"training.lr": [0.5, 0.3, 0.2, 1.0e-6, 2.0e-6]},
}


@pytest.mark.parametrize(
    ("scheduler", "last"),
    [
        # Rungs at 2 and 2 x 2; the first cell has no rival, and the worse half of two ends.
        ({"name": "asha", "grace": 2, "factor": 2}, 2),
        # From round 3 on, since three others have been there.
        pytest.param({"name": "median", "grace": 3}, 3, marks=pytest.mark.faults),
    ],
)
def test_what_learns_nothing_is_ended_after_its_grace(
    scheduler: dict[str, Any], last: int, local_ray: None, project: Path, call: Call
) -> None:
    file = write(project, FILE | {"scheduler": scheduler})
    code, out, err = call("sweep", str(file), "--max-concurrent", "1")
    assert code == 0, err
    client = MlflowClient(tracking_uri=f"sqlite:///{project / 'mlflow.db'}")
    ended = {}
    for run in runs(project):
        rounds = [metric.step for metric in client.get_metric_history(run.info.run_id, "validation_accuracy")]
        ended[float(run.data.params["training.lr"])] = run.data.tags["fedray.status"], max(rounds)
    assert ended[0.5] == ("finished", ROUNDS)
    assert ended[1e-6] == ended[2e-6] == ("pruned", last)
    pruned = sum(status == "pruned" for status, _ in ended.values())
    assert f"{pruned} pruned" in out
    assert "0 to run" in call("sweep", "sweep.yaml", "--dry-run").out, "what it has ended is done"
