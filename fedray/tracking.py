"""The only writer to MLflow: one parent run per sweep, one child per cell, always with a final status.

A cell's runs are found again by the tag `fedray.cell` (its hash), in whatever sweep they were made. `fedray.status` is
the truth about a run: running, finished, diverged, stopped (early, by a scheduler), failed or interrupted; MLflow's own
status is FINISHED for finished and stopped, FAILED for the others.

A store that is away for a while costs nothing: writes queue up in order and are repeated until they arrive. Repeating
one is harmless, since its timestamps are those of the first attempt and MLflow keeps equal values once.
"""

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_PARENT_RUN_ID

from fedray.address import local_file, refuse_unusable
from fedray.config import RunConfig
from fedray.data.show import heatmap
from fedray.environment import environment_tags
from fedray.errors import UserError, one_line, redacted
from fedray.outbox import Outbox
from fedray.problem import Problem
from fedray.profile import Profile

EXPERIMENT = "fedray"
IS_CELL = "tags.`fedray.kind` = 'cell'"
RANK = ("finished", "diverged", "stopped", "failed", "interrupted", "running")
"""Where a cell has several runs, the one whose status comes first counts."""
LAST = 10
"""How many evaluated rounds `last10_*` averages."""
PATIENCE = 300.0
"""Seconds that the end of a run or sweep waits for a store that is away; $FEDRAY_STORE_PATIENCE sets others."""
BATCH = 1000
"""Metrics that MLflow takes in one request."""


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
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the outbox repeats, and does not block meanwhile
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uri = store_uri()
    local = local_file(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    if local is not None and not create and not (local.exists() and local.stat().st_size):
        raise NoStore(f"MLFLOW_TRACKING_URI: there is no store at {local}; run a sweep first, or name its store")
    refuse_unusable(uri)
    try:
        with _one_at_a_time(local):
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(name)
            if found is not None:
                return client, found.experiment_id
            if not create:
                raise NoStore(f"MLflow has no experiment named {name!r} in this store; run a sweep first")
            root = (local.resolve().parent / "mlartifacts").as_uri() if local is not None else None
            return client, client.create_experiment(name, artifact_location=root)
    except UserError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, or that of a database's driver which is not installed
        raise UserError(f"MLFLOW_TRACKING_URI: the store cannot be used: {redacted(one_line(error))}") from None


@contextlib.contextmanager
def _one_at_a_time(store: Path | None) -> Iterator[None]:
    """Two processes that make the tables of one SQLite store leave it broken: the directory is locked meanwhile."""
    if store is None:
        yield
        return
    directory = os.open(store.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


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


def away(error: Exception) -> bool:
    """Whether an exception says that the store cannot be reached, is overloaded or locked: worth another attempt."""
    if isinstance(error, MlflowException):
        return bool(error.get_http_status_code() >= 500 or error.get_http_status_code() == 429)
    return isinstance(error, OSError)  # of requests, which MLflow leaves as they are for artefacts


@dataclass
class CellRun:
    """A cell's run in MLflow. `id` is empty until the store has made or found it; `logged` is the last round there."""

    id: str = ""
    logged: int = 0
    history: list[Mapping[str, float]] = field(default_factory=list)
    """The rows reported so far."""


class Tracker:
    """Writes one sweep, or one run, from the driver.

    What is written of cells does not wait for a store that is away; `flush`, called now and then, tries again, and
    `close` waits until all has arrived. Raises Undelivered there, and MlflowException where the store refuses.
    """

    def __init__(self) -> None:
        self.client, self.experiment = open_store(create=True)
        self._outbox = Outbox(away)

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
        now = _now()
        whole = not any(counts.get(status) for status in ("failed", "interrupted", "missing"))

        def write() -> None:
            # Of equal steps MLflow shows the latest by the clock, which may jump: each call of a sweep has a step.
            step = len(self.client.get_metric_history(run_id, "cells_missing"))
            metrics = [Metric(f"cells_{k}", counts.get(k, 0), now, step) for k in (*RANK, "missing")]
            self.client.log_batch(run_id, metrics)
            self.client.set_terminated(run_id, "FINISHED" if whole else "FAILED")

        self._outbox.send(write)

    def open_cell(self, run: CellRun, cell: str, label: str, config: Mapping[str, Any], tags: Mapping[str, str],
                  parent: str | None, again: bool = True) -> None:
        """The cell's run, made or (with `again`) found by its hash. Without `again` the store has to be there."""
        if again:
            self._outbox.send(lambda: self._find_or_make(run, cell, label, config, tags, parent))
        else:
            self._make(run, cell, label, config, tags, parent)

    def _find_or_make(self, run: CellRun, cell: str, label: str, config: Mapping[str, Any], tags: Mapping[str, str],
                      parent: str | None) -> None:
        counting = f"tags.`fedray.cell` = '{cell}' AND tags.`fedray.status` != 'superseded'"
        found = next(search(self.client, self.experiment, counting), None)
        if found is None:
            self._make(run, cell, label, config, tags, parent)
            return
        run.id = found.info.run_id
        self.client.update_run(run.id, status="RUNNING")
        self.client.log_batch(run.id, tags=[RunTag(k, v) for k, v in self._tags(cell, config, tags, parent).items()])
        if not found.data.params:  # they are written last
            self._describe(run.id, config)
        logged = self.client.get_metric_history(run.id, "test_accuracy")
        run.logged = max((metric.step for metric in logged), default=0)

    def _make(self, run: CellRun, cell: str, label: str, config: Mapping[str, Any], tags: Mapping[str, str],
              parent: str | None) -> None:
        made = self.client.create_run(self.experiment, run_name=label, tags=self._tags(cell, config, tags, parent))
        run.id = made.info.run_id
        self._describe(run.id, config)

    def _describe(self, run_id: str, config: Mapping[str, Any]) -> None:
        self.client.log_dict(run_id, dict(config), "config.yaml")
        settings = {key: value for key, value in config.items() if key != "runtime"}
        self.client.log_batch(run_id, params=[Param(k, v) for k, v in flat(settings).items()])

    @staticmethod
    def _tags(cell: str, config: Mapping[str, Any], tags: Mapping[str, str], parent: str | None) -> dict[str, str]:
        whole = {"fedray.kind": "cell", "fedray.cell": cell, "fedray.status": "running", **tags, **git_tags(),
                 **environment_tags()}
        whole |= {f"runtime.{key}": str(value) for key, value in config["runtime"].items()}
        return whole | ({MLFLOW_PARENT_RUN_ID: parent} if parent is not None else {})

    def log_picture(self, run: CellRun, png: bytes) -> None:
        """The client x class heatmap of a cell (`picture`)."""
        def write() -> None:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "partition.png"
                file.write_bytes(png)
                self.client.log_artifact(run.id, str(file))

        self._outbox.send(write)

    def log_rows(self, run: CellRun, rows: Sequence[Mapping[str, float]]) -> None:
        """Evaluated rounds as metrics with step = round; those that are there already are left out."""
        run.history += rows
        now = _now()

        def write() -> None:
            batch: list[Metric] = []
            for row in rows:
                if row["round"] > run.logged:
                    metrics = [Metric(name, value, now, int(row["round"])) for name, value in row.items()
                               if name != "round"]
                    if len(batch) + len(metrics) > BATCH:  # a row is written whole or not at all
                        self.client.log_batch(run.id, batch)
                        batch = []
                    batch += metrics
            if batch:
                self.client.log_batch(run.id, batch)
            run.logged = max([run.logged, *(int(row["round"]) for row in rows)])

        self._outbox.send(write)

    def close_cell(self, run: CellRun, status: str, summary: Mapping[str, Any], message: str = "") -> None:
        """Final metrics, `fedray.status` and MLflow's status of a cell."""
        metrics = final_metrics(run.history) if status in ("finished", "stopped") else {}
        if "seconds_per_round" in summary:
            metrics["seconds_per_round"] = summary["seconds_per_round"]
        if "diverged_round" in summary:
            metrics["diverged_round"] = summary["diverged_round"]
        profile: Profile | None = summary.get("profile")
        metrics |= {} if profile is None else profile.metrics()
        tags = {"fedray.status": status, "fedray.message": redacted(message)[:5000]}
        tags |= {f"fedray.{key}": summary[key] for key in ("theta_sha256", "state_sha256", "stopper") if key in summary}
        # A cell that was stopped early and goes on later is closed twice: the later round is the one that is shown.
        now, step = _now(), int(run.history[-1]["round"]) if run.history else 0

        def write() -> None:
            self.client.log_batch(run.id, [Metric(k, v, now, step) for k, v in metrics.items()],
                                  tags=[RunTag(k, v) for k, v in tags.items()])
            if profile is not None:
                self.client.log_dict(run.id, {"rounds": profile.rounds}, "profile.json")
            if "traceback" in summary:
                self.client.log_text(run.id, redacted(summary["traceback"]), "traceback.txt")
            self.client.set_terminated(run.id, "FINISHED" if status in ("finished", "stopped") else "FAILED")

        self._outbox.send(write)

    def flush(self) -> None:
        """Try again what could not be written, if it is time to."""
        self._outbox.flush()

    def close(self) -> None:
        """Wait until everything is written. Raises Undelivered."""
        self._outbox.drain(float(os.environ.get("FEDRAY_STORE_PATIENCE", PATIENCE)))


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


def picture(problem: Problem) -> bytes:
    """The client x class heatmap of a run, as PNG. Takes a quarter of a second."""
    counts = problem.shards.label_counts(problem.data.y_train, problem.data.num_classes)
    file = io.BytesIO()
    heatmap(counts, title=f"{problem.data.name}, {problem.config.partition.label()}").savefig(file, format="png")
    return file.getvalue()


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
