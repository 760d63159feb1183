"""The opening: every client trains once before the first round, on any number of processes, and after any resume."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedray.common.errors import Diverged
from fedray.engine.backend import InlineBackend
from fedray.engine.messages import OPENING, Broadcast, ClientTask, Reply
from fedray.engine.simulation import Simulation
from tests.algorithms.digits import SIZES, problem

METHOD = {"name": "feddbe", "kappa": 1.0, "mu": 0.5}
CALM = {"momentum": 0}


class Watched(InlineBackend):
    """Notes who trains when; with `halves`, two replies, the later clients first."""

    def __init__(self, halves: bool = False) -> None:
        self.halves = halves
        self.calls: list[tuple[int, list[int]]] = []

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        self.calls.append((broadcast.round, [task.client for task in tasks]))
        middle = len(tasks) // 2 if self.halves else 0
        parts = [tasks[middle:][::-1], tasks[:middle]] if middle else [tasks]
        return [reply for part in parts for reply in super(Watched, self).train(broadcast, part)]


def make(backend: InlineBackend, rounds: int = 0, **training: object) -> Simulation:
    """A run after some rounds."""
    simulation = Simulation(problem(METHOD, **{**CALM, **training}), backend)
    for _ in range(rounds):
        simulation.step()
    return simulation


def test_everyone_takes_part_once() -> None:
    backend = Watched()
    make(backend, rounds=3)
    assert backend.calls[0] == (OPENING, list(range(len(SIZES))))
    assert [t for t, _ in backend.calls] == [OPENING, 0, 1, 2]
    assert all(len(cohort) == 3 for _, cohort in backend.calls[1:])


def test_a_method_without_an_opening_has_none() -> None:
    backend = Watched()
    Simulation(problem("fedavg"), backend).step()
    assert [t for t, _ in backend.calls] == [0]


def test_it_does_not_depend_on_processes_and_their_order() -> None:
    assert make(Watched(), 3).state.sha256() == make(Watched(halves=True), 3).state.sha256()


def test_a_resume_after_a_round_does_not_repeat_it() -> None:
    whole, backend = make(Watched(), 3).state, Watched()
    again = make(backend)
    again.restore(make(Watched(), 1).state)
    again.step()
    again.step()
    assert [t for t, _ in backend.calls] == [1, 2]
    assert (again.state.sha256(), again.state.sent) == (whole.sha256(), whole.sent)


def test_a_resume_from_the_start_repeats_it_with_the_same_result() -> None:
    """As after a kill before the first checkpoint, or an interrupted first round."""
    whole, backend = make(Watched(), 2).state, Watched()
    again = make(backend)
    start = again.state
    again.step()
    again.restore(start)
    again.step()
    again.step()
    assert [t for t, _ in backend.calls] == [OPENING, 0, OPENING, 0, 1]
    assert (again.state.sha256(), again.state.sent) == (whole.sha256(), whole.sent)


def test_traffic() -> None:
    """P = 64 · 16 + 16 + 16 · 10 + 10 = 1210 numbers of 4 bytes. Opening: six clients receive x⁰ and send 16 means and
    one number. The round: three receive x and the consensus, and send u_i.
    """
    size = 64 * 16 + 16 + 16 * 10 + 10
    assert make(InlineBackend(), 1).state.sent == (4 * (6 * size + 3 * (size + 16)), 4 * (6 * 17 + 3 * size))


def test_divergence_is_that_of_round_0() -> None:
    with pytest.raises(Diverged, match="round 0"):
        make(InlineBackend(), 1, lr=1e30, clip_norm=None)


def test_its_draws_are_its_own() -> None:
    """The opening's models do not enter x, and its order of samples is not the first round's: client 0 takes part in
    round 0 in both runs, which differ in the consensus alone.
    """
    first, second = make(InlineBackend()), make(InlineBackend())
    first.step()
    second._open()
    moved = second.state.server.consensus + 1
    second._state = replace(second.state, server=type(second.state.server)(consensus=moved))
    second.step()
    assert not first.state.theta.equal(second.state.theta)
    assert second.state.server.consensus.equal(moved)
    assert first.state.server.consensus.add(1).equal(moved)
