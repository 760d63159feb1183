"""`runtime.actors: auto`: how many actors a cell gets when it starts, and whether it had better wait."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray

from fedray.cluster.resources import count_capacity, get_bundle, list_nodes
from fedray.config import RunConfig
from fedray.sections import Runtime


@dataclass(frozen=True)
class Running:
    """A cell that runs.

    Attributes:
        actors: how many it has.
        seconds: until it ends; infinite where nobody knows.
    """

    actors: int
    seconds: float


class FreeCapacity:
    """How many actors the cluster has room for, less what others held when this was made."""

    def __init__(self) -> None:
        have, free = ray.cluster_resources(), ray.available_resources()
        self._others: dict[str, float] = {name: have.get(name, 0.0) - free.get(name, 0.0) for name in ("CPU", "GPU")}

    def count_actors(self, runtime: Runtime, held: Sequence[Mapping[str, float]] = ()) -> int:
        """Actors of a run that fit now, on the nodes that live now.

        Args:
            runtime: of the run.
            held: the bundles that the caller's own cells hold.
        """
        asked = get_bundle(runtime)
        taken: float = max(
            (self._others.get(name, 0.0) + sum(one.get(name, 0.0) for one in held)) / amount
            for name, amount in asked.items()
        )
        whole = sum(count_capacity(runtime, node) for node in list_nodes())
        return max(whole - math.ceil(taken - 1e-9), 0)


def max_useful_actors(run: RunConfig) -> int:
    """More actors than clients in the largest cohort would be idle."""
    cohorts = run.clients.cohorts
    return max([run.clients.cohort_size] if cohorts is None else map(len, cohorts), default=1)


def with_actor_count(run: RunConfig) -> RunConfig:
    """A single run with a number for `actors: auto`: all the room there is."""
    if run.runtime.actors != "auto":
        return run
    actors = min(max(FreeCapacity().count_actors(run.runtime), 1), max_useful_actors(run))
    return run.model_copy(update={"runtime": run.runtime.model_copy(update={"actors": actors})})


def allocate(free: int, left: int, running: Sequence[Running], seconds: float, most: int) -> int:
    """How many actors the next cell gets.

    Args:
        free: actors that there is room for now.
        left: cells that have not begun, this one included.
        running: the cells that have.
        seconds: that a cell takes with one actor; NaN where nobody knows.
        most: that a cell can use.

    Returns:
        Its part of the room; 0 where it had better wait: there is no room, or the cells that are left are expected to
        end sooner if they wait for cells that are about to end and take their room, too.
    """
    if free == 0:
        return 0
    if left <= free and not math.isnan(seconds):
        room, soonest = free, left * seconds / min(free, left * most)
        for other in sorted(running, key=lambda one: one.seconds):
            room += other.actors
            if other.seconds + left * seconds / min(room, left * most) < soonest:
                return 0
    return min(max(free // left, 1), most)
