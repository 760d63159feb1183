"""The partitions by name: how samples are dealt to clients."""

from fedray.components.plugins import resolve
from fedray.partitions.base import Partition
from fedray.partitions.file import FromFile
from fedray.partitions.schemes import IID, Dirichlet, DirichletClient, Natural, Pathological, PxCy, Sharding

PARTITIONS: dict[str, type[Partition]] = {
    kind.name: kind for kind in (IID, Dirichlet, DirichletClient, Sharding, Pathological, PxCy, Natural, FromFile)
}


def make_partition(value: object) -> Partition:
    """Return the partitioner of a configuration's `partition` section."""
    return resolve("partition", value, PARTITIONS, Partition)
