"""Clients' states stay where they were computed: the trial holds references, and numbers are those of one process."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from fedray.cluster.object_states import SLACK, STAYS_FROM, ObjectState, assign_longest_first, assign_to_actors
from fedray.cluster.ray_backend import RayBackend
from fedray.common.vectors import Vectors
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.disk.client_files import Version
from fedray.engine.loop import make_rounds
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small

ROUNDS = 5
METHODS = ("scaffold", "fedrep", "local-only")


def problem(algorithm: str, personal: bool = True) -> Problem:
    return small.problem(
        algorithm,
        (10, 4),
        12,
        0.5,
        training={"rounds": ROUNDS, "local_epochs": 1, "batch_size": 32},
        evaluation={"every": 2, "personal": {"epochs": 1, "every": 2} if personal else None},
    )


@pytest.fixture(scope="module", autouse=True)
def _every_state_stays(backends: dict[int, RayBackend]) -> Iterator[None]:
    """In the object store, however small."""
    for backend in backends.values():
        backend.stays_from = 1
    yield
    for backend in backends.values():
        backend.stays_from = STAYS_FROM


@pytest.mark.parametrize("method", METHODS)
def test_the_same_numbers_where_states_stay(method: str, backends: dict[int, RayBackend], tmp_path: Path) -> None:
    """Inline, with 1 and 3 actors, and from a checkpoint that the actors wrote, on other numbers of actors."""
    built = problem(method)
    expected = small.outcome(Simulation(built, InlineBackend()))
    for actors, backend in backends.items():
        running = Simulation(built, backend)
        assert small.outcome(running) == expected
        assert running.state.clients
        assert all(isinstance(kept, ObjectState) for kept in running.state.clients.values()), actors
    half = make_rounds(Simulation(built, backends[3]), Checkpoints(tmp_path), every=2)
    assert [next(half).round for _ in range(4)] == [0, 1, 2, 3]
    half.close()
    for backend in (InlineBackend(), backends[1]):
        resumed = Simulation(built, backend)
        found = Checkpoints(tmp_path).load()
        assert found is not None
        assert found.round == 3
        resumed.restore(found)
        assert small.outcome(resumed) == expected


def test_states_survive_the_actors_that_computed_them(backends: dict[int, RayBackend]) -> None:
    """SIGKILL of the only actor between two rounds: references are the trial's, the bytes the node's."""
    built, backend = problem("scaffold"), backends[1]
    running = Simulation(built, backend)
    for _ in range(2):
        running.step()
    (actor,) = backend._actors
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    assert small.outcome(running) == small.outcome(Simulation(built, InlineBackend()))


def test_the_hashes_are_computed_where_the_states_lie(backends: dict[int, RayBackend]) -> None:
    """`result()` asks the actors; the driver then knows the hashes without a state."""
    running = Simulation(problem("scaffold"), backends[3])
    running.step()
    kept = running.state.clients
    assert all(isinstance(s, ObjectState) and s.sha256 is None for s in kept.values())
    running.hash_states()
    hashes = {i: s.sha256 for i, s in kept.items() if isinstance(s, ObjectState)}
    assert None not in hashes.values()
    plain = Simulation(problem("scaffold"), InlineBackend())
    plain.step()
    assert plain.state.digest() == running.state.digest()


def test_a_full_disk_is_the_same_error_from_an_actor(backends: dict[int, RayBackend], tmp_path: Path) -> None:
    running = Simulation(problem("scaffold"), backends[3])
    running.step()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match="Not a directory"):
        backends[3].write_states(
            str(tmp_path / "file"),
            [Version(i, 1, s) for i, s in running.state.clients.items()],
        )


def test_what_is_read_lies_in_the_store_and_not_in_the_reader(local_ray: None) -> None:
    """No copy: the tensor's memory is that of the store's array."""
    state = ObjectState(ray.put({"h": np.arange(1 << 18, dtype=np.float32)}))
    first, second = state.load(), state.load()
    assert isinstance(first, Vectors)
    assert first.h.data_ptr() == second.h.data_ptr()
    assert torch.equal(first.h, torch.arange(1 << 18, dtype=torch.float32))


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_clients_stay_at_home_within_the_balance(parts: int) -> None:
    """300 cohorts of unequal clients: never longer than 1.1 x longest-first's largest share; most stay at home."""
    rng = np.random.default_rng(0)
    sizes = 1 + rng.dirichlet(np.full(10, 0.5), 300).max(1) * 100
    homes: dict[int, int] = {}
    stayed = moved = 0
    for _ in range(300):
        cohort = rng.choice(300, 10 * parts, replace=False)
        loads = [int(sizes[i]) for i in cohort]
        shares = assign_to_actors(loads, [homes.get(int(i)) for i in cohort], parts)
        assert sorted(k for share in shares for k in share) == list(range(len(cohort)))
        best = max(sum(loads[k] for k in share) for share in assign_longest_first(loads, parts))
        assert max(sum(loads[k] for k in share) for share in shares) <= SLACK * best
        for part, share in enumerate(shares):
            for k in share:
                stayed += homes.get(int(cohort[k])) == part
                moved += homes.get(int(cohort[k]), part) != part
                homes[int(cohort[k])] = part
    assert stayed > 1.5 * moved


def test_without_homes_it_is_longest_first() -> None:
    loads = [5, 3, 9, 1, 1, 7]
    assert assign_to_actors(loads, [None] * 6, 3) == assign_longest_first(loads, 3)
