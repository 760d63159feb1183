"""The only writer to MLflow: one parent run per sweep, one child per cell, always with a final status.

A cell's runs are found again by the tag `fedray.cell` (its hash), in whatever sweep they were made. `fedray.status` is
the truth about a run: running, finished, diverged, stopped (early, by a scheduler), failed or interrupted; MLflow's own
status is FINISHED for finished and stopped, FAILED for the others.
"""

import hashlib
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_PARENT_RUN_ID

from fedray.config import RunConfig
from fedray.data.show import heatmap
from fedray.errors import UserError
from fedray.problem import Problem

EXPERIMENT = "fedray"
IS_CELL = "tags.`fedray.kind` = 'cell'"
RANK = ("finished", "diverged", "stopped", "failed", "interrupted", "running")
"""Where a cell has several runs, the one whose status comes first counts."""
LAST = 10
"""How many evaluated rounds `last10_*` averages."""


class NoStore(UserError):
    """There is no store, or no experiment in it, yet."""


def store_uri() -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file in the working directory (absolute: Tune changes directories)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_store(create: bool = False) -> tuple[MlflowClient, str]:
    """The client and the id of the experiment.

    Raises UserError where the store cannot be used, NoStore where there is none and `create` does not ask for one.
    """
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uri = store_uri()
    local = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    if local is not None and not create and not Path(local).exists():
        raise NoStore(f"MLFLOW_TRACKING_URI: there is no store at {local}; run a sweep first, or name its store")
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(name)
        if found is not None:
            return client, found.experiment_id
        if not create:
            raise NoStore(f"MLflow has no experiment named {name!r} in this store; run a sweep first")
        root = (Path(local).resolve().parent / "mlartifacts").as_uri() if local is not None else None
        return client, client.create_experiment(name, artifact_location=root)
    except MlflowException as error:
        raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class Outcome:
    """What MLflow knows of a cell: `fedray.status`, and what stopped it where it was stopped early."""

    status: str
    stopper: str


def search(client: MlflowClient, experiment: str, filter: str) -> Iterator[Run]:
    """All runs that match MLflow's filter string, newest first."""
    token = None
    while True:
        page = client.search_runs([experiment], filter, max_results=1000, page_token=token,
                                  order_by=["attributes.start_time DESC"])
        yield from page
        token = page.token
        if not token:
            return


