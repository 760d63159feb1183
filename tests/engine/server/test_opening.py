"""The opening: every client trains once before the first round, on any number of processes, and after any resume."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedray.common.errors import Diverged
from fedray.common.vectors import Vectors
from fedray.engine.messages import OPENING, Broadcast, ClientTask, Reply
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
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


class Spoiling(Watched):
    """Reports in the opening that client 2 diverged, and measures every client's own mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[dict[int, Tensor]] = []

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        replies = super().train(broadcast, tasks)
        if any(task.client == 2 for task in tasks):
            replies[0].diverged[2] = "spoilt"
        else:
            opener = self._worker.opener
            assert opener is not None
            self.each.append({task.client: opener.train(broadcast, task)[0].local.mean for task in tasks})
        return replies


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
    assert make(Watched(), 3).state.digest() == make(Watched(halves=True), 3).state.digest()


def test_a_resume_after_a_round_does_not_repeat_it() -> None:
    whole, backend = make(Watched(), 3).state, Watched()
    again = make(backend)
    again.restore(make(Watched(), 1).state)
    again.step()
    again.step()
    assert [t for t, _ in backend.calls] == [1, 2]
    assert (again.state.digest(), again.state.sent) == (whole.digest(), whole.sent)


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
    assert (again.state.digest(), again.state.sent) == (whole.digest(), whole.sent)


def test_traffic() -> None:
    """P = 64 · 16 + 16 + 16 · 10 + 10 = 1210 numbers of 4 bytes. Opening: six clients receive x⁰ and send 16 means and
    one number. The round: three receive x and the consensus, and send u_i.
    """
    size = 64 * 16 + 16 + 16 * 10 + 10
    assert make(InlineBackend(), 1).state.sent == (4 * (6 * size + 3 * (size + 16)), 4 * (6 * 17 + 3 * size))


def test_divergence_is_that_of_round_0() -> None:
    with pytest.raises(Diverged, match="round 0"):
        make(InlineBackend(), 1, lr=1e30, clip_norm=None)


def test_only_the_consensus_lasts_and_it_enters_the_steps() -> None:
    """After the opening x is x⁰ and no client has a state; another consensus gives another round."""
    first, second = make(InlineBackend()), make(InlineBackend())
    start = first.state.theta
    first.step()
    second._open()
    assert second.state.theta.equal(start)
    assert not second.state.clients
    assert second.state.server.consensus.equal(first.state.server.consensus)
    second._state = replace(second.state, server=Vectors(consensus=second.state.server.consensus + 1))
    second.step()
    assert not first.state.theta.equal(second.state.theta)


def test_clients_that_diverge_are_left_out_of_it_if_so_configured() -> None:
    """Client 2's numbers go wrong in the opening alone: the consensus is that of the five others, by their samples."""
    backend = Spoiling()
    simulation = make(backend, on_divergence="drop")
    simulation._open()
    assert backend.calls == [(OPENING, [0, 1, 2, 3, 4, 5]), (OPENING, [0, 1, 3, 4, 5])]
    assert simulation.state.dropped == 1
    others = [i for i in range(len(SIZES)) if i != 2]
    [reply] = backend.each
    expected = sum(SIZES[i] * reply[i] for i in others) / sum(SIZES[i] for i in others)
    assert torch.allclose(simulation.state.server.consensus, expected, atol=1e-6)
