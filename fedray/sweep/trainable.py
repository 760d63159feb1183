"""One cell of a sweep as a Trainable of Ray Tune: it trains or owns client actors, and outlives its trials."""

import os
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import ray
from ray import tune
from ray.util import get_current_placement_group

from fedray.cells.cell import Cell, flatten
from fedray.cells.record import Record
from fedray.cells.status import describe_error
from fedray.cluster.ray_backend import RayBackend, TrialBackend
from fedray.cluster.ray_private import write_heartbeat
from fedray.cluster.resources import get_bundle
from fedray.cluster.timeouts import Heartbeat
from fedray.common.errors import UserError
from fedray.components.plugins import blame
from fedray.components.sources import Sources, take_sources
from fedray.config import Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import Spread, make_rounds, pays
from fedray.engine.problem import Problem
from fedray.engine.result import make_result
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from fedray.tracking.environment import make_environment_tags

os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # a configuration's paths are relative to the driver's working directory

AnyBackend = TypeVar("AnyBackend", bound=RayBackend | TrialBackend)
REPORTED = ("round", "test_accuracy", "test_loss")
REPORT_SECONDS = 1.0
"""Approximate interval of reports, which carry all rows since the last one; a trial can only be stopped at a report."""


class CellTrainable(tune.Trainable):
    """Runs `config["cell"]`, a `Cell`, on as many actors as `config["actors"]` says.

    Each report holds `made`, the number of rounds, and `rows`, the newly evaluated ones. After a start these are all
    rows, so that none is lost if a driver died between a checkpoint and its log, and the first report has `resumed`,
    the rounds of the checkpoint, if there was one. The last one has `record`.
    For Tune itself, each holds the accuracy and loss of the newest evaluated round; for its scheduler or `stop`, all
    metrics of a newly evaluated one.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """One bundle per actor. With one actor the trial trains itself and has the bundle; otherwise it asks for none.

        All bundles are granted together, so trials cannot deadlock.
        """
        bundles = [get_bundle(config["cell"].run.runtime)] * config["actors"]
        return tune.PlacementGroupFactory(bundles if len(bundles) == 1 else [{}, *bundles])

    def setup(
        self,
        config: dict[str, Any],
        data: "Mapping[str, ray.ObjectRef[Dataset]]" = MappingProxyType({}),
        cells: Path = Path(),
        report_each: bool = False,
        sources: Sources = Sources(),
    ) -> None:
        """Begin the first trial of this process.

        config: as in the class's docstring. data: key -> data set, like the other two the same in all trials of a call
        of Tune. cells: folder of the cells' checkpoints. report_each: True if a round other than its last may end a
        trial. sources: of the call.
        """
        take_sources(sources)
        self._data, self._cells, self._report_each = data, cells, report_each
        self._backend: RayBackend | TrialBackend | None = None
        self._runtime: Runtime | None = None
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._cell: Cell = config["cell"]
        self._actors: int = config["actors"]
        self.config = {}  # otherwise Tune sends it back with every report, and keeps it
        self._rounds: Generator[State] | None = None
        self._history: list[dict[str, float]] = []
        self._made = 0
        self._resumed: int | None = None
        self._reported = 0

    def _open(self) -> tuple[Simulation, Spread | None]:
        """Return the cell at its start, and what may spread it over actors, whose bundles its trial has already."""
        run = self._cell.run
        problem = Problem.build(run, ray.get(self._data[self._cell.data]))
        runtime = run.runtime.model_copy(update={"actors": self._actors})
        spreads = run.runtime.actors == "auto" and self._actors > 1 and not runtime.gpus_per_actor
        if self._backend is None or self._runtime != runtime:
            self._close()
            self._runtime = runtime
            self._backend = TrialBackend() if spreads or runtime.actors == 1 else self._make_actors()
        spread = self._spread if spreads and isinstance(self._backend, TrialBackend) else None
        with blame(*run.components):
            simulation = Simulation(problem, self._equip(self._backend))
        self._refuse_changed_files()
        return simulation, spread

    def _refuse_changed_files(self) -> None:
        """Raise UserError if a file that a key names is not what it was when the cell was planned."""
        planned = self._cell.identity
        was, now = flatten(planned), flatten(self._cell.run.make_identity(planned["data"]["digest"]))
        if changed := [key for key in {**was, **now} if now.get(key) != was.get(key)]:
            raise UserError(
                f"{changed[0]}: {self._cell.get(changed[0])} is not what it was when the sweep began; put it back, and "
                "call again, or call again with the new one: the cells that name it are then others"
            )

    def _make_actors(self) -> RayBackend:
        assert self._runtime is not None  # noqa: S101 (`_open` sets it)
        return RayBackend(self._runtime, get_current_placement_group())

    def _spread(self, seconds: float) -> RayBackend | None:
        if not pays(seconds, self._actors):
            return None
        self._backend = self._equip(self._make_actors())
        return self._backend

    def _equip(self, backend: AnyBackend) -> AnyBackend:
        trial = self.trial_id  # the driver's watchdog reads its heartbeat
        backend.heartbeat = Heartbeat(lambda seconds: write_heartbeat(trial, f"{time.monotonic()} {seconds}"))
        if isinstance(backend, RayBackend):
            backend.data = self._data[self._cell.data]
        return backend

    def step(self) -> dict[str, Any]:
        try:
            if self._backend is not None:
                self._backend.heartbeat.note_report()
            if self._rounds is None:
                self._simulation, spread = self._open()
                every = self._simulation.problem.config.runtime.checkpoint_every
                checkpoints = Checkpoints(self._cells / self._cell.hash, self._cell.hash)
                self._rounds = make_rounds(self._simulation, checkpoints, every, spread=spread)
            with blame(*self._simulation.problem.config.components):
                started = time.monotonic()
                if self._report_each and self._has_more():  # of a checkpoint's rows
                    return {"done": False, **self._take_rows()}
                for state in self._rounds:
                    self._history, self._made = state.history, state.round
                    self._resumed = state.round if self._resumed is None else self._resumed
                    if self._report_each and self._has_more():
                        return {"done": False, **self._take_rows()}
                    if self._simulation.done:
                        break
                    if time.monotonic() - started > REPORT_SECONDS:
                        return {"done": False, **self._take_rows()}
                return self._report_end(make_result(self._simulation).record())
        except ray.exceptions.RayTaskError as error:  # raised by code in an actor, possibly a plug-in's
            return self._report_end(Record(describe_error(error.cause, str(error)), self._history))
        except ray.exceptions.RayError:
            raise  # a failure of the cluster: Tune restarts the trial, which continues from its checkpoint
        except Exception as error:
            return self._report_end(Record(describe_error(error), self._history))

    def _has_more(self) -> bool:
        """Return True if there are rows to report besides that of the end."""
        return len(self._history) - self._reported > self._simulation.done

    def _take_rows(self, last: bool = False) -> dict[str, Any]:
        """Return what a report holds: one row if a round may end a trial, except in its `last` report."""
        count = 1 if self._report_each and not last else len(self._history)
        rows = self._history[self._reported :][:count]
        self._reported += len(rows)
        if self._report_each:  # a scheduler compares each value with others of its round
            seen = dict(rows[-1]) if rows else {}
        else:  # Tune keeps statistics of each number
            newest = self._history[-1] if self._history else {}
            seen = {key: newest[key] for key in REPORTED if key in newest}
        moved = self._backend.moved if isinstance(self._backend, RayBackend) else 0
        spread = {"processes": self._backend.processes if self._backend else 1, "moved_clients": moved}
        first = {"resumed": self._resumed} if self._resumed else {}
        self._resumed = 0
        return {"rows": rows, "made": self._made, **first, **spread, **seen, "round": int(seen.get("round", 0))}

    def _report_end(self, record: Record) -> dict[str, Any]:
        return {"done": True, **self._take_rows(last=True), "record": replace(record, tags=make_environment_tags())}

    def cleanup(self) -> None:
        """Close at the end of the process; the rounds of an unfinished cell (after an interrupt) are kept."""
        if self._rounds is not None:
            self._rounds.close()
        self._close()

    def _close(self) -> None:
        if self._backend is not None:
            self._backend.close()
