"""Watchdog by which the driver ends trials that hang; Tune restarts them from their checkpoints.

A call has one limit (`cluster.timeouts`), enforced by the process that waits: a trial watches its client actors, and
the driver watches its trials, which announce a call that may take long.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from fedray.cluster.ray_private import delete_heartbeat, forgive_failures, kill_process, read_heartbeat
from fedray.cluster.timeouts import FIRST, SILENT
from fedray.sweep.trials.session import OfThisCall

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
        self._waited[trial.trial_id] = _Waited(FIRST, read_heartbeat(trial.trial_id))

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        self._waited[trial.trial_id] = _Waited(SILENT, read_heartbeat(trial.trial_id))
        if result["made"] > self._made[trial.trial_id]:
            self._made[trial.trial_id] = result["made"]
            forgive_failures(trial)  # RETRIES count per round, not per run

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._forget(trial)

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._forget(trial)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._forget(trial)

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
        heard = read_heartbeat(trial.trial_id)
        if heard is not None and heard != waited.heard:
            self._waited[trial.trial_id] = _Waited(float(heard.split()[1]), heard)
            return
        self._kills[trial.trial_id] += 1
        del self._waited[trial.trial_id]
        self.note(f"the process of trial {trial.trial_id} hangs: silent for {waited.seconds:.0f} s; ending it")
        kill_process(trial)

    def _forget(self, trial: Trial) -> None:
        self._waited.pop(trial.trial_id, None)
        delete_heartbeat(trial.trial_id)
