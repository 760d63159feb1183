"""Cells as trials of Ray Tune: the searcher that gives them to it, the schedulers that end the slow ones.

The number of actors of each cell is decided when it starts.
"""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from fedray.cells.cell import Cell, flatten
from fedray.cluster import ray_private
from fedray.cluster.resources import FreeCapacity, get_bundle
from fedray.cluster.timeouts import FIRST, SILENT
from fedray.components.sources import list_held
from fedray.config import RunConfig, Runtime
from fedray.sweep.draws import find_axes
from fedray.sweep.reporter import Progress, TuneReporter
from fedray.sweep.session import OfThisCall, Session
from fedray.sweep.storage import get_cell_dir, make_scratch
from fedray.sweep.sweep import Sweep
from fedray.sweep.trainable import CellTrainable

RETRIES = 3
"""Number of times that a trial whose process died is restarted (from its checkpoint) before it makes a new round."""

WAITING = 4
"""Minimum number of pending trials. With one, trials would start one at a time. Each pending trial has asked the
cluster for its resources, which takes time; but a cluster with autoscaling grows only for pending trials, so there may
be as many as it has CPUs."""


ray_private.give_trials_waiting_processes()
ray_private.restart_trials_killed_for_memory()
ray_private.count_each_death_once()
ray_private.let_processes_finish_starting()


class TrialLog(JsonLoggerCallback):
    """Tune's own log of each trial, from which its `ResultGrid` is made: plain values, and the cell's hash."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        plain = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
        super().log_trial_result(iteration, trial, plain)

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        super().update_config(trial, config | {"cell": config["cell"].hash})


def run_cells(session: Session, cells: Sequence[Cell]) -> None:
    """Run cells as trials of Tune on the running Ray. Their outcomes go into the plan's sheet."""
    session.stopped = True
    with Progress(len(cells)) as progress:
        reporter = TuneReporter(session, progress)
        with contextlib.ExitStack() as stack:
            stack.callback(reporter.close_rest)
            folder = stack.enter_context(make_scratch(session.plan.sweep.name))  # Tune's state: nothing resumes from it
            _run_tune(session, cells, reporter, folder)
    ended = {cell for cell, status in progress.outcomes.items() if not status.is_open}
    session.stopped = any(cell.hash not in ended for cell in cells)


