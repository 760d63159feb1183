"""One cell of a sweep as Ray Tune runs it: a Trainable that trains or owns client actors, and outlives its trials."""

import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util import get_current_placement_group

from fedray.cluster.ray_backend import RayBackend
from fedray.cluster.resources import bundle
from fedray.cluster.trial_backend import TrialBackend
from fedray.common.errors import Diverged, UserError
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import rounds
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.state import State
from fedray.sections import Runtime
from fedray.sweep.trials.trial_cell import TrialCell
from fedray.sweep.trials.watch import silence_of

REPORT_SECONDS = 1.0
"""A report is made about this often; rounds evaluated in between travel together. Only then can a trial be stopped."""


class DataRef:
    """A data set's object reference, wrapped so that Ray hands it on instead of fetching it."""

    def __init__(self, data: Dataset) -> None:
        self.ref = ray.put(data)


class CellTrainable(tune.Trainable):
    """Runs `config["cell"]`, a `TrialCell`.

    Each report holds `made`, the number of rounds, and `rows`, the newly evaluated ones; the first one after a start
    holds all there are, so that nothing is lost when a driver died between a checkpoint and its log. The last one has
    `status`: finished, diverged or failed.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return resources(config["cell"])

    def setup(self, config: dict[str, Any], data: Mapping[str, DataRef] | None = None) -> None:
        if data is not None:
            self._data = data
        self._backend: RayBackend | TrialBackend | None = None
        self._runtime: Runtime | None = None
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._cell = config["cell"].told
        self.config = {}  # Tune would send it back with every report, and keep it
        self._rounds: Generator[State] | None = None
        self._history: list[dict[str, float]] = []
        self._made = 0
        self._reported = 0

    def _open(self) -> Simulation:
        run = RunConfig.parse(self._cell["run"])
        reference = self._data[self._cell["data"]].ref
        problem = Problem.build(run, ray.get(reference))
        runtime = run.runtime.model_copy(update={"actors": self._cell["actors"]})
        if self._backend is None or self._runtime != runtime:
            self._close()
            self._runtime = runtime
            group = get_current_placement_group()
            self._backend = TrialBackend() if runtime.actors == 1 else RayBackend(runtime, group)
        self._backend.silence = silence_of(self.trial_id)
        if isinstance(self._backend, RayBackend):
            self._backend.data = reference
        return Simulation(problem, self._backend)

    def step(self) -> dict[str, Any]:
        try:
            if self._backend is not None:
                self._backend.silence.reported()
            if self._rounds is None:
                self._simulation = self._open()
                every = self._simulation.problem.config.runtime.checkpoint_every
                self._rounds = rounds(self._simulation, Checkpoints(Path(self._cell["directory"])), every)
            return self._advance(self._simulation, self._rounds)
        except Diverged as error:
            return self._last("diverged", message=str(error), diverged_round=error.round)
        except UserError as error:
            return self._last("failed", message=str(error))
        except ray.exceptions.RayTaskError as error:  # raised by the code that an actor ran, a user's own perhaps
            return self._last("failed", message=f"{type(error.cause).__name__}: {error.cause}", traceback=str(error))
        except ray.exceptions.RayError:
            raise  # the cluster's fault: Tune starts the trial again, and it goes on from its checkpoint
        except Exception as error:
            return self._last("failed", message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())

    def _advance(self, simulation: Simulation, states: Iterator[State]) -> dict[str, Any]:
        started = time.monotonic()
        for state in states:
            self._history, self._made = state.history, state.round
            if simulation.done:
                break
            new = len(state.history) > self._reported
            if (new and self._cell["report_each"]) or time.monotonic() - started > REPORT_SECONDS:
                return {"done": False, "status": "running", **self._rows()}
        return self._last("finished", tables=simulation.state().tables, **simulation.result().summary())

    def _rows(self) -> dict[str, Any]:
        rows, self._reported = self._history[self._reported :], len(self._history)
        last = rows[-1] if rows and self._cell["report_each"] else {}  # Tune keeps statistics of each number
        return {"rows": rows, "made": self._made, **last, "round": int(rows[-1]["round"]) if rows else 0}

    def _last(self, status: str, **more: Any) -> dict[str, Any]:
        return {"done": True, **self._rows(), "status": status, **more}

    def cleanup(self) -> None:
        """The end of the process; of an unfinished cell (the sweep was told to stop) the rounds made are kept."""
        if self._rounds is not None:
            self._rounds.close()
        self._close()

    def _close(self) -> None:
        if self._backend is not None:
            self._backend.close()


def resources(cell: TrialCell) -> tune.PlacementGroupFactory:
    """A bundle per actor; with one actor the trial trains itself and has it, else it asks for nothing.

    All are given at once, so trials cannot deadlock on one another.
    """
    bundles = [bundle(RunConfig.parse(cell.told["run"]).runtime)] * cell.actors
    return tune.PlacementGroupFactory(bundles if len(bundles) == 1 else [{}, *bundles])
