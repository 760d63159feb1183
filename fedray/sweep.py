"""A sweep: cells -> Tune trials -> MLflow. Skips what is finished, resumes what is not."""

import contextlib
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from fedray.backend.ray import cluster_nodes, refuse_infeasible
from fedray.cluster import cluster
from fedray.packing import Packing
from fedray.plan import Plan, directory, storage
from fedray.progress import Progress
from fedray.sweepfile import Cell, Sweep
from fedray.tracking import CellRun, Tracker, picture, tags_of
from fedray.trainable import CellTrainable, DataRef

RETRIES = 3
"""How often a trial whose process died is started again (from its checkpoint)."""


class Sink(tune.Callback):
    """Everything Tune reports goes to MLflow and to the display, from the driver.

    What goes to MLflow does so in a thread of its own, in order, so that neither Tune nor an actor waits for the store
    or for a picture to be drawn. Only that thread touches the tracker until `close_rest`.
    """

    def __init__(self, plan: Plan, tracker: Tracker, progress: Progress, parent: str, release: Callable[[str], None]
                 ) -> None:
        self.plan, self.tracker, self.progress, self.parent, self.release = plan, tracker, progress, parent, release
        self._runs: dict[str, CellRun] = {}
        self._last: dict[str, dict[str, float]] = {}
        self._pictures: dict[str, bytes] = {}
        self._writer = ThreadPoolExecutor(1, "mlflow")
        self._written: deque[Future[None]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks for Tuner.restore, which is not used: a store and a display cannot be

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        cell = self._cell(trial)
        if cell.hash not in self._runs:
            self._runs[cell.hash] = CellRun()
            self._write(self._open, cell, self._runs[cell.hash])
        self._write(self._runs[cell.hash].history.clear)  # a trial's first report holds all rows there are
        self.progress.started(cell.hash, cell.label)

    def on_trial_result(self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any],
                        **_: Any) -> None:
        cell = self._cell(trial)
        rows = result["rows"]
        if rows:
            self._write(self.tracker.log_rows, self._runs[cell.hash], rows)
            self._last[cell.hash] = rows[-1]
            self.progress.row(cell.hash, rows[-1], cell.run.training.rounds)
        if result["done"] and result["status"] != "running":
            self._close(cell, result["status"], result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        cell = self._cell(trial)
        if cell.hash not in self.progress.outcomes:  # Tune ended it, not the trial: a scheduler or `stop`
            self._close(cell, "stopped", {"stopper": self.plan.cells.sweep.stopper})

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self.progress.note(f"the process of {self._cell(trial).label} died; starting it again from its checkpoint")

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        reason = str(trial.get_error() or "the trial's process died").strip()
        self._close(self._cell(trial), "failed", {"message": reason.splitlines()[-1], "traceback": reason})

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **_: Any) -> None:
        while self._written and self._written[0].done():
            self._written.popleft().result()  # raises what the store refused
        if not self._written:
            self._write(self.tracker.flush)

    def close_rest(self) -> None:
        """Whatever is still open when Tune returns was interrupted. Returns when all has been handed to the tracker."""
        for cell in self.plan.to_run:
            if cell.hash in self._runs and cell.hash not in self.progress.outcomes:
                self._close(cell, "interrupted", {"message": "the sweep was interrupted; call it again to go on"})
        self._writer.shutdown()
        for written in self._written:
            written.result()

    def _write(self, write: Callable[..., None], *arguments: Any) -> None:
        self._written.append(self._writer.submit(write, *arguments))

    def _open(self, cell: Cell, run: CellRun) -> None:
        tags = {"fedray.sweep": self.plan.cells.sweep.name, **tags_of(cell.run)}
        self.tracker.open_cell(run, cell.hash, cell.label, cell.run.resolved(), tags, self.parent)
        problem = self.plan.cells.problem(cell)
        digest = problem.shards.digest
        if digest not in self._pictures:
            self._pictures[digest] = picture(problem)
        self.tracker.log_picture(run, self._pictures[digest])

    def _close(self, cell: Cell, status: str, result: dict[str, Any]) -> None:
        self._write(self.tracker.close_cell, self._runs[cell.hash], status, result, result.get("message", ""))
        self._write(self.release, cell.hash)
        last = self._last.get(cell.hash)
        text = f"{last['test_accuracy']:.2f} %" if last else "no evaluation"
        self.progress.ended(cell.hash, status, result.get("message", "") or text)

    def _cell(self, trial: Trial) -> Cell:
        return self.plan.cells.cells[trial.config["cell"]["hash"]]


