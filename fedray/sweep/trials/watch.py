"""The driver's watch over trials that hang: killed, Tune starts them again from their checkpoints."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.tune.experiment import Trial

from fedray.cluster.timeouts import FIRST, SILENT, Silence

NAMESPACE = "fedray/silence"
TICK = 5.0
"""Seconds that count at most between two looks: a driver that was stopped itself has not been waiting."""


def silence_of(trial: str) -> Silence:
    """What a trial's process says of its silence reaches the driver through Ray's key-value store.

    Args:
        trial: Tune's id of it.
    """
    return Silence(partial(_tell, trial))


def _tell(trial: str, seconds: float) -> None:
    _internal_kv_put(trial, f"{time.monotonic()} {seconds}", namespace=NAMESPACE)


@dataclass
class _Waited:
    allowed: float
    seconds: float = 0.0
    told: bytes | None = None


class Watch(tune.Callback):
    """Kills the process of a trial that is silent for longer than it may be, twice as long after each kill.

    Attributes:
        note: shows a line.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._waited: dict[str, _Waited] = {}
        self._kills: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled for Tuner.restore, which is not used

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._waited[trial.trial_id] = _Waited(FIRST, told=_told(trial))

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        self._waited[trial.trial_id] = _Waited(SILENT, told=_told(trial))
        if result["made"] > self._made[trial.trial_id]:
            self._made[trial.trial_id] = result["made"]
            trial.run_metadata.num_failures = 0  # RETRIES are for one place, not for the whole run

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._ended(trial)

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._ended(trial)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **_: Any) -> None:
        self._ended(trial)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **_: Any) -> None:
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, TICK), now
        for trial in trials:
            waited = self._waited.get(trial.trial_id)
            if waited is not None:
                waited.seconds += passed
                if waited.seconds > waited.allowed * 2 ** self._kills[trial.trial_id]:
                    self._expired(trial, waited)

    def _expired(self, trial: Trial, waited: _Waited) -> None:
        told = _told(trial)
        if told is not None and told != waited.told:
            self._waited[trial.trial_id] = _Waited(float(told.split()[1]), told=told)
            return
        self._kills[trial.trial_id] += 1
        del self._waited[trial.trial_id]
        self.note(f"the process of trial {trial.trial_id} hangs: silent for {waited.seconds:.0f} s; ending it")
        actor = trial.temporary_state.ray_actor
        if actor is not None:
            ray.kill(actor)

    def _ended(self, trial: Trial) -> None:
        self._waited.pop(trial.trial_id, None)
        _internal_kv_del(trial.trial_id, namespace=NAMESPACE)


def _told(trial: Trial) -> bytes | None:
    found: bytes | None = _internal_kv_get(trial.trial_id, namespace=NAMESPACE)
    return found
