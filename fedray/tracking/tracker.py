"""The only writer to MLflow: one parent run per sweep, one child per cell, always with a final status.

A cell's runs are found again by the tag `fedray.cell` (its hash), in whatever sweep they were made. `fedray.status` is
the truth about a run: running, finished, diverged, stopped (early, by the file's `stop`), pruned (early, by a
scheduler), failed or interrupted; MLflow's own status is FINISHED for finished, stopped and pruned, FAILED for the
others.

A store that is unreachable for a while costs nothing: writes queue up in order and are repeated until they arrive.
Repeating one is harmless, and so is a second driver (with another storage) that logs the same cell at the same time:
a metric's timestamp is its run's start plus its round in milliseconds, and MLflow keeps equal values once.
"""

import csv
import hashlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from mlflow.entities import Dataset, DatasetInput, Metric, Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE

from fedray.common.errors import redacted
from fedray.tracking.outbox import Outbox
from fedray.tracking.provenance import environment_tags, git_tags
from fedray.tracking.store import (
    RANK,
    SUMMARY,
    Outcome,
    is_transient,
    open_store,
    outcomes_in,
    patience,
    refusals,
    runs_of,
    search,
)

T = TypeVar("T")

LAST = 10
"""How many evaluated rounds `last10_*` averages."""
ONCE = ("seconds_per_round", "seconds_per_round_with_evaluation", "megabytes_down", "megabytes_up", "diverged_round")
"""What is logged once, at the end, as it is."""
ENDED = ("finished", "stopped", "pruned")
"""Statuses of cells that ended as they were meant to."""
BATCH = 1000
"""Metrics that MLflow takes in one request."""


@dataclass
class CellRun:
    """A cell's run in MLflow.

    Attributes:
        id: empty until the store has made or found it.
        start: milliseconds since 1970 at which it was made; rows are stamped from there.
        logged: the last round that the store has.
        history: the rows reported so far.
    """

    id: str = ""
    start: int = 0
    logged: int = 0
    history: list[Mapping[str, float]] = field(default_factory=list)


