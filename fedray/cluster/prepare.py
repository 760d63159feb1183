"""A Ray that is ready for runs: connected, `auto` GPUs measured, and what can never be placed refused."""

import contextlib
from collections.abc import Iterator, Sequence

from fedray.cluster.connection import use_cluster
from fedray.cluster.gpu_sharing import Packing
from fedray.cluster.resources import list_nodes, refuse_infeasible
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.sections import Runtime


class Placement:
    """Numbers for `auto` GPUs, and the refusal of what can never be placed, for the runs of one call."""

    def __init__(self) -> None:
        self._packing = Packing()
        self._fit: set[Runtime] = set()

    def resolve(self, runs: Sequence[tuple[RunConfig, Dataset]]) -> list[RunConfig]:
        """The runs with numbers where `gpus_per_actor` is `auto`, within a running Ray.

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
        """Whether `resolve` would measure nothing for a run, and refuse nothing."""
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
