"""One cell on its own, found in a file, locked, run and logged: `fedray run`, `fedray.simulate`, `fedray verify`."""

import contextlib
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedray.cells.cell import Cell
from fedray.cells.record import Record, Rows
from fedray.cells.sheet import Sheet
from fedray.cells.status import STOP, Ending, Status, describe_error
from fedray.common.errors import Diverged, UserError, name_place, truncate_repr
from fedray.common.process import count_usable_cpus, treat_sigterm_as_interrupt
from fedray.common.progress import Moved, describe_resumption, show_bar
from fedray.components.identity import hash_of
from fedray.components.plugins import blame
from fedray.components.sources import hold_sources
from fedray.config import RunConfig, Runtime
from fedray.datasets.base import load_data
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import Spread, make_rounds, pays
from fedray.engine.problem import Problem, resolve_with
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.process.device import isolate_run, refuse_missing, warn_of_slow_precision
from fedray.engine.result import Result, make_result
from fedray.engine.server.profile import Profile
from fedray.engine.server.simulation import Simulation
from fedray.sweep import storage
from fedray.sweep.draws import iter_points
from fedray.sweep.plan import Problems, make_label, make_sheet
from fedray.sweep.points import apply_draw, with_key
from fedray.sweep.sweep import Sweep
from fedray.tracking.environment import PREFIX, make_environment_tags
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import read_stored_sweep

if TYPE_CHECKING:
    from fedray.tracking.tracker import Tracker

Evaluated = Callable[[dict[str, float]], object]
"""Callback with a copy of each newly evaluated round's row; it may return `STOP`."""
log = logging.getLogger("fedray")
Held = AbstractContextManager[tuple[Path | None, "Tracker | None"]]
"""Yields the directory of checkpoints, None for none, and what has the store open."""
NOWHERE: Held = contextlib.nullcontext((None, None))
"""A run without checkpoints."""


def load_cell(
    document: Mapping[str, Any],
    file: Path,
    which: str | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    backend: str | None = None,
) -> tuple[Cell, Problem, Sheet | None]:
    """Return the cell of a run's file, or one cell of a sweep's file, its problem, and the sweep's sheet.

    The sheet is None unless `which` names a cell of it and the changes leave it that cell.
    """
    listed, problems = None, Problems()
    if "base" in document:
        sweep = Sweep.parse(document, file=file)
        if which is None:
            written = next(iter_points(sweep))
        else:
            written, listed = pick_point(sweep, which, problems)
    elif which is not None:
        raise UserError(f"--cell: {file} is one run, not a sweep")
    else:
        written = dict(document)
    point = apply_draw(written, changes)
    given = " and ".join(["--set"] * bool(changes) + ["--backend"] * (backend is not None))
    with name_place(f"{file} with {given}" if given else file):
        run = RunConfig.parse(point if backend is None else with_key(point, "runtime.backend", backend))
    cell = problems.make_cell(run, make_label(point, run))
    if listed is not None:
        same = listed.cells.get(cell.hash)
        listed, cell = (listed, replace(same, config=cell.config, packed=cell.packed)) if same else (None, cell)
    problem = problems.get_problem(cell)
    problem.build_network("cpu")  # before anything is written
    return cell, problem, listed


def pick_point(sweep: Sweep, which: str, problems: Problems) -> tuple[dict[str, Any], Sheet]:
    """Return one configuration of a sweep as the file has it, and the sweep's sheet, without what the store knows."""
    text = sweep.to_yaml()
    if sweep.tune is not None:
        if sweep.tune.blocks:
            raise UserError(f"--cell: {sweep.name} has tune.blocks, so it is several sweeps; run it whole")
        from fedray.sweep.stages import make_tune_stage  # here: it imports Ray

        sweep = make_tune_stage(sweep)
    sheet, points = make_sheet(sweep, problems, check=False, file=text)
    first, *others = sheet.select(which, "--cell")
    if others:
        label = sheet.cells[first].label
        raise UserError(f"--cell: {which!r} names {1 + len(others)} cells, such as {label!r}; one is required")
    return next(point for point, hash in points if hash == first), sheet


