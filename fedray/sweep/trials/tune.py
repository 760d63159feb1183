"""Cells as trials of Ray Tune."""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback

from fedray.cluster.ray_private import (
    count_each_death_once,
    give_trials_waiting_processes,
    restart_trials_killed_for_memory,
)
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.storage import get_cell_dir, make_scratch
from fedray.sweep.trials.allocator import ActorAllocator
from fedray.sweep.trials.progress import Progress
from fedray.sweep.trials.reporter import TuneReporter
from fedray.sweep.trials.schedulers import make_scheduler
from fedray.sweep.trials.searcher import NextCells
from fedray.sweep.trials.session import Session
from fedray.sweep.trials.trainable import Call, CellTrainable, DataRef
from fedray.sweep.trials.watchdog import Watchdog

RETRIES = 3
"""Number of times that a trial whose process died is restarted (from its checkpoint) before it makes a new round."""

WAITING = 4
"""Minimum number of pending trials. With one, trials would start one at a time. Each pending trial has asked the
cluster for its resources, which takes time; but a cluster with autoscaling grows only for pending trials, so there may
be as many as it has CPUs."""

give_trials_waiting_processes()
restart_trials_killed_for_memory()
count_each_death_once()


class TrialLog(JsonLoggerCallback):
    """Tune's own log of each trial, from which its `ResultGrid` is made: plain values, and the cell's hash."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        plain = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
        super().log_trial_result(iteration, trial, plain)

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        super().update_config(trial, config | {"cell": config["cell"].hash})


def run_cells(session: Session, cells: Sequence[Cell], max_concurrent: int | None) -> None:
    """Run cells as trials of Tune on the running Ray. Their outcomes go into `session.statuses`."""
    with Progress(len(cells)) as progress:
        reporter = TuneReporter(session, progress)
        if session.plan.force:
            reporter.forget(cells)
        with contextlib.ExitStack() as stack:
            stack.callback(reporter.close_rest)
            folder = stack.enter_context(make_scratch())  # Tune's own state, from which nothing resumes
            _run_tune(session, cells, reporter, max_concurrent, folder)


def _run_tune(
    session: Session, cells: Sequence[Cell], reporter: TuneReporter, max_concurrent: int | None, folder: Path
) -> None:
    sweep = session.plan.sweep
    os.environ |= {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a cell may end before it was ever evaluated
        "TUNE_MAX_PENDING_TRIALS_PG": str(max(WAITING, int(ray.cluster_resources().get("CPU", 0)))),
    }
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the TuneReporter reports failures
    shares = ActorAllocator(max_concurrent)
    tuner = tune.Tuner(
        tune.with_parameters(
            CellTrainable,
            call=Call(_hand_over(session, cells), get_cell_dir(""), report_each=bool(sweep.scheduler or sweep.stop)),
        ),
        tune_config=tune.TuneConfig(
            scheduler=make_scheduler(
                sweep,
                max((cell.run.training.rounds for cell in cells), default=1),
                lambda cell: session.plan.cells[cell].run,
            ),
            search_alg=NextCells(session, cells, reporter, shares),
            num_samples=-1,
            max_concurrent_trials=max_concurrent,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(folder),
            verbose=0,
            callbacks=[
                reporter,
                Watchdog(reporter.progress.note),
                shares,
                TrialLog(),  # type: ignore[no-untyped-call]
            ],
            stop=sweep.stop or None,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=RETRIES),
        ),
    )
    try:
        session.trials.append(tuner.fit().get_dataframe().drop(columns="logdir", errors="ignore"))
    except Exception:
        if session.writer.refusal is None:
            raise
        raise session.writer.refusal from None  # Tune wraps it


def _hand_over(session: Session, cells: Sequence[Cell]) -> dict[str, DataRef]:
    """Return the data sets that the trials will need; for a search that learns, all that it has drawn so far."""
    known = session.plan.problems.data
    wanted = known if session.plan.sweep.learns else {cell.data for cell in cells}
    session.data |= {key: DataRef(known[key]) for key in wanted if key not in session.data}
    return {key: session.data[key] for key in wanted}
