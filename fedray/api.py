"""One run from Python: `fedray.simulate(config)` is what `fedray run` does."""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.common.errors import Diverged
from fedray.common.signals import sigterm_as_interrupt
from fedray.config import RunConfig
from fedray.engine.backend import Backend, InlineBackend
from fedray.engine.checkpoint import Checkpoints
from fedray.engine.device import refuse_missing
from fedray.engine.loop import rounds
from fedray.engine.problem import Problem
from fedray.engine.profile import Profile
from fedray.engine.simulation import Result, Simulation

Evaluated = Callable[[dict[str, float]], None]
"""Is called with each newly evaluated round's row."""


def simulate(
    config: Mapping[str, Any] | RunConfig,
    *,
    track: str | None = None,
    checkpoints: Path | None = None,
    evaluated: Evaluated = lambda row: None,
    profile: Profile | None = None,
) -> Result:
    """One run, from its start or from its newest checkpoint to its end.

        result = fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": "fedavg"})
        print(result.history[-1]["test_accuracy"])

    With `runtime.backend: ray` (the default) a local Ray is started unless one is running.

    Args:
        config: nested mapping as a run's YAML file holds it (docs/configuration.md).
        track: name of the run in MLflow; None: it is not logged there.
        checkpoints: directory for checkpoints, read and written; None: neither.
        evaluated: called with the row of each newly evaluated round.
        profile: filled with where the time of each round went.

    Returns:
        The evaluated rounds, the final parameters and the whole state.

    Raises:
        UserError: the configuration, data, model, cluster or store cannot be used; nothing has been logged then.
        Diverged: numbers went wrong in a round.
    """
    parsed = RunConfig.parse(config)
    if track is not None:
        from fedray.tracking.store import refuse_unwritable_store

        refuse_unwritable_store()
    data = parsed.data.load()
    problem = Problem.build(parsed, data)
    with sigterm_as_interrupt(), _ready(problem) as (problem, backend):
        simulation = Simulation(problem, backend, profile)  # tries the model: before there is a run in MLflow
        store = None if checkpoints is None else Checkpoints(checkpoints)
        if track is None:
            _run(simulation, store, evaluated)
        else:
            _run_tracked(simulation, store, evaluated, track, parsed.cell(data.digest))
        return simulation.result()


@contextlib.contextmanager
def _ready(problem: Problem) -> Iterator[tuple[Problem, Backend]]:
    """The problem as it will run, and its backend, for the duration of a block. Ray is imported only if it is used."""
    if problem.config.runtime.backend == "inline":
        refuse_missing(problem.config.runtime.torch_device)
        yield problem, InlineBackend()
        return
    from fedray.cluster.prepare import prepared
    from fedray.cluster.ray_backend import RayBackend

    with prepared([(problem.config, problem.data)]) as (config,), contextlib.closing(RayBackend(config.runtime)) as ray:
        yield replace(problem, config=config), ray


def _run(simulation: Simulation, store: Checkpoints | None, evaluated: Evaluated) -> None:
    every = simulation.problem.config.runtime.checkpoint_every
    with contextlib.closing(rounds(simulation, store, every)) as states:
        told = len(next(states).history)
        for state in states:
            for row in state.history[told:]:
                evaluated(row)
            told = len(state.history)
            simulation.lap("report")


def _run_tracked(simulation: Simulation, store: Checkpoints | None, evaluated: Evaluated, name: str, cell: str) -> None:
    """As `_run`, and rows and outcome go to MLflow. Raises what the run raises, once its status has been written."""
    from fedray.tracking.tracker import CellRun, Tracker

    problem, profile = simulation.problem, simulation.profile
    config = problem.config
    tracker, log = Tracker(), CellRun()
    tracker.open_cell(log, cell, name, config.resolved(), config.tags(), parent=None, again=False)
    tracker.log_picture(log, problem.picture())

    def logged(row: dict[str, float]) -> None:
        tracker.log_rows(log, [row])
        evaluated(row)

    try:
        _run(simulation, store, logged)
    except Diverged as error:
        tracker.close_cell(log, "diverged", {"diverged_round": error.round}, str(error))
        raise
    except KeyboardInterrupt:
        tracker.close_cell(log, "interrupted", {}, "the run was interrupted")
        raise
    except BaseException as error:
        tracker.close_cell(log, "failed", {"traceback": traceback.format_exc()}, f"{type(error).__name__}: {error}")
        raise
    else:
        summary = simulation.result().summary()
        tracker.close_cell(log, "finished", summary | ({} if profile is None else {"profile": profile.record()}))
    finally:
        tracker.close()