class Tracker:
    """Writes one sweep, or one run, from the driver.

    What is written of cells does not wait for a store that is unreachable; `flush`, called now and then, tries again,
    and `close` waits until all has arrived.

    Raises:
        Undelivered: in `close`, some writes never arrived.
        UserError: in every method, the store refuses a write.
    """

    def __init__(self) -> None:
        self._patience = patience()
        self.client, self.experiment = open_store(create=True)
        self._outbox = Outbox(is_transient)

    def _send(self, write: Callable[[], object]) -> None:
        self._outbox.send(lambda: _refusable(write))

    def outcomes(self, cells: Iterable[str]) -> dict[str, Outcome]:
        """Cell hash -> outcome of the cells that have one, once all that was sent has arrived."""
        wanted = list(cells)
        return self._outbox.ask(
            lambda: _refusable(lambda: outcomes_in(self.client, self.experiment, wanted)), self._patience
        )

    def supersede(self, cells: Sequence[str]) -> None:
        """Mark the earlier runs of these cells, so that each cell keeps one that counts."""
        for run in runs_of(self.client, self.experiment, cells):
            self.client.set_tag(run.info.run_id, "fedray.status", "superseded")
            if run.info.status == "RUNNING":  # its driver was killed
                self.client.set_terminated(run.info.run_id, "FAILED")

    def open_sweep(self, name: str, description: str, cells: Sequence[Mapping[str, Any]]) -> str:
        """The sweep's parent run, made or found again; `cells` (hash, label, configuration) become its artefact."""
        tags = {
            "fedray.kind": "sweep",
            "fedray.sweep": name,
            "mlflow.note.content": description,
            MLFLOW_SOURCE_NAME: f"fedray sweep {name}",
            MLFLOW_SOURCE_TYPE: "LOCAL",
        }
        run = next(
            search(self.client, self.experiment, f"tags.`fedray.kind` = 'sweep' AND tags.`fedray.sweep` = '{name}'"),
            None,
        )
        if run is None:
            run = self.client.create_run(self.experiment, run_name=name, tags=tags | git_tags())
        run_id: str = run.info.run_id
        self.client.update_run(run_id, status="RUNNING")
        self.client.log_dict(run_id, {"cells": list(cells)}, "cells.json")
        return run_id

    def list_cells(self, run_id: str, cells: Sequence[Mapping[str, Any]]) -> None:
        """Write which cells a sweep has, in place of what was written before."""
        self._outbox.send(lambda: self.client.log_dict(run_id, {"cells": list(cells)}, "cells.json"))

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

        self._send(write)

    def open_cell(
        self,
        run: CellRun,
        cell: str,
        label: str,
        config: Mapping[str, Any],
        tags: Mapping[str, str],
        parent: str | None,
        again: bool = True,
    ) -> None:
        """The cell's run, made or (with `again`) found by its hash. Without `again` the store has to be there."""
        if again:
            self._send(lambda: self._find_or_make(run, cell, label, config, tags, parent))
        else:
            self._make(run, cell, label, config, tags, parent)

    def _find_or_make(
        self,
        run: CellRun,
        cell: str,
        label: str,
        config: Mapping[str, Any],
        tags: Mapping[str, str],
        parent: str | None,
    ) -> None:
        found = self._counting(cell)
        if not found:
            self._make(run, cell, label, config, tags, parent)
            found = self._counting(cell)  # again: a driver with another storage may have made one at the same moment
            if found[0].info.run_id == run.id:
                return
            self.client.delete_run(run.id)
        first = found[0]
        run.id, run.start = first.info.run_id, first.info.start_time
        self.client.update_run(run.id, status="RUNNING")
        self.client.log_batch(run.id, tags=[RunTag(k, v) for k, v in self._tags(cell, config, tags, parent).items()])
        if not first.data.params:  # they are written last
            self._describe(run.id, config)
        logged = self.client.get_metric_history(run.id, "test_accuracy")
        run.logged = max((metric.step for metric in logged), default=0)

    def _counting(self, cell: str) -> list[Run]:
        """The runs of a cell that are not superseded, the oldest first: every driver takes the same one."""
        counting = f"tags.`fedray.cell` = '{cell}' AND tags.`fedray.status` != 'superseded'"
        found = search(self.client, self.experiment, counting)
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    def _make(
        self,
        run: CellRun,
        cell: str,
        label: str,
        config: Mapping[str, Any],
        tags: Mapping[str, str],
        parent: str | None,
    ) -> None:
        made = self.client.create_run(self.experiment, run_name=label, tags=self._tags(cell, config, tags, parent))
        run.id, run.start = made.info.run_id, made.info.start_time
        self._describe(run.id, config)

    def _describe(self, run_id: str, config: Mapping[str, Any]) -> None:
        self.client.log_dict(run_id, dict(config), "config.yaml")
        settings = {key: value for key, value in config.items() if key != "runtime"}
        if "data" in config:
            self.client.log_inputs(run_id, [DatasetInput(_dataset(config["data"]))])
        self.client.log_batch(run_id, params=[Param(k, v) for k, v in flat(settings).items()])

    @staticmethod
    def _tags(cell: str, config: Mapping[str, Any], tags: Mapping[str, str], parent: str | None) -> dict[str, str]:
        whole = {
            "fedray.kind": "cell",
            "fedray.cell": cell,
            "fedray.status": "running",
            MLFLOW_SOURCE_NAME: f"fedray sweep {tags['fedray.sweep']}" if "fedray.sweep" in tags else "fedray run",
            MLFLOW_SOURCE_TYPE: "LOCAL",
            **tags,
            **git_tags(),
            **environment_tags(),
        }
        whole |= {f"runtime.{key}": str(value) for key, value in config["runtime"].items()}
        return whole | ({MLFLOW_PARENT_RUN_ID: parent} if parent is not None else {})

    def log_files(self, run: CellRun, files: Mapping[str, bytes]) -> None:
        """Artefacts of a cell: file name -> content."""

        def write() -> None:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in files.items():
                    (Path(folder) / name).write_bytes(content)
                self.client.log_artifacts(run.id, folder)

        self._send(write)

    def log_rows(self, run: CellRun, rows: Sequence[Mapping[str, float]]) -> None:
        """Evaluated rounds as metrics with step = round; those that are there already are left out."""
        run.history += rows

        def write() -> None:
            batch: list[Metric] = []
            for row in rows:
                if row["round"] > run.logged:
                    step = int(row["round"])
                    metrics = [
                        Metric(name, value, run.start + step, step) for name, value in row.items() if name != "round"
                    ]
                    if len(batch) + len(metrics) > BATCH:  # a row is written whole or not at all
                        self.client.log_batch(run.id, batch)
                        batch = []
                    batch += metrics
            if batch:
                self.client.log_batch(run.id, batch)
            run.logged = max([run.logged, *(int(row["round"]) for row in rows)])

        self._send(write)

    def close_cell(
        self,
        run: CellRun,
        status: str,
        summary: Mapping[str, Any],
        message: str = "",
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Final metrics, `fedray.status` and MLflow's status of a cell. `written` is called once the store has them.

        What `summary` has under `tables` (name -> column -> values) becomes artefacts, `NAME.csv`.
        """
        metrics = final_metrics(run.history) if status in ENDED else {}
        metrics |= {name: summary[name] for name in ONCE if name in summary}
        profile: Mapping[str, Any] = summary.get("profile", {})
        metrics |= profile.get("metrics", {})
        tags = {"fedray.status": status, "fedray.message": redacted(message)[:5000]}
        tags |= {f"fedray.{key}": summary[key] for key in ("theta_sha256", "state_sha256", "stopper") if key in summary}
        # A cell that was stopped early and goes on later is closed twice: the later round is the one that is shown.
        step = int(run.history[-1]["round"]) if run.history else 0

        def write() -> None:
            self.client.log_batch(
                run.id,
                [Metric(f"{SUMMARY}{k}", v, run.start + step, step) for k, v in metrics.items()],
                tags=[RunTag(k, v) for k, v in tags.items()],
            )
            if profile:
                self.client.log_dict(run.id, {"rounds": profile["rounds"]}, "profile.json")
            for name, table in summary.get("tables", {}).items():
                self.client.log_text(run.id, _csv(table), f"{name}.csv")
            if "traceback" in summary:
                self.client.log_text(run.id, redacted(summary["traceback"]), "traceback.txt")
            self.client.set_terminated(run.id, "FINISHED" if status in ENDED else "FAILED")

        self._send(write)

    def flush(self) -> None:
        """Try again what could not be written, if it is time to."""
        self._outbox.flush()

    def close(self) -> None:
        """Wait until everything is written. Raises Undelivered."""
        self._outbox.drain(self._patience)


def _refusable(write: Callable[[], T]) -> T:
    with refusals():
        return write()


def final_metrics(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a run over its evaluated rounds.

    Args:
        history: of each evaluated round, name -> value.

    Returns:
        `final_*` (last evaluated round), `last10_*` (mean of the last 10 evaluated rounds), and `best_*` of accuracies.
        `evaluations` says how many rounds had values; with fewer than 10 `last10_*` is the mean of those. Where
        samples are held out, `best_round` is that of the best validation accuracy, and `best_*` is each accuracy in the
        best such round that has it: the test set selects nothing. Without them `best_round` is that of the best test
        accuracy, and each `best_*` is its own largest value.
    """
    if not history:
        return {}
    validated = "validation_accuracy" in history[-1]
    selects = "validation_accuracy" if validated else "test_accuracy"
    result = {"evaluations": float(len(history))}
    for name in [key for key in history[-1] if key not in ("round", "lr", "megabytes_sent")]:
        values = [row[name] for row in history if name in row]
        result[f"final_{name}"] = values[-1]
        result[f"last{LAST}_{name}"] = sum(values[-LAST:]) / len(values[-LAST:])
        if name.endswith("_accuracy"):
            having = [row for row in history if name in row]
            result[f"best_{name}"] = max(having, key=itemgetter(selects))[name] if validated else max(values)
    return result | {"best_round": max(history, key=itemgetter(selects))["round"]}


def _dataset(options: Mapping[str, Any]) -> Dataset:
    """What MLflow's column `Dataset` shows: the name, and a digest and the text of the options."""
    text = json.dumps(options, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Dataset(name=str(options["name"]), digest=digest, source_type="fedray", source=text)


def _csv(table: Mapping[str, Sequence[float]]) -> str:
    """Columns as CSV; whole numbers without a point."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows([f"{value:.10g}" for value in row] for row in zip(*table.values(), strict=True))
    return file.getvalue()


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


def _now() -> int:
    return int(time.time() * 1000)
