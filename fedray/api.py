"""One run from Python: `fedray.simulate(config)` is what `fedray run` does."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.common.cpus import usable_cpus
from fedray.common.errors import Diverged
from fedray.common.progress import Moved, bar
from fedray.common.signals import sigterm_as_interrupt
from fedray.common.yaml_files import load_yaml
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.backend import Backend, InlineBackend
from fedray.engine.device import refuse_missing, threads_kept
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import rounds
from fedray.engine.problem import Problem
from fedray.engine.profile import Profile
from fedray.engine.result import Result
from fedray.engine.simulation import Simulation
from fedray.sections import Runtime

Evaluated = Callable[[dict[str, float]], None]
"""Is called with each newly evaluated round's row."""


def simulate(
    config: Mapping[str, Any] | RunConfig | str | Path,
    *,
    track: str | None = None,
    checkpoints: str | Path | None = None,
    evaluated: Evaluated = lambda row: None,
    profile: Profile | None = None,
    data: Dataset | None = None,
    progress: bool | None = None,
) -> Result:
    """One run, from its start or from its newest checkpoint to its end.

        result = fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": "fedavg"})
        print(result.history[-1]["test_accuracy"])

    One actor without a GPU is this process. For more a local Ray is started unless one is running; `fedray.connect()`
    keeps one for all calls, and takes a cluster's address. `RAY_ADDRESS` names one, too.

    Args:
        config: a run's YAML file, or its contents as a nested mapping (docs/configuration.md).
        track: name of the run in MLflow; None: it is not logged there.
        checkpoints: directory for the checkpoints of this configuration, read and written; None: neither.
        evaluated: called with the row of each newly evaluated round.
        profile: filled with where the time of each round went.
        data: the data set that `config` names, where it is loaded already.
        progress: show a bar on standard error; None: on a terminal and in a notebook.

    Returns:
        The evaluated rounds, the final parameters and the whole state.

    Raises:
        UserError: the configuration, data, model, cluster or store cannot be used, or `checkpoints` holds those of
            another configuration; nothing has been logged then.
        Diverged: numbers went wrong in a round.
    """
    parsed = RunConfig.parse(load_yaml(Path(config)) if isinstance(config, str | Path) else config)
    if track is not None:
        from fedray.tracking.location import refuse_unwritable_store

        refuse_unwritable_store()
    data = data or parsed.data.load()
    cell = "" if track is None and checkpoints is None else parsed.cell(data.digest)
    store = None if checkpoints is None else Checkpoints(Path(checkpoints), cell)
    if store is not None:
        store.refuse_other_cell()
    problem = Problem.build(parsed, data)
    with sigterm_as_interrupt(), threads_kept(), _ready(problem) as (problem, backend):
        simulation = Simulation(problem, backend, profile)  # tries the model: before there is a run in MLflow
        with bar(parsed.algorithm.name, parsed.training.rounds, progress) as moved:
            if track is None:
                _run(simulation, store, evaluated, moved)
                return simulation.result()
            run = _run_tracked(simulation, store, evaluated, moved, track, cell)
            return replace(simulation.result(), run_id=run)


@contextlib.contextmanager
def _ready(problem: Problem) -> Iterator[tuple[Problem, Backend]]:
    """The problem as it will run, and its backend, for the duration of a block. Ray is imported only if it is used."""
    runtime = problem.config.runtime
    if runtime.backend == "inline" or _is_enough(runtime):
        refuse_missing(runtime.torch_device)
        yield problem, InlineBackend()
        return
    from fedray.cluster.prepare import prepared
    from fedray.cluster.ray_backend import RayBackend
    from fedray.cluster.room import placed

    with prepared([(problem.config, problem.data)]) as (resolved,):
        config = placed(resolved)
        with contextlib.closing(RayBackend(config.runtime)) as ray:
            yield replace(problem, config=config), ray


def _is_enough(runtime: Runtime) -> bool:
    """Whether this process can be the one actor: it needs no GPU, it has the CPUs, and no cluster was named."""
    ray = sys.modules.get("ray")
    named = "RAY_ADDRESS" in os.environ or (ray is not None and ray.is_initialized())
    fits = runtime.cpus_per_actor <= usable_cpus()
    return runtime.actors == 1 and runtime.gpus == 0 and fits and not named


def _run(
    simulation: Simulation,
    store: Checkpoints | None,
    evaluated: Evaluated,
    moved: Moved,
    resumed: Callable[[list[dict[str, float]]], None] = lambda rows: None,
) -> None:
    """All rounds that are left. `resumed` is told the rows that a checkpoint held."""
    every = simulation.problem.config.runtime.checkpoint_every
    with contextlib.closing(rounds(simulation, store, every)) as states:
        state = next(states)
        resumed(state.history)
        told = len(state.history)
        for state in states:
            for row in state.history[told:]:
                evaluated(row)
            told = len(state.history)
            moved(state.round, state.history)
            simulation.lap("report")


def _run_tracked(
    simulation: Simulation, store: Checkpoints | None, evaluated: Evaluated, moved: Moved, name: str, cell: str
) -> str:
    """As `_run`, and rows and outcome go to MLflow: into a new run, or with checkpoints into the cell's own.

    Returns:
        The id of the run in MLflow.

    Raises:
        Exception: what the run raises, once its status has been written.
    """
    from fedray.tracking.records import CellRun
    from fedray.tracking.tracker import Tracker

    problem, profile = simulation.problem, simulation.profile
    config = problem.config
    tracker, log = Tracker(), CellRun()
    again, files = store is not None, problem.artefacts()
    tracker.open_cell(log, cell, name, config.resolved(), config.tags(), parent=None, again=again, files=files)

    def logged(row: dict[str, float]) -> None:
        tracker.log_rows(log, [row])
        evaluated(row)

    try:
        _run(simulation, store, logged, moved, lambda rows: tracker.log_rows(log, rows))
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
        summary = simulation.result().summary() | {"tables": simulation.state().tables}
        tracker.close_cell(log, "finished", summary | ({} if profile is None else {"profile": profile.record()}))
    finally:
        tracker.close()
    return log.id
