"""How training samples are dealt to clients. Every partitioner is a function of (labels, clients, generator).

Which code base deals how is part of each docstring: "Dirichlet 0.1" names two different problems.
"""

import numpy as np
from pydantic import Field

from fedray.component import Component, choose
from fedray.data.dataset import Dataset
from fedray.data.shards import Shards
from fedray.errors import UserError
from fedray.rng import generator

REDRAWS = 100


class Partition(Component):
    """Base of the partitioners. `min_size` is the smallest shard that is accepted (0: clients may be empty)."""

    min_size: int = Field(1, ge=0, description="smallest shard accepted; 0 allows empty clients, never trained")
    seed: int | None = Field(None, ge=0, description="seed of the split; default: the run's seed")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        """One draw. labels: int64 `(n,)`."""
        raise NotImplementedError

    def split(self, data: Dataset, clients: int, seed: int) -> Shards:
        """Draw until every client has `min_size` samples, at most 100 times.

        Raises UserError naming the key when that cannot be had.
        """
        if clients * self.min_size > len(data.y_train):
            raise UserError(f"partition.min_size: {clients} clients x {self.min_size} samples are more than the "
                            f"{len(data.y_train)} training samples")
        seed = seed if self.seed is None else self.seed
        for attempt in range(REDRAWS):
            shards = self.draw(data.y_train, data.num_classes, clients, generator(seed, "partition", attempt))
            if shards.sizes.min() >= self.min_size:
                return shards
        raise UserError(f"partition.min_size: {self.name} left a client with {shards.sizes.min()} samples in each of "
                        f"{REDRAWS} draws, {self.min_size} are required; lower clients.total or set min_size: 0")


class IID(Partition):
    """A random permutation cut into equal parts (sizes differ by at most one)."""

    name = "iid"

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_lists(np.array_split(rng.permutation(len(labels)), clients))


class Dirichlet(Partition):
    """LDA: for each class a Dirichlet(α) draw over the clients; sizes differ (FedSOL, FedNTD, MOON, FedGELA).

    A client that already holds its fair share n/N gets nothing of the following classes, as in those code bases.
    """

    name = "dirichlet"
    paper = "Yurochkin et al., Bayesian nonparametric federated learning, ICML 2019; as in FedSOL's and MOON's code"
    alpha: float = Field(gt=0, description="α: concentration; small is heterogeneous")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        owner = np.full(len(labels), -1, dtype=np.int64)
        sizes = np.zeros(clients, dtype=np.int64)
        for label in range(classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, self.alpha)) * (sizes < len(labels) // clients)
            if shares.sum() == 0:  # every open client drew a share of exactly 0: deal this class evenly
                shares = np.ones(clients)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(np.int64)[:-1]
            parts = np.diff(cuts, prepend=0, append=len(members))
            owner[members] = np.repeat(np.arange(clients), parts)
            sizes += parts
        return Shards.from_owner(owner, clients)


class ClientPriors(Partition):
    """A prior over the classes per client, equal sizes.

    Clients take turns in random order drawing one sample from their prior until all hold floor(n/N); when a class has
    run out its pool is refilled and the class is drawn again, so samples can repeat and some may never be used.
    """

    def priors(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Class prior of each client, `(clients, classes)`."""
        raise NotImplementedError

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        priors = self.priors(classes, clients, rng)
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        present = np.array([len(pool) > 0 for pool in pools])
        priors = priors * present
        priors[priors.sum(1) == 0] = present
        cumulative = np.cumsum(priors / priors.sum(1, keepdims=True), axis=1)
        size = len(labels) // clients
        turns = rng.permutation(np.repeat(np.arange(clients), size))
        draws = rng.random(len(turns))
        left = [len(pool) for pool in pools]
        parts = np.empty((clients, size), dtype=np.int64)
        filled = np.zeros(clients, dtype=np.int64)
        for client, draw in zip(turns, draws, strict=True):
            label = int(np.searchsorted(cumulative[client], draw, side="right").clip(max=classes - 1))
            while left[label] == 0:
                left[label] = len(pools[label])  # the refilled pool serves the next who draws this class
                label = int(np.searchsorted(cumulative[client], rng.random(), side="right").clip(max=classes - 1))
            left[label] -= 1
            parts[client, filled[client]] = pools[label][left[label]]
            filled[client] += 1
        return Shards(parts.reshape(-1), np.arange(clients + 1, dtype=np.int64) * size)


class DirichletClient(ClientPriors):
    """A Dirichlet(α) prior over the classes per client, equal sizes; samples can repeat (FedDyn, FedTOGA, FedSAM)."""

    name = "dirichlet_client"
    paper = "Acar et al., FedDyn, ICLR 2021, the authors' code; as in FL-Simulator (FedTOGA, FedSAM)"
    alpha: float = Field(gt=0, description="α: concentration (u in FedTOGA)")

    def priors(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        return rng.dirichlet(np.full(classes, self.alpha), size=clients)


class Pathological(ClientPriors):
    """c classes per client, uniform among them, equal sizes; samples can repeat (FL-Simulator, FedTOGA)."""

    name = "pathological"
    paper = "FL-Simulator's code, as in FedTOGA"
    classes: int = Field(gt=0, description="c: classes per client")

    def priors(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        if self.classes > classes:
            raise UserError(f"partition.classes: found {self.classes}; the data have {classes} classes")
        chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, :self.classes]
        priors = np.zeros((clients, classes))
        np.put_along_axis(priors, chosen, 1 / self.classes, axis=1)
        return priors


class Sharding(Partition):
    """Each class is cut into equal shards, s shards are dealt to each client; at most s classes each (FedSOL)."""

    name = "sharding"
    paper = "McMahan et al., FedAvg, AISTATS 2017; the variant of FedSOL's and FedNTD's code"
    shards: int = Field(gt=0, description="s: shards per client")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        total = self.shards * clients
        if total > len(labels):
            raise UserError(f"partition.shards: {clients} clients x {self.shards} shards are more than the "
                            f"{len(labels)} training samples")
        per_class = np.full(classes, total // classes)
        per_class[rng.permutation(classes)[:total % classes]] += 1
        owners = rng.permutation(np.repeat(np.arange(clients), self.shards))
        owner = np.full(len(labels), -1, dtype=np.int64)
        start = 0
        for label, count in enumerate(per_class):
            members = rng.permutation(np.flatnonzero(labels == label))
            if count == 0:
                continue
            lengths = np.full(count, len(members) // count)
            lengths[:len(members) % count] += 1
            owner[members] = np.repeat(owners[start:start + count], lengths)
            start += count
        return Shards.from_owner(owner, clients)


class Natural(Partition):
    """The clients the data come with: LEAF's users, centres, or `client_train` of an npz file."""

    name = "natural"

    def split(self, data: Dataset, clients: int, seed: int) -> Shards:
        if data.client_train is None:
            raise UserError(f"partition.name: data {data.name} have no natural clients (client_train)")
        ids, owner = np.unique(data.client_train, return_inverse=True)
        if len(ids) != clients:
            raise UserError(f"clients.total: found {clients}; data {data.name} have {len(ids)} natural clients")
        return Shards.from_owner(owner, clients)


PARTITIONS: dict[str, type[Partition]] = {
    kind.name: kind for kind in (IID, Dirichlet, DirichletClient, Sharding, Pathological, Natural)
}


def partition(value: object) -> Partition:
    """The partitioner of a configuration's `partition` section."""
    return choose("partition", value, PARTITIONS)