def best_runs(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """Cell hash -> the run that counts, across sweeps: the status first in RANK, the newest of those."""
    best: dict[str, Run] = {}
    for run in search(client, experiment, f"{IS_CELL} AND tags.`fedray.status` != 'superseded'"):
        cell = run.data.tags["fedray.cell"]
        if cell not in best or RANK.index(status(run)) < RANK.index(status(best[cell])):
            best[cell] = run
    return best


def status(run: Run) -> str:
    """A cell's `fedray.status`."""
    found = run.data.tags.get("fedray.status", "running")
    return found if found in RANK else "running"


def outcomes() -> dict[str, Outcome]:
    """Cell hash -> outcome; empty where there is no store yet. Nothing is created."""
    try:
        client, experiment = open_store()
    except NoStore:
        return {}
    return {cell: Outcome(status(run), run.data.tags.get("fedray.stopper", ""))
            for cell, run in best_runs(client, experiment).items()}


class Tracker:
    """Writes one sweep, or one run, from the driver."""

    def __init__(self) -> None:
        self.client, self.experiment = open_store(create=True)

    def supersede(self, cells: Sequence[str]) -> None:
        """Mark the earlier runs of these cells, so that each cell keeps one that counts."""
        wanted = set(cells)
        for run in search(self.client, self.experiment, IS_CELL):
            if run.data.tags["fedray.cell"] in wanted:
                self.client.set_tag(run.info.run_id, "fedray.status", "superseded")
                if run.info.status == "RUNNING":  # its driver was killed
                    self.client.set_terminated(run.info.run_id, "FAILED")

    def open_sweep(self, name: str, description: str, cells: Sequence[Mapping[str, Any]]) -> str:
        """The sweep's parent run, made or found again; `cells` (hash, label, configuration) become its artefact."""
        tags = {"fedray.kind": "sweep", "fedray.sweep": name, "mlflow.note.content": description}
        run = next(search(self.client, self.experiment,
                          f"tags.`fedray.kind` = 'sweep' AND tags.`fedray.sweep` = '{name}'"), None)
        if run is None:
            run = self.client.create_run(self.experiment, run_name=name, tags=tags | git_tags())
        run_id: str = run.info.run_id
        self.client.update_run(run_id, status="RUNNING")
        self.client.log_dict(run_id, {"cells": list(cells)}, "cells.json")
        return run_id

    def close_sweep(self, run_id: str, counts: Mapping[str, int]) -> None:
        """Final status of the parent: FINISHED when every cell has an outcome, else FAILED."""
        self.client.log_batch(run_id, [Metric(f"cells_{k}", counts.get(k, 0), _now(), 0) for k in (*RANK, "missing")])
        whole = not any(counts.get(status) for status in ("failed", "interrupted", "missing"))
        self.client.set_terminated(run_id, "FINISHED" if whole else "FAILED")

    def open_cell(self, cell: str, label: str, config: Mapping[str, Any], tags: Mapping[str, str],
                  heatmap: Figure | None, parent: str | None, again: bool = True) -> tuple[str, int]:
        """The cell's run, made or (with `again`) found by its hash, and the last round logged there (0: none)."""
        counting = f"tags.`fedray.cell` = '{cell}' AND tags.`fedray.status` != 'superseded'"
        run = next(search(self.client, self.experiment, counting), None) if again else None
        all_tags = {"fedray.kind": "cell", "fedray.cell": cell, "fedray.status": "running", **tags, **git_tags()}
        all_tags |= {f"runtime.{key}": str(value) for key, value in config["runtime"].items()}
        if parent is not None:
            all_tags[MLFLOW_PARENT_RUN_ID] = parent
        if run is not None:
            run_id: str = run.info.run_id
            self.client.update_run(run_id, status="RUNNING")
            self.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in all_tags.items()])
            logged = self.client.get_metric_history(run_id, "test_accuracy")
            return run_id, max((metric.step for metric in logged), default=0)
        run_id = self.client.create_run(self.experiment, run_name=label, tags=all_tags).info.run_id
        settings = {key: value for key, value in config.items() if key != "runtime"}
        self.client.log_batch(run_id, params=[Param(k, v) for k, v in flat(settings).items()])
        self.client.log_dict(run_id, dict(config), "config.yaml")
        if heatmap is not None:
            self.client.log_figure(run_id, heatmap, "partition.png")
        return run_id, 0

    def log_rows(self, run_id: str, rows: Sequence[Mapping[str, float]], after: int = 0) -> None:
        """Evaluated rounds as metrics with step = round; rounds up to `after` are there already."""
        now = _now()
        metrics = [Metric(name, value, now, int(row["round"])) for row in rows if row["round"] > after
                   for name, value in row.items() if name != "round"]
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics[start:start + 1000])

    def close_cell(self, run_id: str, status: str, history: Sequence[Mapping[str, float]],
                   summary: Mapping[str, Any], message: str = "") -> None:
        """Final metrics, `fedray.status` and MLflow's status of a cell."""
        metrics = final_metrics(history) if status in ("finished", "stopped") else {}
        if "seconds_per_round" in summary:
            metrics["seconds_per_round"] = summary["seconds_per_round"]
        if "diverged_round" in summary:
            metrics["diverged_round"] = summary["diverged_round"]
        tags = {"fedray.status": status, "fedray.message": message[:5000]}
        tags |= {f"fedray.{key}": summary[key] for key in ("theta_sha256", "state_sha256", "stopper") if key in summary}
        now = _now()
        self.client.log_batch(run_id, [Metric(k, v, now, 0) for k, v in metrics.items()],
                              tags=[RunTag(k, v) for k, v in tags.items()])
        if "traceback" in summary:
            self.client.log_text(run_id, summary["traceback"], "traceback.txt")
        self.client.set_terminated(run_id, "FINISHED" if status in ("finished", "stopped") else "FAILED")


def final_metrics(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """`final_*` (last evaluated round), `last10_*` (mean of the last 10 evaluated rounds), and `best_*` of accuracies.

    `evaluations` says of how many rounds there were values; with fewer than 10 `last10_*` is the mean of those.
    `best_round` is that of the test accuracy.
    """
    if not history:
        return {}
    result = {"evaluations": float(len(history))}
    for name in [key for key in history[-1] if key not in ("round", "lr")]:
        values = [row[name] for row in history if name in row]
        result[f"final_{name}"] = values[-1]
        result[f"last{LAST}_{name}"] = sum(values[-LAST:]) / len(values[-LAST:])
        if name.endswith("_accuracy"):
            result[f"best_{name}"] = max(values)
    best = max(history, key=lambda row: row["test_accuracy"])
    return result | {"best_round": best["round"]}


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested configuration -> dotted names and strings; long values by digest (MLflow bounds a parameter's length)."""
    result: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            text = str(value)
            result[prefix + key] = text if len(text) <= 500 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return result


def tags_of(config: RunConfig) -> dict[str, str]:
    """What one groups and filters by in the UI."""
    return {"algorithm": config.algorithm.label(), "partition": config.partition.label(), "data": config.data.name,
            "model": config.model.name, "seed": str(config.seed)}


def picture(problem: Problem) -> Figure:
    """The client x class heatmap of a run."""
    counts = problem.shards.label_counts(problem.data.y_train, problem.data.num_classes)
    return heatmap(counts, title=f"{problem.data.name}, {problem.config.partition.label()}")


@cache
def git_tags() -> dict[str, str]:
    """The commit of fedray's own checkout, `+changes` where it has uncommitted ones; empty outside of a checkout."""
    root = Path(__file__).parent
    try:
        head, changes = (subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True,  # noqa: S603, S607
                                        timeout=10).stdout.strip()
                         for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."]))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {MLFLOW_GIT_COMMIT: head + ("+changes" if changes else "")}


def _now() -> int:
    return int(time.time() * 1000)
