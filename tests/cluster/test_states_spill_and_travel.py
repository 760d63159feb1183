"""More states than memory, and states on two nodes: what is spilled, and what crosses between nodes."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.util.placement_group import placement_group

from fedray.cluster.object_states import ObjectState
from fedray.cluster.ray_backend import RayBackend
from fedray.config import Runtime
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.conftest import start_ray
from tests.faults.test_nodes import SMALL, WATCHFUL
from tests.sweep.running import REPOSITORY

pytestmark = pytest.mark.faults


def problem(hidden: int, clients: int, per_round: int, rounds: int) -> Problem:
    """SCAFFOLD: each client keeps one vector of P = 75 x hidden + 10 numbers."""
    return small.problem(
        "scaffold",
        (clients, per_round),
        hidden,
        runtime={"device": "cpu", "actors": 2},
        training={"rounds": rounds, "local_steps": 1, "batch_size": 8},
        evaluation={"every": 100, "last": 1},
    )


def test_more_state_than_the_object_store_holds_spills_to_disk() -> None:
    """40 clients of 4 x 75 x 30,000 = 9 MB are 360 MB in a store of 200 MB; every client is drawn twice."""
    built = problem(hidden=30_000, clients=40, per_round=10, rounds=8)
    start_ray(num_cpus=2, object_store_memory=200_000_000)
    backend = RayBackend(Runtime(actors=2))
    try:
        running = Simulation(built, backend)
        found = small.outcome(running)
        kept = running.state.clients
        assert all(isinstance(state, ObjectState) for state in kept.values())
        assert len(kept) * 9_000_000 > 200_000_000, "they fitted"
    finally:
        backend.close()
        ray.shutdown()
    assert found == small.outcome(Simulation(built, InlineBackend()))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, list[Any]]]:
    """A head without a CPU, to which this process is connected, and two nodes of one CPU."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    made = Cluster(initialize_head=True, head_node_args=SMALL | {"num_cpus": 0, "_system_config": dict(WATCHFUL)})
    try:
        workers = [made.add_node(num_cpus=1, **SMALL) for _ in range(2)]
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made, workers
    finally:
        ray.shutdown()
        made.shutdown()


def test_states_stay_on_their_nodes_and_a_lost_node_is_said(nodes: tuple[Cluster, list[Any]]) -> None:
    """Eight clients of 1.2 MB, all of them in every round, equal shards: each stays at its home.

    A state that is read on another node has a copy there, so the bytes that crossed are those of the copies: none,
    and none on the head, where the trial is. After a node is lost with its states, and a new one has come,
    the next round fails as a fault of the cluster: the trial restarts from its checkpoint.
    """
    cluster, workers = nodes
    built = problem(hidden=4000, clients=8, per_round=8, rounds=6)
    group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    backend = RayBackend(Runtime(actors=2), group)
    try:
        running, crossed, homes = Simulation(built, backend), 0, []
        for _ in range(4):
            before = list(running.state.clients.values())
            running.step()
            for state in before:
                assert isinstance(state, ObjectState)
                found = ray.experimental.get_object_locations([state.ref])[state.ref]
                crossed += (len(found["node_ids"]) - 1) * found["object_size"]
            where = {
                i: ray.experimental.get_object_locations([s.ref])[s.ref]["node_ids"]
                for i, s in running.state.clients.items()
                if isinstance(s, ObjectState)
            }
            homes.append(where)
        assert crossed == 0
        assert all(where == homes[0] for where in homes)
        assert {node for at in homes[0].values() for node in at} == {worker.node_id for worker in workers}
        cluster.remove_node(workers[0], allow_graceful=False)
        cluster.add_node(num_cpus=1, **SMALL)  # the bundle and its actor come back there, the states do not
        with pytest.raises(RayError, match="a client's state was lost"):
            running.step()
    finally:
        backend.close()
