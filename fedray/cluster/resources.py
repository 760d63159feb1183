"""Resources that client actors ask of a cluster, whether they fit, and how many a cell gets."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from fedray.cluster.connection import ask_nodes, use_cluster
from fedray.common.errors import UserError, format_count
from fedray.config import RunConfig, Runtime


def get_bundle(runtime: Runtime) -> dict[str, float]:
    """Return the resources that one client actor asks of the cluster."""
    asked = {"CPU": runtime.cpus_per_actor, "GPU": runtime.gpus_per_actor}
    return {name: amount for name, amount in asked.items() if amount}


def count_capacity(runtime: Runtime, node: dict[str, float]) -> int:
    """Return the number of client actors that fit a node of these resources; a fraction never spans two GPUs."""
    cpus, gpus, eps = runtime.cpus_per_actor, runtime.gpus_per_actor, 1e-9
    held = [int(node.get("CPU", 0) / cpus + eps)] if cpus else []
    if gpus:
        whole = node.get("GPU", 0)
        held.append(int(whole + eps) * int(1 / gpus + eps) if gpus < 1 else int(whole / gpus + eps))
    return min(held)


def refuse_infeasible(runtime: Runtime, nodes: Sequence[dict[str, float]]) -> None:
    """Raise UserError if the actors of one run can never be placed on nodes with these total resources."""
    room = sum(count_capacity(runtime, node) for node in nodes)
    if runtime.gpus_per_actor and not any(node.get("GPU", 0) for node in nodes):
        raise UserError(
            f"runtime.gpus_per_actor: {runtime.gpus_per_actor:g} GPU for each actor is asked for, and no node has one; "
            "`--set runtime.gpus_per_actor=0` trains on CPUs"
        )
    if room < runtime.actor_count:
        have = "; ".join(" ".join(f"{node.get(r, 0):g} {r}" for r in ("CPU", "GPU")) for node in nodes)
        raise UserError(
            f"runtime.actors: {runtime.actor_count} actors of {runtime.cpus_per_actor:g} CPU and "
            f"{runtime.gpus_per_actor:g} GPU each are asked for, {room} fit; nodes have: {have}"
        )


def describe_idle_gpus(actors: Mapping[Runtime, int], nodes: Sequence[dict[str, float]]) -> str:
    """Return a line about GPUs of the nodes that no run can use; empty if there are none.

    actors: of each runtime the most at a time, if they fit.
    """
    gpus, used = sum(node.get("GPU", 0) for node in nodes), 0
    for runtime, most in actors.items():
        if share := runtime.gpus_per_actor:
            fitting = min(most, sum(count_capacity(runtime, node) for node in nodes))
            used += math.ceil(fitting / int(1 / share + 1e-9) if share < 1 else fitting * share)
    if not gpus or used >= gpus:
        return ""
    if any(runtime.gpus_per_actor for runtime in actors):
        each = f"; {math.ceil(used / len(nodes))} per node would do" if used else ""
        return f"the cells that run at a time can use at most {used} of the {gpus:g} GPUs{each}"
    return (
        f"no cell uses a GPU, and there {'is 1' if gpus == 1 else f'are {gpus:g}'}: runtime.gpus_per_actor is 0; "
        "1 in the file gives a cell a GPU, 0.25 lets four share one"
    )


@contextmanager
def prepare_ray(runtime: Runtime) -> Iterator[None]:
    """Provide a Ray on which a run fits, for the duration of a block: $RAY_ADDRESS, or else a local one.

    Raises UserError if the cluster cannot be joined, or the actors can never be placed.
    """
    with use_cluster():
        refuse_infeasible(runtime, list_nodes())
        yield


@contextmanager
def hold_bundles(runtime: Runtime) -> Iterator[PlacementGroup]:
    """Hold the resources of a run's actors for the duration of a block.

    They are granted together: if two runs each had a part, and waited for the rest, they would wait for ever.
    """
    group = placement_group([get_bundle(runtime)] * runtime.actor_count)
    try:
        if not group.wait(2):
            actors = format_count(runtime.actor_count, "actor")
            logging.getLogger("fedray").info("waiting until the cluster has room for %s", actors)
        while not group.wait(1):
            pass
        yield group
    finally:
        remove_placement_group(group)


def refuse_unseen(path: Path) -> None:
    """Raise UserError if some nodes of the cluster do not see a path in the storage, which all have to share."""
    if len(list_nodes()) > 1 and (blind := [node for node, sees in ask_nodes(os.path.exists, str(path)) if not sees]):
        raise UserError(
            f"FEDRAY_STORAGE: {path.parent} is not shared by all nodes of the cluster: {', '.join(blind)} cannot see "
            "it; set it to a directory that all of them mount"
        )


def list_nodes() -> list[dict[str, float]]:
    """Return the total resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class FreeCapacity:
    """Number of actors that fit the cluster, without the resources that others held when this object was made."""

    def __init__(self) -> None:
        have, free = ray.cluster_resources(), ray.available_resources()
        self._others: dict[str, float] = {name: have.get(name, 0.0) - free.get(name, 0.0) for name in ("CPU", "GPU")}

    def count_actors(self, runtime: Runtime, held: Sequence[Mapping[str, float]] = ()) -> int:
        """Return the number of a run's actors that fit now on the living nodes; held: bundles of the caller's cells."""
        asked = get_bundle(runtime)
        taken: float = max(
            (self._others.get(name, 0.0) + sum(one.get(name, 0.0) for one in held)) / amount
            for name, amount in asked.items()
        )
        whole = sum(count_capacity(runtime, node) for node in list_nodes())
        return max(whole - math.ceil(taken - 1e-9), 0)


def with_actor_count(run: RunConfig, most: int | None = None) -> RunConfig:
    """Return a single run with a number for `actors: auto`: all actors that fit, but no more than `most`."""
    if run.runtime.actors != "auto":
        return run
    useful = run.clients.largest_cohort if most is None else most
    actors = min(max(FreeCapacity().count_actors(run.runtime), 1), useful)
    return run.model_copy(update={"runtime": run.runtime.model_copy(update={"actors": actors})})
