"""`runtime.actors: auto`: the number of actors that a cell gets when it starts, or that it should wait."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray

from fedray.cluster.resources import count_capacity, get_bundle, list_nodes
from fedray.config import RunConfig, Runtime
from fedray.engine.loop import pays


@dataclass(frozen=True)
class Running:
    """A running cell.

    Attributes:
        actors: number of its actors.
        seconds: seconds until it ends; infinite if unknown.
    """

    actors: int
    seconds: float


class FreeCapacity:
    """Number of actors that fit the cluster, without the resources that others held when this object was made."""

    def __init__(self) -> None:
        have, free = ray.cluster_resources(), ray.available_resources()
        self._others: dict[str, float] = {name: have.get(name, 0.0) - free.get(name, 0.0) for name in ("CPU", "GPU")}

    def count_actors(self, runtime: Runtime, held: Sequence[Mapping[str, float]] = ()) -> int:
        """Return the number of a run's actors that fit now, on the living nodes.

        Args:
            runtime: the run's `runtime` section.
            held: the bundles that the caller's own cells hold.
        """
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


def allocate(free: int, left: int, running: Sequence[Running], seconds: float, most: int) -> int:
    """Return the number of actors for the next cell.

    Args:
        free: number of actors that fit now.
        left: number of cells that have not begun, including this one.
        running: the cells that have begun.
        seconds: duration of a cell with one actor; NaN if unknown.
        most: largest number of actors that a cell can use.

    Returns:
        The cell's share of the free capacity; 1 if more would start longer than they save. 0 if it should wait: nothing
        is free, or the remaining cells are expected to end sooner if they wait for cells that are about to end and take
        over their capacity.
    """
    if free == 0:
        return 0
    if not (math.isnan(seconds) or pays(seconds, most)):
        return 1
    if left <= free and not math.isnan(seconds):
        room, soonest = free, left * seconds / min(free, left * most)
        for other in sorted(running, key=lambda one: one.seconds):
            room += other.actors
            if other.seconds + left * seconds / min(room, left * most) < soonest:
                return 0
    share = min(max(free // left, 1), most)
    return share if math.isnan(seconds) or pays(seconds, share) else 1
