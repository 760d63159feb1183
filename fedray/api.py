"""One run from Python: `fedray.simulate(config)`."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.backend.inline import Backend, InlineBackend
from fedray.checkpoint import Checkpoints
from fedray.config import RunConfig, Runtime
from fedray.problem import Problem
from fedray.profile import Profile
from fedray.simulation import Result, Simulation


def make_backend(runtime: Runtime) -> Backend:
    """The backend a configuration asks for; Ray is imported only here, and only where it is wanted."""
    if runtime.backend == "inline":
        return InlineBackend()
    from fedray.backend.ray import RayBackend, cluster_nodes, refuse_infeasible

    refuse_infeasible(runtime, cluster_nodes())
    return RayBackend(runtime)


def simulate(config: Mapping[str, Any] | RunConfig, checkpoints: Path | None = None,
             evaluated: Callable[[dict[str, float]], None] = lambda row: None, profile: Profile | None = None
             ) -> Result:
    """One run, from start to end, or from the newest checkpoint in the directory `checkpoints`.

    config: nested mapping as a run's YAML file holds it (docs/configuration.md). With `runtime.backend: ray` (the
    default) a local Ray is started unless one is running. `evaluated` is called with each newly evaluated round's row.
    `profile`, where given, is filled with where each round's time went.
    Raises UserError before anything starts, Diverged when numbers go wrong.
    """
    return run_problem(Problem.build(RunConfig.parse(config)), checkpoints, evaluated, profile)


def run_problem(problem: Problem, checkpoints: Path | None = None,
                evaluated: Callable[[dict[str, float]], None] = lambda row: None, profile: Profile | None = None
                ) -> Result:
    """As `simulate`, of a problem that is built already."""
    runtime = problem.config.runtime
    with contextlib.ExitStack() as stack:
        if runtime.backend == "ray":
            from fedray.cluster import cluster
            from fedray.packing import Packing

            stack.enter_context(cluster())
            problem = replace(problem, config=Packing().settled(problem.config, problem.data))
            runtime = problem.config.runtime
        return _run(problem, make_backend(runtime), checkpoints, evaluated, profile)


def _run(problem: Problem, backend: Backend, checkpoints: Path | None,
         evaluated: Callable[[dict[str, float]], None], profile: Profile | None) -> Result:
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
