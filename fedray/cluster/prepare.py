"""A Ray that is ready for runs: connected, `auto` GPUs measured, and what can never be placed refused."""

import contextlib
from collections.abc import Iterator, Sequence

from fedray.cluster.connection import cluster
from fedray.cluster.gpu_sharing import Packing
from fedray.cluster.resources import cluster_nodes, refuse_infeasible
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset


@contextlib.contextmanager
def prepared(runs: Sequence[tuple[RunConfig, Dataset]], address: str | None = None) -> Iterator[list[RunConfig]]:
    """A Ray on which every run fits, for the duration of a block.

    Args:
        runs: configurations with their data sets.
        address: of the cluster to join, as `fedray sweep --address`; None: $RAY_ADDRESS, else a local Ray.

    Yields:
        The same configurations in the same order, with numbers where `gpus_per_actor` was `auto`.

    Raises:
        UserError: the cluster cannot be joined, or the actors of a run can never be placed.
    """
    with cluster(address):
        packing = Packing()
        resolved = [packing.resolve_auto_gpus(run, data) for run, data in runs]
        nodes = cluster_nodes()
        for runtime in dict.fromkeys(run.runtime for run in resolved):
            refuse_infeasible(runtime, nodes)
        yield resolved
