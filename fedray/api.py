"""One run from Python: `fedray.simulate(config)` is what `fedray run` does."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.cells.record import CellRun, RunRecord
from fedray.cells.spec import CellSpec
from fedray.cells.status import STOP, Ending, Status, describe_error
from fedray.common.calls import check_arguments
from fedray.common.cpus import count_usable_cpus
from fedray.common.errors import UserError, truncate_repr
from fedray.common.progress import Moved, describe_resumption, show_bar
from fedray.common.signals import treat_sigterm_as_interrupt
from fedray.common.yaml_files import load_yaml, locate, locate_folder
from fedray.components.plugins import blame
from fedray.config import RunConfig, Runtime
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Dataset
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import Spread, make_rounds, pays
from fedray.engine.problem import Problem, resolve_with
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.process.device import isolate_run, refuse_missing, warn_of_slow_precision
from fedray.engine.result import Result, make_result
from fedray.engine.server.profile import Profile
from fedray.engine.server.simulation import Simulation

Evaluated = Callable[[dict[str, float]], object]
"""Callback with a copy of each newly evaluated round's row; it may return `STOP`."""
log = logging.getLogger("fedray")
NOWHERE: AbstractContextManager[Path | None] = contextlib.nullcontext()
"""A run without checkpoints."""
NAME = 250
"""Maximum number of characters of a run's name."""


@check_arguments
@isolate_run()
def simulate(
    config: Mapping[str, Any] | RunConfig | str | Path,
    *,
    track: str | None = None,
    checkpoints: str | Path | None = None,
    evaluated: Evaluated | None = None,
    profile: Profile | None = None,
    data: Dataset | None = None,
    progress: bool | None = None,
) -> Result:
    """Train one run, from its start or its newest checkpoint to its end.

    A run without a GPU begins in this process. With `runtime.actors: auto` it goes on in client actors, on all free
    CPUs, once that pays; with a number, these actors train from the start. A local Ray is started for them unless one
    is running; `fedray.connect()` keeps one for all calls and accepts a cluster's address, as does `RAY_ADDRESS`.

    Your settings of PyTorch (`no_grad`, autocast, default device and dtype) change no number and are restored at the
    end. Concurrent calls in threads run one at a time.

    Args:
        config: a run's YAML file, or its contents as a nested mapping (docs/configuration.md).
        track: name of the run in MLflow; None: it is not logged there.
        checkpoints: directory for the checkpoints of this configuration, read and written; None: neither.
        evaluated: called with a copy of the row of each newly evaluated round. If it returns `fedray.STOP`, the run
            ends after this round, and its result is kept; any answer but None is refused. With `checkpoints`, another
            call goes on from there. It may call `simulate`, but not wait for a call in another thread, which waits for
            this one.
        profile: filled with the time of each part of a round.
        data: the data set that `config` names, if it is loaded already.
        progress: show a bar on standard error; None: on a terminal and in a notebook.

    Returns:
        The evaluated rounds, the final parameters and the whole state; of the rounds made if `evaluated` ended the run.

    Raises:
        UserError: the configuration, data, model, cluster or store cannot be used, or `checkpoints` belongs to another
        configuration; nothing is logged in this case.
        Diverged: numbers went wrong in a round.

    Examples:
        >>> result = fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": "fedavg"})
        >>> result.summary()["last10_test_accuracy"] > 90
        True
    """
    if isinstance(config, str | Path):
        config = load_yaml(locate("simulate: config", str(config)))
    if track is not None and not (track.strip() and track.isprintable() and len(track) <= NAME):
        found = truncate_repr(track)
        raise UserError(f"simulate: track: found {found}; up to {NAME} printable characters are required")
    directory = None if checkpoints is None else locate_folder("simulate: checkpoints", str(checkpoints))
    parsed = RunConfig.parse(config)
    if data is not None and ":" not in parsed.data.name and data.name != parsed.data.name:
        raise UserError(f"simulate: data: found the data set {data.name}; data.name is {parsed.data.name}")
    data = data or load_data(parsed.data)
    cell = "" if track is None and checkpoints is None else parsed.hash_cell(data.digest)
    held = contextlib.nullcontext(directory)
    tell: Evaluated = (lambda row: None) if evaluated is None else evaluated
    return run_problem(Problem.build(parsed, data), cell, track, held, tell, profile, progress)


@isolate_run()
def run_problem(
    problem: Problem,
    cell: str = "",
    track: str | None = None,
    checkpoints: AbstractContextManager[Path | None] = NOWHERE,
    evaluated: Evaluated = lambda row: None,
    profile: Profile | None = None,
    progress: bool | None = None,
    sweep: str = "",
) -> Result:
    """Run one problem.

    Args:
        problem: data, configuration and clients.
        cell: its hash, needed with `track` or `checkpoints`.
        track: as for `simulate`, like the arguments that are not listed here.
        checkpoints: yields the directory of the checkpoints, None for none; entered once nothing can be refused any
            more but what it refuses itself.
        sweep: name of the sweep in MLflow whose cell it is; empty for none.
    """
    if track is not None:
        from fedray.common.location import refuse_unwritable_store
        from fedray.tracking.mirrors.mirrors import refuse_missing_extras

        refuse_missing_extras(problem.config.runtime.mirror)
        refuse_unwritable_store()
    config = problem.config
    warn_of_slow_precision(config.training.precision, config.runtime.torch_device)
    with treat_sigterm_as_interrupt(), blame(*config.components), _ready(problem) as (problem, backend, spread):
        simulation = Simulation(problem, backend, profile)  # tries the model: before there is a run in MLflow
        if simulation.state.frozen:
            log.info("%s: %s", config.model.name, simulation.counted)
        with checkpoints as directory, show_bar(config.algorithm.name, config.training.rounds, progress) as moved:
            store = None if directory is None else Checkpoints(directory, cell)
            if store is not None:
                store.refuse_other_cell()
            if track is None:
                _run(simulation, store, spread, evaluated, moved)
                return make_result(simulation)
            run = _run_tracked(simulation, store, spread, evaluated, moved, track, cell, sweep)
            return replace(make_result(simulation), run_id=run)


