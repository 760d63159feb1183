"""Ray Tune and MLflow without fedray: `python -m benchmarks.sweeping.alone CELLS SECONDS` (see per_cell, start).

Trials import torch, as any trial of this field does. The first step writes its time to $FEDRAY_BENCH_NOTE, if set.
"""

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from ray import tune

ROUNDS = 10
METRICS = ("test_accuracy", "test_loss", "train_loss", "lr", "clients")


class Spins(tune.Trainable):
    """Keeps its core busy for the given time, then reports all rounds."""

    def setup(self, config: dict[str, Any]) -> None:
        """Set up, called by Tune."""
        import torch  # noqa: F401

        self.seconds = config["seconds"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Keep the process for the next trial."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Do all of the work."""
        if note := os.environ.get("FEDRAY_BENCH_NOTE"):
            with open(note, "a", encoding="utf-8") as file:
                file.write(f"{time.time()}\n")
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        rows = [{name: float(t) for name in METRICS} for t in range(1, ROUNDS + 1)]
        return {"rows": rows, "done": True}


class Logs(tune.Callback):
    """Logs a run per trial, in a thread."""

    def __init__(self) -> None:
        self.client = MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
        self.experiment = self.client.create_experiment("alone")
        self.writer = ThreadPoolExecutor(1)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Receive one result of a trial."""
        self.writer.submit(self.write, dict(trial.config), result["rows"])

    def write(self, config: dict[str, Any], rows: list[dict[str, float]]) -> None:
        """Write a run from its start to its end."""
        run = self.client.create_run(self.experiment).info.run_id
        self.client.log_batch(run, params=[Param(key, str(value)) for key, value in config.items()])
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, t) for t, row in enumerate(rows, 1) for name, value in row.items()]
        self.client.log_batch(run, metrics=metrics)
        self.client.set_terminated(run)


def main(cells: int, seconds: float) -> None:
    """Run as many trials at a time as fit."""
    os.environ |= {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    }
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logs = Logs()
    with tempfile.TemporaryDirectory() as folder:
        found = tune.Tuner(
            tune.with_resources(Spins, {"cpu": 1}),
            param_space={"seconds": seconds, "cell": tune.grid_search(list(range(cells)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=folder,
                verbose=0,
                callbacks=[logs],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
        assert not found.errors
    logs.writer.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