@contextlib.contextmanager
def placed(plan: Plan, address: str | None) -> Iterator[None]:
    """A Ray on which every trial fits, for the duration of a block. Raises UserError where one never fits.

    The plan's cells get numbers for `gpus_per_actor: auto`.
    """
    with cluster(address):
        packing = Packing()
        for cell in plan.to_run:
            run = packing.settled(cell.run, plan.cells.data[cell.data])
            plan.cells.cells[cell.hash] = replace(cell, run=run)
        for runtime in plan.requests:
            refuse_infeasible(runtime, cluster_nodes())
        yield


def run_cells(plan: Plan, tracker: Tracker, parent: str, max_concurrent: int | None, release: Callable[[str], None],
              statuses: dict[str, str]) -> None:
    """Run what is to run, within `placed`; `statuses` gets each cell's, and `release` is told when it has one."""
    if plan.force:
        tracker.supersede([cell.hash for cell in plan.to_run])
        for cell in plan.to_run:
            shutil.rmtree(directory(cell), ignore_errors=True)
    with Progress(len(plan.to_run)) as progress:
        sink = Sink(plan, tracker, progress, parent, release)
        try:
            _tune(plan, sink, max_concurrent)
        finally:
            sink.close_rest()
            statuses |= progress.outcomes


def _tune(plan: Plan, sink: Sink, max_concurrent: int | None) -> None:
    sweep = plan.cells.sweep
    cells = [{"hash": cell.hash, "run": cell.run.resolved(), "data": cell.data, "directory": str(directory(cell)),
              "report_each": bool(sweep.scheduler or sweep.stop)} for cell in plan.to_run]
    data = {key: DataRef(plan.cells.data[key]) for key in {cell.data for cell in plan.to_run}}
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0",
                   "TUNE_GLOBAL_CHECKPOINT_S": "3600", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
                   "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"}  # a cell may end before it was ever evaluated
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails is told by the Sink
    scratch = storage() / "tune" / str(os.getpid())
    tuner = tune.Tuner(
        tune.with_parameters(CellTrainable, data=data),
        param_space={"cell": tune.grid_search(cells)},
        tune_config=tune.TuneConfig(scheduler=_scheduler(sweep, plan), max_concurrent_trials=max_concurrent,
                                    reuse_actors=True),
        run_config=tune.RunConfig(name="sweep", storage_path=str(scratch), verbose=0, callbacks=[sink],
                                  stop=sweep.stop or None,
                                  checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                                  failure_config=tune.FailureConfig(max_failures=RETRIES)))
    try:
        tuner.fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # Tune's own state: a sweep resumes from MLflow and checkpoints


def _scheduler(sweep: Sweep, plan: Plan) -> TrialScheduler:
    rounds = max((cell.run.training.rounds for cell in plan.to_run), default=1)
    if sweep.scheduler == "asha":
        return ASHAScheduler(time_attr="round", metric="test_accuracy", mode="max", max_t=rounds,
                             grace_period=max(1, rounds // 9), reduction_factor=3)
    if sweep.scheduler == "median":
        # min_time_slice: never pause a trial to wait for others, since only its own checkpoints are kept.
        return MedianStoppingRule(time_attr="round", metric="test_accuracy", mode="max", min_time_slice=10**9,
                                  grace_period=max(1, rounds // 9))
    return FIFOScheduler()
