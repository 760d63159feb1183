"""Resources that client actors ask of a cluster, and whether they fit."""

from collections.abc import Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.common.errors import UserError
from fedray.config import Runtime


def get_bundle(runtime: Runtime) -> dict[str, float]:
    """Return the resources that one client actor asks of the cluster."""
    asked = {"CPU": runtime.cpus_per_actor, "GPU": runtime.gpus}
    return {name: amount for name, amount in asked.items() if amount}


def count_capacity(runtime: Runtime, node: dict[str, float]) -> int:
    """Return the number of client actors that fit a node of these resources; a fraction never spans two GPUs."""
    cpus, gpus, eps = runtime.cpus_per_actor, runtime.gpus, 1e-9
    held = [int(node.get("CPU", 0) / cpus + eps)] if cpus else []
    if gpus:
        whole = node.get("GPU", 0)
        held.append(int(whole + eps) * int(1 / gpus + eps) if gpus < 1 else int(whole / gpus + eps))
    return min(held)


def refuse_infeasible(runtime: Runtime, nodes: Sequence[dict[str, float]]) -> None:
    """Raise UserError if the actors of one run can never be placed on nodes with these total resources."""
    room = sum(count_capacity(runtime, node) for node in nodes)
    if room < runtime.actor_count:
        have = "; ".join(" ".join(f"{node.get(r, 0):g} {r}" for r in ("CPU", "GPU")) for node in nodes)
        raise UserError(
            f"runtime.actors: {runtime.actor_count} actors of {runtime.cpus_per_actor:g} CPU and "
            f"{runtime.gpus:g} GPU each are asked for, {room} fit; nodes have: {have}"
        )


def refuse_unseen(key: str, path: Path) -> None:
    """Refuse a path that some nodes of the cluster do not see, although all have to share it.

    Args:
        key: the setting that names the path, for the message.
        path: a file that this process has just created there.

    Raises:
        UserError: some nodes do not see the file.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return
    look = ray.remote(num_cpus=0)(_can_see)
    answers = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(str(path))
        for node in nodes
    ]
    blind = [node["NodeManagerAddress"] for node, sees in zip(nodes, ray.get(answers), strict=True) if not sees]
    if blind:
        raise UserError(
            f"{key}: {path.parent} is not shared by all nodes of the cluster: {', '.join(blind)} cannot see it; "
            "set it to a directory that all of them mount"
        )


def _can_see(path: str) -> bool:
    return Path(path).exists()


def list_nodes() -> list[dict[str, float]]:
    """Return the total resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