def _run_tune(session: Session, cells: Sequence[Cell], reporter: TuneReporter, folder: Path) -> None:
    sweep, max_concurrent = session.plan.sweep, session.plan.options.max_concurrent
    os.environ |= {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a cell may end before it was ever evaluated
        "TUNE_MAX_PENDING_TRIALS_PG": str(max(WAITING, int(ray.cluster_resources().get("CPU", 0)))),
    }
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the TuneReporter reports failures
    shares, wanted = ActorAllocator(max_concurrent), {cell.data for cell in cells}
    data = session.plan.problems.data
    session.data |= {key: ray.put(data[key]) for key in wanted if key not in session.data}
    tuner = tune.Tuner(
        tune.with_parameters(
            CellTrainable,
            data={key: session.data[key] for key in wanted},
            cells=get_cell_dir(""),
            report_each=bool(sweep.scheduler or sweep.stop),
            sources=list_held(),
        ),
        tune_config=tune.TuneConfig(
            scheduler=make_scheduler(
                sweep,
                max((cell.run.training.rounds for cell in cells), default=1),
                lambda cell: session.plan.sheet.cells[cell].run,
            ),
            search_alg=NextCells(
                [*find_axes(sweep.keys, (point for point, _ in session.plan.points))],
                cells,
                shares,
                reporter.forget if session.plan.options.force else lambda cell: None,
            ),
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
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        session.trials.append(tuner.fit().get_dataframe().drop(columns="logdir", errors="ignore"))
    except Exception:
        if session.outbox.refusal is None:
            raise
        raise session.outbox.refusal from None  # Tune wraps it
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():  # Tune's would swallow the caller's next Ctrl-C
                signal.signal(number, handler)


def make_scheduler(sweep: Sweep, rounds: int, run_of: Callable[[str], RunConfig]) -> TrialScheduler:
    """Make the scheduler that the sweep's file asks for."""
    asked = sweep.scheduler
    if asked is None:
        return FIFOScheduler()
    metric, grace, factor = asked.metric, min(asked.grace or max(1, rounds // 9), rounds), asked.factor or 3
    searched = {key for space in sweep.spaces for key in space}

    def make() -> TrialScheduler:
        if asked.name == "median":
            return ray_private.make_median_rule(metric, grace)
        return ASHAScheduler("round", metric, "max", max_t=rounds, grace_period=grace, reduction_factor=factor)

    return PerGroupScheduler(cache(lambda cell: get_group(run_of(cell), searched)), make)


def get_group(run: RunConfig, searched: Collection[str]) -> str:
    """Return the properties that cells must share to be compared: all that is not searched, including the seed."""
    options = [f"algorithm.{name}" for name in run.algorithm.list_options() if name != "name"]
    free = tuple(f"{key}." for key in searched or ("training", *options))
    fixed = {key: value for key, value in flatten(run.resolve()).items() if not f"{key}.".startswith(free)}
    return json.dumps(fixed, sort_keys=True)


class PerGroupScheduler(OfThisCall, FIFOScheduler):
    """One scheduler per group of trials: a draw is compared with draws of its own method, setting and seed.

    Otherwise a method that starts slowly, or a harder setting, would lose all its draws. group: returns what a cell
    must share with its rivals, by its hash. make: makes a new scheduler.
    """

    def __init__(self, group: Callable[[str], str], make: Callable[[], TrialScheduler]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group, self._each = group, defaultdict[str, TrialScheduler](make)

    @staticmethod
    def _pass_on(event: str) -> Any:
        def tell(self: "PerGroupScheduler", controller: Any, trial: Trial, *result: Any) -> Any:
            group = self._each[self._group(trial.config["cell"].hash)]
            return getattr(group, event)(controller, trial, *result)

        return tell

    on_trial_add, on_trial_error, on_trial_result = map(_pass_on, ("on_trial_add", "on_trial_error", "on_trial_result"))
    on_trial_complete, on_trial_remove = map(_pass_on, ("on_trial_complete", "on_trial_remove"))


class ActorAllocator(OfThisCall, tune.Callback):
    """Gives actors to at most `max_concurrent` cells: as many as they ask for, or for `auto` a share of the free."""

    def __init__(self, max_concurrent: int | None) -> None:
        self._capacity, self._max = FreeCapacity(), max_concurrent
        self._live: dict[str, tuple[Runtime, int]] = {}

    def give(self, cell: Cell, left: int) -> int:
        """Return the number of actors for the next of `left` cells; 0 if nothing is free.

        A cell that gets one actor in any case waits inside Tune, so that it begins at once, and a cluster grows for it.
        """
        runtime = cell.run.runtime
        actors = self._share(cell.run, left) if runtime.actors == "auto" else runtime.actors
        if actors:
            self._live[cell.hash] = runtime, actors
        return actors

    def _share(self, run: RunConfig, left: int) -> int:
        left = left if self._max is None else min(left, self._max - len(self._live))
        if left > self._capacity.count_actors(run.runtime):
            return 1
        free = max(self._capacity.count_actors(run.runtime, self._list_held()), 0 if self._live else 1)
        return min(max(free // left, 1), free, run.clients.largest_cohort) if left > 0 else 0

    def _list_held(self, but: str = "") -> list[dict[str, float]]:
        """Return the bundles of all cells, or of all but one."""
        return [get_bundle(of) for cell, (of, actors) in self._live.items() if cell != but for _ in range(actors)]

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._live.pop(trial.config["cell"].hash, None)

    on_trial_error = on_trial_complete

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        """Give a restarted cell as many actors as before, or as many as fit if a node was lost."""
        cell = trial.config["cell"].hash
        runtime, actors = self._live[cell]
        fits = max(self._capacity.count_actors(runtime, self._list_held(cell)), 1)
        if runtime.actors == "auto" and fits < actors:
            self._live[cell] = runtime, fits
            trial.config["actors"] = fits
            trial.update_resources(CellTrainable.default_resource_request(trial.config))


class NextCells(OfThisCall, Searcher):
    """Hands out cells one by one: Tune's own grid search copies all cells for each of them. It keeps no state.

    begin: is called with each cell, before its trial can start.
    """

    def __init__(
        self,
        axes: Sequence[str],
        cells: Sequence[Cell],
        shares: ActorAllocator,
        begin: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        super().__init__()
        self._axes, self.shares, self._queue, self._begin = axes, shares, deque(cells), begin

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial; None if free capacity must come first; FINISHED if nothing is left."""
        if not self._queue:
            return Searcher.FINISHED
        actors = self.shares.give(self._queue[0], len(self._queue))
        if not actors:
            return None
        cell = self._queue.popleft()
        self._begin(cell)
        values = {}  # for Tune to compare and show; a section that is chosen by name gives its name
        for key in self._axes:
            value = cell.get(key)
            values[key] = value.get("name") if isinstance(value, Mapping) else value
        return {"cell": cell, "actors": actors} | {key: value for key, value in values.items() if value is not None}

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Outcomes come through the reporter, complete, and there is no state."""

    on_trial_complete = save = restore = _do_nothing


TICK = 5.0
"""Maximum seconds counted between two looks: a driver that was suspended itself has not been waiting."""


@dataclass
class _Waited:
    allowed: float
    heard: str | None
    """The latest heartbeat when waiting began."""
    seconds: float = 0.0


class Watchdog(OfThisCall, tune.Callback):
    """Kills the process of a trial that is silent for too long, with a note; the limit doubles after each kill."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._waited: dict[str, _Waited] = {}
        self._kills: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._looked = time.monotonic()

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._waited[trial.trial_id] = _Waited(FIRST, ray_private.read_heartbeat(trial.trial_id))

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        self._waited[trial.trial_id] = _Waited(SILENT, ray_private.read_heartbeat(trial.trial_id))
        if result["made"] > self._made[trial.trial_id]:
            self._made[trial.trial_id] = result["made"]
            ray_private.forgive_failures(trial)  # RETRIES count per round, not per run

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._waited.pop(trial.trial_id, None)
        ray_private.delete_heartbeat(trial.trial_id)

    on_trial_recover = on_trial_error = on_trial_complete

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **_: Any) -> None:
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, TICK), now
        for trial in trials:
            waited = self._waited.get(trial.trial_id)
            if waited is not None:
                waited.seconds += passed
                if waited.seconds > waited.allowed * 2 ** self._kills[trial.trial_id]:
                    self._kill_unless_heard(trial, waited)

    def _kill_unless_heard(self, trial: Trial, waited: _Waited) -> None:
        heard = ray_private.read_heartbeat(trial.trial_id)
        if heard is not None and heard != waited.heard:
            self._waited[trial.trial_id] = _Waited(float(heard.split()[1]), heard)
            return
        self._kills[trial.trial_id] += 1
        del self._waited[trial.trial_id]
        self.note(f"the process of trial {trial.trial_id} hangs: silent for {waited.seconds:.0f} s; ending it")
        ray_private.kill_process(trial)
