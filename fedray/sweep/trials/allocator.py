"""Number of actors for each cell of a sweep, decided when it starts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from fedray.cluster.resources import FreeCapacity, Running, allocate, get_bundle
from fedray.config import RunConfig
from fedray.sweep.plan.cells import Cell
from fedray.sweep.trials.trainable import CellTrainable


@dataclass
class _Live:
    run: RunConfig
    actors: int
    began: float
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    """Time and number of rounds made, at the first and at the last report."""

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [get_bundle(self.run.runtime)] * self.actors

    @property
    def pace(self) -> float | None:
        """Seconds per round, if known."""
        if self.first is None or self.last is None or self.last[1] <= self.first[1]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])

    def estimate_remaining(self, now: float, length: float) -> float:
        """Return seconds until it ends: by its pace, else by the length of a cell on one actor (NaN if unknown)."""
        pace = self.pace
        if pace is not None and self.last is not None:
            ends = self.last[0] + pace * (self.run.training.rounds - self.last[1])
        else:
            ends = self.began + length / self.actors
        return max(ends - now, 0.0) if ends == ends else float("inf")


class ActorAllocator(tune.Callback):
    """Gives actors to cells: the number they ask for, or for `auto` a share of the free capacity.

    Args:
        max_concurrent: maximum number of cells at a time; None for as many as fit.
    """

    def __init__(self, max_concurrent: int | None) -> None:
        self._capacity, self._max = FreeCapacity(), max_concurrent
        self._live: dict[str, _Live] = {}
        self._lengths: list[float] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled for Tuner.restore, which is not used

    def give(self, cell: Cell, left: int) -> int:
        """Return the number of actors for the next cell; 0 if it has to wait.

        Args:
            cell: the cell.
            left: number of cells that have not begun, including this one.
        """
        asked = cell.run.runtime.actors
        actors = self._allocate(cell.run, left) if asked == "auto" else asked
        if actors:
            self._live[cell.hash] = _Live(cell.run, actors, time.monotonic())
        return actors

    def _allocate(self, run: RunConfig, left: int) -> int:
        if self._max is not None:
            left = min(left, self._max - len(self._live))
        if left <= 0:
            return 0
        held = [one for live in self._live.values() for one in live.bundles]
        free = max(self._capacity.count_actors(run.runtime, held), 0 if self._live else 1)
        paced = [(live, live.pace) for live in self._live.values()]
        known = [pace * live.run.training.rounds * live.actors for live, pace in paced if pace is not None]
        length = fmean([*self._lengths, *known]) if self._lengths or known else float("nan")
        now = time.monotonic()
        running = [Running(live.actors, live.estimate_remaining(now, length)) for live in self._live.values()]
        return allocate(free, left, running, length, run.clients.largest_cohort)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        live = self._live.get(trial.config["cell"].hash)
        if live is not None:
            live.last = time.monotonic(), result["made"]
            live.first = live.first or live.last

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        live = self._live.pop(trial.config["cell"].hash, None)
        if live is not None:
            self._lengths.append((time.monotonic() - live.began) * live.actors)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._live.pop(trial.config["cell"].hash, None)

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        """Give a restarted cell as many actors as before, or as many as fit if a node was lost."""
        live = self._live[trial.config["cell"].hash]
        live.first = live.last = None
        if live.run.runtime.actors != "auto":
            return
        held = [one for other in self._live.values() if other is not live for one in other.bundles]
        fits = max(self._capacity.count_actors(live.run.runtime, held), 1)
        if fits < live.actors:
            live.actors = fits
            trial.config["actors"] = fits
            trial.update_resources(CellTrainable.default_resource_request(trial.config))
