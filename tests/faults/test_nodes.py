"""Several nodes: each is a Ray node of its own on this machine (`ray.cluster_utils.Cluster`)."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from fedray.cluster.resources import refuse_unseen
from fedray.common.errors import UserError
from tests import small
from tests.sweep.running import REPOSITORY, SWEEP, done, logged_once, outcome, runs, start, state_hashes, undisturbed

SMALL = {"object_store_memory": 100_000_000, "include_dashboard": False, "node_ip_address": "127.0.0.2"}
"""Loopback, and not the address that Ray replaces by the machine's own."""
WATCHFUL = {f"health_check_{name}_ms": 1000 for name in ("initial_delay", "period")}
WATCHFUL |= {"health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}
"""A lost node is noticed within seconds. Each Ray gets a copy, in which it notes the folder that it spills to."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head node with one CPU; this process is connected to it. The nodes can import the plug-ins that sweeps name.
    They require no token, although an earlier Ray of this process may have set the mode for all later ones."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(initialize_head=True, head_node_args=SMALL | {"num_cpus": 1, "_system_config": dict(WATCHFUL)})
    try:
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)


def busy(node: Any) -> bool:
    """Whether the whole CPU of a node is taken."""
    return ray._private.state.available_resources_per_node().get(node.node_id, {}).get("CPU", 0.0) == 0.0


def slow(seeds: int, nap: float) -> dict[str, Any]:
    return SWEEP | {"grid": {"algorithm": [{"name": "tests.plugins:Slow", "nap": nap}], "seed": list(range(seeds))}}


@pytest.mark.faults
def test_a_node_lost_and_a_late_one_change_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Five cells of 18 s on a head and a node of one CPU each. The node is SIGKILLed when both run a cell and there are
    two checkpoints; a new one joins later, and gets a cell."""
    sweep = slow(5, nap=0.5)
    node = cluster.add_node(num_cpus=1, **SMALL)
    driver = start(tmp_path, sweep, "--address", cluster.address)
    cells = tmp_path / ".fedray/cells"
    wait(lambda: busy(cluster.head_node) and busy(node) and len(list(cells.glob("*/checkpoint-*.json"))) >= 2)
    cluster.remove_node(node, allow_graceful=False)
    wait(lambda: sum(one["Alive"] for one in ray.nodes()) == 1)
    late = cluster.add_node(num_cpus=1, **SMALL)
    wait(lambda: busy(late))
    assert "small: 5 finished" in done(driver)
    assert state_hashes(tmp_path) == undisturbed(sweep)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_a_node_that_dies_while_states_spill_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """60 states of 4 x (75 x 8,000 + 10) = 2.4 MB are 144 MB in a store of 100 MB, which spills in every round. The
    node is SIGKILLed, with the trial, both actors and all states, as soon as another state goes to disk and there is a
    checkpoint. The trial restarts on a node that joins then."""
    runtime = {"actors": 2, "checkpoint_every": 5}
    training = {"rounds": 30, "local_steps": 1, "batch_size": 8}
    base = small.sections(
        "scaffold", (60, 20), 8_000, 0.5, training=training, evaluation={"every": 10}, runtime=runtime
    )
    sweep = {"name": "small", "base": base}
    spilled = Path(ray._private.worker._global_node.get_session_dir_path())
    node = cluster.add_node(num_cpus=2, **SMALL)

    def count() -> int:
        return len(list(spilled.glob("ray_spilled_objects_*/*")))

    driver = start(tmp_path, sweep, "--address", cluster.address)
    checkpoints = tmp_path / ".fedray/cells"
    wait(lambda: count() > 0 and any(checkpoints.glob("*/checkpoint-*.json")), 300)  # the driver's start included
    before = count()
    wait(lambda: count() > before)
    cluster.remove_node(node, allow_graceful=False)
    assert driver.poll() is None, "it died too late"
    wait(lambda: sum(one["Alive"] for one in ray.nodes()) == 1)
    cluster.add_node(num_cpus=2, **SMALL)
    assert "small: 1 finished" in done(driver)
    assert state_hashes(tmp_path) == undisturbed(sweep)


@pytest.mark.faults
def test_four_actors_on_three_nodes_share_gpus_and_each_node_s_copy_of_the_data(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Logical GPUs: two nodes of one each, four actors of a half each, so two on either and none on the head."""
    for _ in range(2):
        cluster.add_node(num_cpus=2, num_gpus=1, **SMALL)
    notes = tmp_path / "notes"
    runtime = {"actors": 4, "cpus_per_actor": 0.5, "gpus_per_actor": 0.5, "device": "cpu"}
    sweep = SWEEP | {
        "base": SWEEP["base"] | {"runtime": runtime, "clients": {"total": 10, "per_round": 8}},
        "grid": {"algorithm": [{"name": "tests.plugins:Where", "notes": str(notes)}]},
    }
    out = done(start(tmp_path, sweep, "--address", cluster.address))
    assert "small: 1 finished" in out
    placed = {tuple(line.split()) for line in notes.read_text().splitlines()}
    nodes = Counter(node for node, _, _ in placed)
    assert sorted(nodes.values()) == [2, 2], placed
    assert cluster.head_node.node_id not in nodes
    assert len({process for _, process, _ in placed}) == 4
    assert len({(node, place) for node, _, place in placed}) == 2, "one copy of the data on each node"
    expected = undisturbed(sweep | {"grid": {"algorithm": ["fedavg"]}})
    assert [run.data.tags["fedray.state_sha256"] for run in runs(tmp_path)] == list(expected.values())

    five = sweep | {"name": "five", "base": sweep["base"] | {"runtime": runtime | {"actors": 5}}}
    began = time.monotonic()
    message = done(start(tmp_path, five, "--force", "--address", cluster.address), 2)
    assert "runtime.actors: 5 actors of 0.5 CPU and 0.5 GPU each are asked for, 4 fit; nodes have: " in message
    assert time.monotonic() - began < 60
    assert len(outcome(tmp_path)) == 1


@pytest.mark.faults
def test_a_storage_that_a_node_does_not_see_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Two nodes of one machine: both see a path that exists, and neither sees one that does not."""
    cluster.add_node(num_cpus=1, **SMALL)
    wait(lambda: sum(one["Alive"] for one in ray.nodes()) == 2)
    marker = tmp_path / "marker"
    marker.touch()
    refuse_unseen(marker)
    marker.unlink()
    said = r"FEDRAY_STORAGE: .* is not shared by all nodes of the cluster: \S+, \S+ cannot"
    with pytest.raises(UserError, match=said):
        refuse_unseen(marker)
