"""The only round loop: resume, make the remaining rounds, save when due."""

import contextlib
import time
from collections.abc import Callable, Generator

from fedray.common.errors import UserError
from fedray.common.process import ending
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.disk.rows import RowFile
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend
from fedray.engine.result import Result, make_result
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State, StateDamaged

CHECKPOINT_SECONDS = 300.0
"""A checkpoint is made at least this often, unless a round takes longer."""
START_SECONDS = 8.0
"""Cost of starting Ray and client actors, measured on two cores (three to four seconds each)."""
Spread = Callable[[float], Backend | None]
"""Decides once, after the first round, whether a run goes on in more processes (`runtime.actors: auto`): maps the
seconds that the other rounds would take in this process to these processes, opened by the loop; None to stay."""


def pays(seconds: float, processes: int) -> bool:
    """Return True if work of this many seconds in one process ends clearly sooner in several that have to start."""
    return seconds * (1 - 1 / processes) > 1.5 * START_SECONDS


def make_rounds(
    simulation: Simulation,
    checkpoints: Checkpoints | None = None,
    every: int = 50,
    seconds: float = CHECKPOINT_SECONDS,
    spread: Spread | None = None,
) -> Generator[State]:
    """Make all remaining rounds, starting from the newest checkpoint if there is one; yield the state before and after
    each.

    `checkpoints` is where to resume from and save to, every so many rounds or `seconds`, and at the end; the evaluated
    rounds are written there too, as `rows.jsonl`. `spread` decides after the first round that is made here. If the
    consumer stops early, or at Ctrl-C, the finished rounds are saved. If a client's state turns out to be damaged on
    disk, the run goes back to the checkpoint before. Raises UserError if a checkpoint or a row cannot be written or
    read, or was written by a later version, and Diverged (`Simulation.step`).
    """
    start = simulation.state
    if checkpoints is not None and (resumed := checkpoints.load()) is not None:
        simulation.restore(resumed)
        if simulation.done and not resumed.history:
            raise UserError(f"{checkpoints.directory}: its checkpoint has no rows; start again with --force")
    rows = None if checkpoints is None else RowFile(checkpoints.directory)
    state = simulation.state
    saved, saved_at = state.round, time.monotonic()
    if rows is not None:
        rows.follow(state.history)
    try:
        yield state
        while not simulation.done:
            if ending.is_set():  # a library, such as Ray in a callback of its own, has swallowed the interrupt
                raise KeyboardInterrupt
            began = time.monotonic()
            try:
                simulation.step()
            except StateDamaged as damaged:
                if checkpoints is None:
                    raise
                simulation.restore(checkpoints.fall_back(damaged) or start)
                saved = simulation.state.round
            state = simulation.state
            if rows is not None:
                rows.follow(state.history)
            due = state.round % every == 0 or simulation.done or time.monotonic() - saved_at > seconds
            if checkpoints is not None and due and state.round > saved:
                _save(checkpoints, simulation, saved)
                saved, saved_at = state.round, time.monotonic()
            simulation.lap("checkpoint")
            if spread is not None:
                left = simulation.problem.config.training.rounds - state.round
                backend, spread = spread((time.monotonic() - began) * left), None
                if backend is not None:
                    backend.open(simulation.problem)
                    simulation.backend.close()
                    simulation.backend = backend
            yield state
    except (GeneratorExit, KeyboardInterrupt):
        simulation.restore(state)  # an interrupted round leaves no trace
        if checkpoints is not None and state.round > saved:
            with contextlib.suppress(UserError):  # the caller is gone, and the previous checkpoint is still there
                _save(checkpoints, simulation, saved)
        raise


def _save(checkpoints: Checkpoints, simulation: Simulation, before: int) -> None:
    state = simulation.state
    try:
        checkpoints.save(state, simulation.backend.write_states)
    except OSError as error:
        kept = f"that of round {before} stays; " if before else ""
        raise UserError(
            f"{checkpoints.directory}: the checkpoint of round {state.round} cannot be written: {error.strerror}; "
            f"{kept}make room and run the same command again to resume"
        ) from None


def run(problem: Problem, backend: Backend, state: State | None = None) -> Result:
    """Make all rounds of a problem, from the start or from a state."""
    simulation = Simulation(problem, backend)
    if state is not None:
        simulation.restore(state)
    for _ in make_rounds(simulation):
        pass
    return make_result(simulation)
