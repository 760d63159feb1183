"""States of 64 KiB and more, which stay in the object store: the same numbers for all methods, wherever they train."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedray.algorithms import ALGORITHMS
from fedray.cluster.object_states import STAYS_FROM, ObjectState, stay
from fedray.cluster.ray_backend import RayBackend
from fedray.cluster.trial_backend import TrialBackend
from fedray.config import RunConfig
from fedray.engine.backend import InlineBackend
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import rounds
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.state import loaded
from fedray.sections import Runtime
from tests.cluster.test_object_states import local_ray as local_ray
from tests.cluster.test_ray_backend import config, hashes

pytestmark = pytest.mark.faults
MODEL = {"name": "mlp", "hidden": [256]}
"""P = 65 x 256 + 257 x 10 = 19,210 numbers: 75 KiB."""


@pytest.fixture(scope="module")
def backends(local_ray: None) -> Iterator[dict[int, RayBackend]]:
    made = {n: RayBackend(Runtime(actors=n, cpus_per_actor=1)) for n in (1, 2, 3)}
    yield made
    for backend in made.values():
        backend.close()


def problem(algorithm: object) -> Problem:
    return Problem.build(RunConfig.parse(config(algorithm).resolved() | {"model": MODEL}))


def sizes(simulation: Simulation) -> dict[int, int]:
    return {i: sum(v.nbytes for v in loaded(s).values()) for i, s in simulation.state().clients.items()}


def test_a_vector_is_large_enough_to_stay() -> None:
    """SCAFFOLD keeps one of P numbers per client."""
    simulation = Simulation(problem("scaffold"), InlineBackend())
    simulation.step()
    assert set(sizes(simulation).values()) == {4 * 19_210}
    assert STAYS_FROM <= 4 * 19_210


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_same_numbers_killed_and_resumed(name: str, backends: dict[int, RayBackend], tmp_path: Path) -> None:
    """Inline, as a trial trains itself, with 1, 2, 3 actors, after a SIGKILL in round 2, resumed on others."""
    built = problem(name)
    plain = Simulation(built, InlineBackend())
    expected = hashes(plain)
    large = {i for i, size in sizes(plain).items() if size >= STAYS_FROM and stay(built.config.algorithm)}
    for backend in (TrialBackend(), *backends.values()):
        running = Simulation(built, backend)
        assert hashes(running) == expected
        assert {i for i, kept in running.state().clients.items() if isinstance(kept, ObjectState)} == large

    marker = tmp_path / "marker"
    killed = Simulation(problem({"name": f"tests.plugins:dying_{name}", "marker": str(marker)}), backends[2])
    killed.step()
    marker.touch()
    killed.step()
    assert not marker.exists(), "nothing was killed"
    assert hashes(killed) == expected

    for first, second in ((backends[2], TrialBackend()), (TrialBackend(), backends[3])):
        store = Checkpoints(tmp_path / type(first).__name__)
        half = rounds(Simulation(built, first), store, every=1)
        assert [next(half).round for _ in range(3)] == [0, 1, 2]
        half.close()
        resumed = Simulation(built, second)
        found = Checkpoints(store.directory).load()
        assert found is not None
        assert found.round == 2
        resumed.restore(found)
        assert hashes(resumed) == expected
