"""A sweep: cells -> Tune trials -> MLflow. Skips what is finished, resumes what is not."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from fedray.cluster.connection import cluster
from fedray.cluster.gpu_sharing import Packing
from fedray.cluster.resources import cluster_nodes, refuse_infeasible
from fedray.sweep.grid import Sweep
from fedray.sweep.plan import Plan
from fedray.sweep.progress import Progress
from fedray.sweep.reporter import TuneReporter
from fedray.sweep.storage import directory, storage
from fedray.sweep.trainable import CellTrainable, DataRef
from fedray.tracking.tracker import Tracker

RETRIES = 3
"""How often a trial whose process died is started again (from its checkpoint)."""


@contextlib.contextmanager
def prepared_cluster(plan: Plan, address: str | None) -> Iterator[None]:
    """A Ray on which every trial fits, for the duration of a block. Raises UserError where one never fits.

    The plan's cells get numbers for `gpus_per_actor: auto`.
    """
    with cluster(address):
        packing = Packing()
        for cell in plan.to_run:
            run = packing.resolve_auto_gpus(cell.run, plan.cells.data[cell.data])
            plan.cells.cells[cell.hash] = replace(cell, run=run)
        for runtime in plan.requests:
            refuse_infeasible(runtime, cluster_nodes())
        yield


def run_cells(
    plan: Plan,
    tracker: Tracker,
    parent: str,
    max_concurrent: int | None,
    release: Callable[[str], None],
    statuses: dict[str, str],
) -> None:
    """Run what is to run, within `prepared_cluster`.

    statuses: gets each cell's status. release: is told when a cell has one.
    """
    if plan.force:
        tracker.supersede([cell.hash for cell in plan.to_run])
        for cell in plan.to_run:
            shutil.rmtree(directory(cell), ignore_errors=True)
    with Progress(len(plan.to_run)) as progress:
        sink = TuneReporter(plan, tracker, progress, parent, release)
        try:
            _tune(plan, sink, max_concurrent)
        finally:
            sink.close_rest()
            statuses |= progress.outcomes


def _tune(plan: Plan, sink: TuneReporter, max_concurrent: int | None) -> None:
    sweep = plan.cells.sweep
    cells = [
        {
            "hash": cell.hash,
            "run": cell.run.resolved(),
            "data": cell.data,
            "directory": str(directory(cell)),
            "report_each": bool(sweep.scheduler or sweep.stop),
        }
        for cell in plan.to_run
    ]
    data = {key: DataRef(plan.cells.data[key]) for key in {cell.data for cell in plan.to_run}}
    os.environ |= {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    }  # a cell may end before it was ever evaluated
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails is told by the TuneReporter
    scratch = storage() / "tune" / str(os.getpid())
    tuner = tune.Tuner(
        tune.with_parameters(CellTrainable, data=data),
        param_space={"cell": tune.grid_search(cells)},
        tune_config=tune.TuneConfig(
            scheduler=_scheduler(sweep, plan), max_concurrent_trials=max_concurrent, reuse_actors=True
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(scratch),
            verbose=0,
            callbacks=[sink],
            stop=sweep.stop or None,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=RETRIES),
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # Tune's own state: a sweep resumes from MLflow and checkpoints


def _scheduler(sweep: Sweep, plan: Plan) -> TrialScheduler:
    rounds = max((cell.run.training.rounds for cell in plan.to_run), default=1)
    if sweep.scheduler == "asha":
        return ASHAScheduler(
            time_attr="round",
            metric="test_accuracy",
            mode="max",
            max_t=rounds,
            grace_period=max(1, rounds // 9),
            reduction_factor=3,
        )
    if sweep.scheduler == "median":
        # min_time_slice: never pause a trial to wait for others, since only its own checkpoints are kept.
        return MedianStoppingRule(
            time_attr="round",
            metric="test_accuracy",
            mode="max",
            min_time_slice=10**9,
            grace_period=max(1, rounds // 9),
        )
    return FIFOScheduler()
