"""Tune's schedulers, which end cells that lag behind, applied among comparable cells."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from fedray.cells.spec import flatten
from fedray.cluster.ray_private import make_median_rule
from fedray.config import RunConfig
from fedray.sweep.file.sweep import Sweep


def make_scheduler(sweep: Sweep, rounds: int, run_of: Callable[[str], RunConfig]) -> TrialScheduler:
    """Make the scheduler that the sweep's file asks for.

    Args:
        sweep: the file.
        rounds: largest number of rounds of a cell.
        run_of: returns a cell's configuration by its hash.
    """
    asked = sweep.scheduler
    if asked is None:
        return FIFOScheduler()
    metric, grace, factor = asked.metric, min(asked.grace or max(1, rounds // 9), rounds), asked.factor or 3
    searched = {key for space in sweep.spaces for key in space}

    def make_asha() -> TrialScheduler:
        return ASHAScheduler("round", metric, "max", max_t=rounds, grace_period=grace, reduction_factor=factor)

    def make_median() -> TrialScheduler:
        return make_median_rule("round", metric, grace)

    make = make_asha if asked.name == "asha" else make_median
    return PerGroupScheduler(cache(lambda cell: get_group(run_of(cell), searched)), make)


def get_group(run: RunConfig, searched: Collection[str]) -> str:
    """Return the properties that cells must share to be compared: all that is not searched, including the seed.

    Args:
        run: a cell's configuration.
        searched: the keys of the search. Without a search the grid takes its place: the method's options and
            `training`.
    """
    options = [f"algorithm.{name}" for name in run.algorithm.list_options() if name != "name"]
    searched = searched or ("training", *options)
    fixed = {key: value for key, value in flatten(run.resolve()).items() if not _is_inside(key, searched)}
    return json.dumps(fixed, sort_keys=True)


def _is_inside(key: str, keys: Collection[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


class PerGroupScheduler(FIFOScheduler):
    """One scheduler per group of trials: a draw is compared with draws of its own method, setting and seed.

    Otherwise a method that starts slowly, or a harder setting, would lose all its draws.

    Args:
        group: returns what a cell must share with its rivals, by its hash.
        make: makes a new scheduler.
    """

    def __init__(self, group: Callable[[str], str], make: Callable[[], TrialScheduler]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group, self._each = group, defaultdict[str, TrialScheduler](make)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PerGroupScheduler":
        return self  # Tune copies its arguments; this one belongs to the running sweep

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled for Tuner.restore, which is not used

    def _get_group(self, trial: Trial) -> TrialScheduler:
        return self._each[self._group(trial.config["cell"].hash)]

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._get_group(trial).on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._get_group(trial).on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return str(self._get_group(trial).on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._get_group(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._get_group(trial).on_trial_remove(tune_controller, trial)