@contextlib.contextmanager
def hold_cell(
    hash: str, again: bool, listed: Sheet | None = None, private: bool = False
) -> Iterator[tuple[Path, "Tracker"]]:
    """Lock a cell for the duration of a block; yield its directory, the same that a sweep would use, and a tracker.

    A sheet in the store is closed if none of its cells is left then, unless a driver of the whole sweep will, which
    does not use a `private` store. Raises UserError if another process runs the cell.
    """
    from fedray.tracking.tracker import Tracker  # here: MLflow takes seconds to import

    tracker = Tracker()  # before anything is written to the storage
    directory, has_ended = storage.get_cell_dir(hash), True

    def is_alone(sheet: Sheet) -> bool:
        return private or not storage.is_sweep_running(sheet.name)

    with storage.CellLocks(storage.get_cell_locks_file()) as locks:
        if not locks.take([hash]):
            raise UserError(f"run: another process is running this cell, {hash}; wait for it, or give --no-track")
        if again:
            tracker.supersede([hash])
            shutil.rmtree(directory, ignore_errors=True)
        if listed is not None and is_alone(listed):
            with storage.lock_registration():
                tracker.list_sweep(listed)
        try:
            yield storage.make_cell_dir(hash), tracker
        except KeyboardInterrupt:
            has_ended = False
            raise
        finally:
            if has_ended and listed is not None and is_alone(listed):
                tracker.close_whole_sweep(listed)  # fails at once if the block gave the store up


@isolate_run()
@hold_sources()
def run_problem(
    problem: Problem,
    cell: str = "",
    track: str | None = None,
    checkpoints: Held = NOWHERE,
    evaluated: Evaluated = lambda row: None,
    profile: Profile | None = None,
    progress: bool | None = None,
    sweep: str = "",
) -> Result:
    """Run one problem; arguments that are not named here are as for `fedray.simulate`.

    cell: its hash, needed with `track` or `checkpoints`. checkpoints: entered once nothing can be refused any more but
    what it refuses itself. sweep: name of the sweep in MLflow whose cell it is; empty for none.
    """
    if track is not None:
        from fedray.common.location import refuse_unwritable_store
        from fedray.tracking.mirrors import refuse_missing_extras

        refuse_missing_extras(problem.config.runtime.mirror)
        refuse_unwritable_store()
    config = problem.config
    warn_of_slow_precision(config.training.precision, config.runtime.torch_device)
    with treat_sigterm_as_interrupt(), blame(*config.components), _ready(problem) as (problem, backend, spread):
        simulation = Simulation(problem, backend, profile)  # tries the model: before there is a run in MLflow
        if simulation.state.frozen:
            log.info("%s: %s", config.model.name, simulation.counted)
        bar = show_bar(config.algorithm.name, config.training.rounds, progress)
        with checkpoints as (directory, tracker), bar as moved:
            store = None if directory is None else Checkpoints(directory, cell)
            if store is not None:
                store.refuse_other_cell()
            if track is None:
                _run(simulation, store, spread, evaluated, moved)
                return make_result(simulation)
            with _log(simulation, store, track, cell, sweep, tracker) as (run, log_rows):
                _run(simulation, store, spread, evaluated, moved, log_rows)
            return replace(make_result(simulation), run_id=run.id)


@contextlib.contextmanager
def _ready(problem: Problem) -> Iterator[tuple[Problem, Backend, Spread | None]]:
    """Yield the problem as it will run, its backend, and what may spread it, for the duration of a block."""
    config, runtime = problem.config, problem.config.runtime
    if runtime.backend == "inline":
        refuse_missing(runtime.torch_device)
        yield problem, InlineBackend(), None
        return
    with contextlib.ExitStack() as stack:

        def start(most: int | None = None) -> tuple[RunConfig, Backend]:
            from fedray.cluster.ray_backend import RayBackend
            from fedray.cluster.resources import hold_bundles, prepare_ray, with_actor_count

            stack.enter_context(prepare_ray(runtime))
            resolved = with_actor_count(config, most)
            group = stack.enter_context(hold_bundles(resolved.runtime))
            return resolved, stack.enter_context(contextlib.closing(RayBackend(resolved.runtime, group)))

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
    named = os.environ.get("RAY_ADDRESS", "") not in ("", "local") or (ray is not None and ray.is_initialized())
    fits = runtime.cpus_per_actor <= count_usable_cpus()
    return runtime.actors in (1, "auto") and runtime.gpus_per_actor == 0 and fits and not named


def _run(
    simulation: Simulation,
    store: Checkpoints | None,
    spread: Spread | None,
    evaluated: Evaluated,
    moved: Moved,
    log_rows: Callable[[Rows], None] = lambda rows: None,
) -> None:
    """Run all remaining rounds. `log_rows` receives the rows of the checkpoint, and those of each new round."""
    config = simulation.problem.config
    every = config.runtime.checkpoint_every
    with contextlib.closing(make_rounds(simulation, store, every, spread=spread)) as states:
        state = next(states)
        if line := describe_resumption(config.algorithm.name, state.round, config.training.rounds):
            log.info(line)
        log_rows(state.history)
        told = len(state.history)
        for state in states:
            new = state.history[told:]
            if new:
                log_rows(new)
            with isolate_run():
                answers = [evaluated(dict(row)) for row in new]
            told = len(state.history)
            moved(state.round, state.history)
            simulation.lap("report")
            for answer in answers:
                if answer is not None and answer is not STOP:
                    raise UserError(f"evaluated: returned {truncate_repr(answer)}; None or fedray.STOP is required")
            if STOP in answers:
                break


