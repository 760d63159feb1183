"""One run from Python: `fedray.simulate(config)`."""

import contextlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.common.errors import Diverged
from fedray.common.signals import sigterm_as_interrupt
from fedray.config import RunConfig, Runtime
from fedray.engine.backend import Backend, InlineBackend
from fedray.engine.checkpoint import Checkpoints
from fedray.engine.device import refuse_missing
from fedray.engine.problem import Problem
from fedray.engine.profile import Profile
from fedray.engine.simulation import Result, Simulation


def make_backend(runtime: Runtime) -> Backend:
    """The backend a configuration asks for; Ray is imported only here, and only where it is wanted."""
    if runtime.backend == "inline":
        return InlineBackend()
    from fedray.cluster.ray_backend import RayBackend
    from fedray.cluster.resources import cluster_nodes, refuse_infeasible

    refuse_infeasible(runtime, cluster_nodes())
    return RayBackend(runtime)


def simulate(
    config: Mapping[str, Any] | RunConfig,
    checkpoints: Path | None = None,
    evaluated: Callable[[dict[str, float]], None] = lambda row: None,
    profile: Profile | None = None,
) -> Result:
    """One run, from start to end, or from the newest checkpoint in the directory `checkpoints`.

    config: nested mapping as a run's YAML file holds it (docs/configuration.md). With `runtime.backend: ray` (the
    default) a local Ray is started unless one is running. `evaluated` is called with each newly evaluated round's row.
    `profile`, where given, is filled with where each round's time went.
    Raises UserError before anything starts, Diverged when numbers go wrong.
    """
    return run_problem(Problem.build(RunConfig.parse(config)), checkpoints, evaluated, profile)


def run_problem(
    problem: Problem,
    checkpoints: Path | None = None,
    evaluated: Callable[[dict[str, float]], None] = lambda row: None,
    profile: Profile | None = None,
) -> Result:
    """As `simulate`, of a problem that is built already."""
    runtime = problem.config.runtime
    with contextlib.ExitStack() as stack:
        if runtime.backend == "ray":
            from fedray.cluster.connection import cluster
            from fedray.cluster.gpu_sharing import Packing

            stack.enter_context(cluster())
            problem = replace(problem, config=Packing().resolve_auto_gpus(problem.config, problem.data))
            runtime = problem.config.runtime
        return _run(problem, make_backend(runtime), checkpoints, evaluated, profile)


def _run(
    problem: Problem,
    backend: Backend,
    checkpoints: Path | None,
    evaluated: Callable[[dict[str, float]], None],
    profile: Profile | None,
) -> Result:
    store = Checkpoints(checkpoints) if checkpoints is not None else None
    try:
        simulation = Simulation(problem, backend, profile)
        state = store.load() if store is not None else None
        if state is not None:
            simulation.restore(state)
        while not simulation.done:
            seen = len(simulation.state().history)
            simulation.step()
            state = simulation.state()
            for row in state.history[seen:]:
                evaluated(row)
            if profile is not None:
                profile.lap("report")
            if store is not None and (state.round % problem.config.runtime.checkpoint_every == 0 or simulation.done):
                store.save(state)
            if profile is not None:
                profile.lap("checkpoint")
        return simulation.result()
    finally:
        backend.close()


def tracked(config: RunConfig, label: str, profile: Profile | None = None) -> Result:
    """Run, and log rows as they come and the outcome. Raises what the run raises, once the run has its status."""
    from fedray.tracking.tracker import CellRun, Tracker

    data = config.data.load()
    problem = Problem.build(config, data)
    problem.network("cpu")  # what cannot run is refused before there is a run in MLflow
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        if config.runtime.backend == "inline":
            refuse_missing(config.runtime.torch_device)
        else:
            from fedray.cluster.connection import cluster
            from fedray.cluster.gpu_sharing import Packing
            from fedray.cluster.resources import cluster_nodes, refuse_infeasible

            stack.enter_context(cluster())
            config = Packing().resolve_auto_gpus(config, data)
            problem = replace(problem, config=config)
            refuse_infeasible(config.runtime, cluster_nodes())
        tracker = Tracker()
        log = CellRun()
        tracker.open_cell(
            log, config.cell(data.digest), label, config.resolved(), config.tags(), parent=None, again=False
        )
        tracker.log_picture(log, problem.picture())
        try:
            result = run_problem(problem, evaluated=lambda row: tracker.log_rows(log, [row]), profile=profile)
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
            tracker.close_cell(
                log, "finished", result.summary() | ({} if profile is None else {"profile": profile.record()})
            )
        finally:
            tracker.close()
    return result