@contextlib.contextmanager
def _ready(problem: Problem) -> Iterator[tuple[Problem, Backend, Spread | None]]:
    """Yield the problem as it will run, its backend, and what may spread it, for the duration of a block.

    Ray is imported only if used.
    """
    config, runtime = problem.config, problem.config.runtime
    if runtime.backend == "inline":
        refuse_missing(runtime.torch_device)
        yield problem, InlineBackend(), None
        return
    with contextlib.ExitStack() as stack:

        def start(most: int | None = None) -> tuple[RunConfig, Backend]:
            from fedray.cluster.ray_backend import RayBackend
            from fedray.cluster.resources import prepare_ray, with_actor_count

            stack.enter_context(prepare_ray(runtime))
            resolved = with_actor_count(config, most)
            return resolved, stack.enter_context(contextlib.closing(RayBackend(resolved.runtime)))

        here = _can_begin_here(runtime)
        most = config.clients.largest_cohort
        most = min(int(count_usable_cpus() / runtime.cpus_per_actor), most) if here else most

        def spread(seconds: float) -> Backend | None:
            if not pays(seconds, most):
                return None
            try:
                resolved, backend = start()
            except UserError as error:
                log.warning("runtime.actors: auto: the run goes on in this process: %s", error)
                return None
            log.info("runtime.actors: auto: the run goes on in %d client actors", resolved.runtime.actor_count)
            return backend

        spreads = runtime.actors == "auto" and runtime.gpus_per_actor == 0
        backend: Backend = InlineBackend()
        if not here:
            resolved, backend = start(1 if spreads else None)
            problem = replace(problem, config=resolved)
        yield problem, backend, spread if spreads else None


def _can_begin_here(runtime: Runtime) -> bool:
    """Return True if this process can be the first actor: no GPU is needed, it has the CPUs, no cluster was named."""
    ray = sys.modules.get("ray")
    named = "RAY_ADDRESS" in os.environ or (ray is not None and ray.is_initialized())
    fits = runtime.cpus_per_actor <= count_usable_cpus()
    return runtime.actors in (1, "auto") and runtime.gpus_per_actor == 0 and fits and not named


def _run(
    simulation: Simulation,
    store: Checkpoints | None,
    spread: Spread | None,
    evaluated: Evaluated,
    moved: Moved,
    resumed: Callable[[list[dict[str, float]]], None] = lambda rows: None,
) -> None:
    """Run all remaining rounds. `resumed` receives the rows of the checkpoint."""
    config = simulation.problem.config
    every = config.runtime.checkpoint_every
    with contextlib.closing(make_rounds(simulation, store, every, spread=spread)) as states:
        state = next(states)
        if line := describe_resumption(config.algorithm.name, state.round, config.training.rounds):
            log.info(line)
        resumed(state.history)
        told = len(state.history)
        for state in states:
            with isolate_run():
                answers = [evaluated(dict(row)) for row in state.history[told:]]
            told = len(state.history)
            moved(state.round, state.history)
            simulation.lap("report")
            for answer in answers:
                if answer is not None and answer is not STOP:
                    raise UserError(f"evaluated: returned {truncate_repr(answer)}; None or fedray.STOP is required")
            if STOP in answers:
                break


def _run_tracked(
    simulation: Simulation,
    store: Checkpoints | None,
    spread: Spread | None,
    evaluated: Evaluated,
    moved: Moved,
    name: str,
    cell: str,
    sweep: str,
) -> str:
    """Run as `_run`, and log rows and outcome to MLflow: into a new run, or with checkpoints into the cell's own.

    Returns:
        The id of the run in MLflow.

    Raises:
        Exception: the error of the run, once its status has been written.
    """
    from fedray.tracking.store import ACTORS, find_sweeps
    from fedray.tracking.tracker import Tracker

    problem, config = simulation.problem, simulation.problem.config
    made = store is not None and config.training.rounds in store.list_rounds()
    tracker, spec = Tracker(), CellSpec(cell, name, resolve_with(config, problem.data))
    tags, parent = config.make_tags() | ({"fedray.sweep": sweep} if sweep else {}), None
    if sweep and (opened := find_sweeps(tracker.client, tracker.experiment).get(sweep)):
        parent = opened.info.run_id
    run = CellRun(spec, tags, parent, problem.make_artefacts(), made)

    def logged(row: dict[str, float]) -> object:
        tracker.log_rows(run, [dict(row)])
        return evaluated(row)

    with contextlib.closing(tracker):
        tracker.open_cell(run, again=store is not None)
        try:
            _run(simulation, store, spread, logged, moved, lambda rows: tracker.log_rows(run, rows))
            record = make_result(simulation).record(simulation.profile)
            if not simulation.done:
                early = f"stopped in round {simulation.state.round}"
                record = replace(record, ending=Ending(Status.STOPPED, early, stopper="a callback"))
        except BaseException as error:
            record = RunRecord(describe_error(error), simulation.state.history)
            raise
        finally:
            if not run.shown:
                run.tags = {**run.tags, ACTORS: str(simulation.backend.processes)}
            tracker.close_cell(run, record)
    return run.id