@contextlib.contextmanager
def _log(
    simulation: Simulation, store: Checkpoints | None, name: str, cell: str, sweep: str, tracker: "Tracker | None"
) -> Iterator[tuple[CellRun, Callable[[Rows], None]]]:
    """Log the outcome of a block to MLflow: into a new run, or with checkpoints into the cell's own.

    Yields the run, and what logs its rows, for which nobody waits; raises the error of the block once the run's status
    has been written.
    """
    from fedray.tracking.store import ACTORS, find_sweeps
    from fedray.tracking.tracker import Tracker

    problem, config = simulation.problem, simulation.problem.config
    made = store is not None and config.training.rounds in store.list_rounds()
    spec, tracker = Cell(cell, name, resolve_with(config, problem.data)), tracker or Tracker()
    outbox = tracker.outbox
    tags, parent = config.make_tags() | ({"fedray.sweep": sweep} if sweep else {}), None
    if sweep and (opened := find_sweeps(tracker.reader, tracker.experiment).get(sweep)):
        parent = opened.info.run_id
    run = CellRun(spec, tags, parent, problem.make_artefacts(), made)

    def log_rows(rows: Rows) -> None:
        outbox.send(tracker.log_rows, run, rows)
        outbox.finish(wait=False)

    with outbox:
        (outbox.ask if store is None else outbox.send)(tracker.open_cell, run, store is not None)
        try:
            yield run, log_rows
            record = make_result(simulation).record(simulation.profile)
            if not simulation.done:
                early = f"stopped in round {simulation.state.round}"
                record = replace(record, ending=Ending(Status.STOPPED, early, stopper="a callback"))
        except BaseException as error:
            record = Record(describe_error(error), simulation.state.history)
            raise
        finally:
            if not run.shown:
                run.tags = {**run.tags, ACTORS: str(simulation.backend.processes)}
            outbox.send(tracker.close_cell, run, record)
            outbox.ask(tracker.close)


DECIDING = ("system", "cpu", "gpu", "torch")
"""Tags of the environment that the last bits of a run depend on."""


def verify(name: str, count: int) -> Iterator[tuple[str, str]]:
    """Run `count` finished cells, spread evenly over a sweep of the store, again here; yield for each `same`,
    `different` or `not comparable`, and its label with the reason."""
    sweep = read_stored_sweep(name)
    finished = [cell for hash, cell in sweep.cells.items() if sweep.get_status(hash) is Status.FINISHED]
    if not finished:
        raise UserError(f"{name}: has no finished cell to verify")
    count = min(count, len(finished))
    for k in range(count):
        cell = finished[k * len(finished) // count]
        yield _judge(cell, sweep.records[cell.hash])


def _judge(cell: Cell, stored: Record) -> tuple[str, str]:
    try:
        run = RunConfig.parse(cell.config)
        config = run.model_copy(update={"runtime": run.runtime.model_copy(update={"backend": "inline"})})
        data = load_data(config.data)
        identity = config.make_identity(data.digest)
        if hash_of(identity) != cell.hash:
            keys = sorted(key for key in identity.keys() | cell.identity if identity.get(key) != cell.identity.get(key))
            return "not comparable", f"{cell.label}: other settings, data or sources: {', '.join(keys)}"
        record = run_problem(Problem.build(config, data)).record()
    except Diverged as error:
        return "different", f"{cell.label}: {error}"
    except UserError as error:  # no GPU here, or no such class
        return "not comparable", f"{cell.label}: {error}"
    theta = record.hashes["theta_sha256"], stored.hashes.get("theta_sha256", "missing")
    wrong = [f"theta_sha256 is {theta[0][:16]}, was {theta[1][:16]}"] if theta[0] != theta[1] else []
    for name, value in record.history[-1].items():
        if name != "round" and value != (there := stored.totals.get(name, math.nan)):
            wrong.append(f"{name} is {value:.17g}, was {there:.17g}")
    here = make_environment_tags()
    tags = {key: (stored.tags.get(PREFIX + key, "none"), here.get(PREFIX + key, "none")) for key in DECIDING}
    why = [f"{key} was {there}, here it is {mine}" for key, (there, mine) in tags.items() if wrong and there != mine]
    more = [f"and {len(wrong) - 3} more"] if wrong[3:] else []
    said = "; ".join([", ".join(wrong[:3]), *more, *why])
    return ("different", f"{cell.label}: {said}") if wrong else ("same", cell.label)
