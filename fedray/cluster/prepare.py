"""Prepare Ray for runs: connect, measure `auto` GPUs, and refuse runs that can never be placed."""

import contextlib
from collections.abc import Iterator, Sequence

from fedray.cluster.connection import use_cluster
from fedray.cluster.gpu_sharing import Packing
from fedray.cluster.resources import list_nodes, refuse_infeasible
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset


class Placement:
    """Sets numbers for `auto` GPUs and refuses runs that can never be placed, for the runs of one call."""

    def __init__(self) -> None:
        self._packing = Packing()
        self._fit: set[Runtime] = set()

    def resolve(self, runs: Sequence[tuple[RunConfig, Dataset]]) -> list[RunConfig]:
        """Return the runs with numbers for `gpus_per_actor: auto`; Ray must be running.

        Args:
            runs: configurations with their data sets.

        Returns:
            The same configurations in the same order.

        Raises:
            UserError: the actors of a run can never be placed.
        """
        resolved = [self._packing.resolve_auto_gpus(run, data) for run, data in runs]
        if new := dict.fromkeys(run.runtime for run in resolved if run.runtime not in self._fit):
            nodes = list_nodes()
            for runtime in new:
                refuse_infeasible(runtime, nodes)
            self._fit |= new.keys()
        return resolved

    def knows(self, run: RunConfig, data: Dataset) -> bool:
        """Return True if `resolve` would neither measure nor refuse anything for a run."""
        return self._packing.knows(run) and self._packing.resolve_auto_gpus(run, data).runtime in self._fit


@contextlib.contextmanager
def prepare_ray(runs: Sequence[tuple[RunConfig, Dataset]]) -> Iterator[list[RunConfig]]:
    """Provide a Ray on which every run fits, for the duration of a block: $RAY_ADDRESS, or else a local one.

    Args:
        runs: configurations with their data sets.

    Yields:
        The same configurations in the same order, with numbers where `gpus_per_actor` was `auto`.

    Raises:
        UserError: the cluster cannot be joined, or the actors of a run can never be placed.
    """
    with use_cluster():
        yield Placement().resolve(runs)
