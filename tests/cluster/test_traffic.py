"""The bytes sent to the driver do not grow with the cohort; work is assigned within the longest-first bound. More
states than memory, and states on two nodes: what is spilled, and what crosses between nodes."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.util.placement_group import placement_group

from fedray.cluster.object_states import ObjectState
from fedray.cluster.ray_backend import ClientActor, RayBackend
from fedray.components.sources import Sources
from fedray.config import Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.conftest import start_ray
from tests.faults.test_nodes import SMALL, WATCHFUL
from tests.sweep.running import REPOSITORY

CLIENTS = 100


class Weighing(RayBackend):
    """Two actors in this process: what each call sends and answers is pickled, as for Ray, and weighed."""

    def open(self, problem: Problem) -> None:
        self._steps = [problem.config.training.count_steps(int(n)) for n in problem.split.train.sizes]
        self._workers = [ClientActor() for _ in range(2)]
        for actor in self._workers:
            actor.open(problem.config.pack(), problem.data, problem.split, Sources())
        self.received: list[int] = []
        self._homes, self._stay, self._apart = {}, False, False

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], kind: str = "") -> list[Any]:
        calls = zip(self._workers, arguments, strict=True)
        answers = [pickle.dumps(getattr(actor, method)(*given), 5) for actor, given in calls]
        self.received.append(sum(map(len, answers)))
        return [pickle.loads(answer) for answer in answers]  # noqa: S301

    def _make_calls(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Any:
        sent = vars(broadcast) | {"theta": broadcast.theta.numpy(), "buffers": broadcast.buffers.numpy()}
        sent["message"] = {name: v.numpy() for name, v in broadcast.message.items()}
        return [(sent, [(tasks[k].client, tasks[k].weight, {}) for k in range(slot, len(tasks), 2)]) for slot in (0, 1)]


def received(algorithm: str, cohort: int) -> int:
    """Bytes into the driver in one round of this cohort."""
    x, y = np.random.default_rng(0).normal(size=(5 * CLIENTS, 64)).astype(np.float32), np.arange(5 * CLIENTS) % 10
    data = Dataset("random", x, y, x[:10], y[:10], 10, client_train=np.repeat(np.arange(CLIENTS), 5))
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 5}
    late = {"every": 2, "last": 1}
    built = small.problem(algorithm, (CLIENTS, cohort), 20, "natural", arrays=data, training=training, evaluation=late)
    backend = Weighing(Runtime(actors=2))
    Simulation(built, backend).step()
    return backend.received[0]


@pytest.mark.parametrize(("algorithm", "kept"), [("fedavg", 0), ("fedcm", 0), ("fedtoga", 1)])
def test_bytes_into_the_driver_do_not_grow_with_the_cohort(algorithm: str, kept: int) -> None:
    """Ten times the clients: none of their updates arrives, only what each must keep (`kept` vectors) and its name. P =
    64 x 20 + 20 + 20 x 10 + 10 = 1,510 numbers: an update is 6,040 bytes, the int64 sum of an actor 12,080. A name is
    below 20 bytes, a kept vector's array below 200 in addition to its numbers."""
    few, many = received(algorithm, 10), received(algorithm, 100)
    assert few > 2 * 12_080
    assert many - few < 90 * (20 + kept * (6_040 + 200))


def problem(hidden: int, clients: int, per_round: int, rounds: int) -> Problem:
    """SCAFFOLD: each client keeps one vector of P = 75 x hidden + 10 numbers."""
    runtime, training = {"device": "cpu", "actors": 2}, {"rounds": rounds, "local_steps": 1, "batch_size": 8}
    late = {"every": 100, "last": 1}
    return small.problem("scaffold", (clients, per_round), hidden, runtime=runtime, training=training, evaluation=late)


@pytest.mark.faults
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


@pytest.mark.faults
def test_states_stay_on_their_nodes_and_a_lost_node_is_said(nodes: tuple[Cluster, list[Any]]) -> None:
    """Eight clients of 1.2 MB, all of them in every round, equal shards: each stays at its home. A state that is read
    on another node has a copy there, so the bytes that crossed are those of the copies: none, and none on the head,
    where the trial is. After a node is lost with its states, and a new one has come, the next round fails as a fault of
    the cluster: the trial restarts from its checkpoint."""
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
            kept = {i: s.ref for i, s in running.state.clients.items() if isinstance(s, ObjectState)}
            homes.append({i: ray.experimental.get_object_locations([s])[s]["node_ids"] for i, s in kept.items()})
        assert crossed == 0
        assert all(where == homes[0] for where in homes)
        assert {node for at in homes[0].values() for node in at} == {worker.node_id for worker in workers}
        cluster.remove_node(workers[0], allow_graceful=False)
        cluster.add_node(num_cpus=1, **SMALL)  # the bundle and its actor come back there, the states do not
        with pytest.raises(RayError, match="a client's state was lost"):
            running.step()
    finally:
        backend.close()
