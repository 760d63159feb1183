"""Partitioners: functions of (labels, clients, generator).

Each docstring names the code bases that deal this way: "Dirichlet 0.1" names two different problems (D-56).
"""

import heapq
from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets.dataset import Dataset
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards, split_naturally

Array = np.ndarray


class IID(Partition):
    """Cuts a random permutation into equal parts (sizes differ by at most one); `stratified`: class by class."""

    name = "iid"
    stratified: bool = Field(False, description="equal numbers of every class, as FL-Simulator's CIFAR-100")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        order = rng.permutation(len(labels))
        if not self.stratified:
            return Shards.from_lists(np.array_split(order, clients))
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % clients
        return Shards.from_owner(owner, clients)


class Dirichlet(Partition):
    """LDA: for each class a Dirichlet(α) draw over the clients; sizes differ (FedSOL, FedNTD, MOON, FedGELA).

    A client that already holds its fair share gets no samples of the following classes: floor(n/N), as in FedSOL's and
    FedNTD's code; MOON's has n/N. They redraw until the smallest client has 10 samples: `min_size: 10` (FedGELA's
    personal split: `min_size: 0`).
    """

    name = "dirichlet"
    paper = (
        "Yurochkin et al., Bayesian nonparametric federated learning of neural networks, ICML 2019; as in "
        "FedSOL's and MOON's code"
    )
    alpha: float = Field(gt=0, description="α: concentration; small is heterogeneous")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        owner = np.full(len(labels), -1, dtype=np.int64)
        sizes = np.zeros(clients, dtype=np.int64)
        for label in range(classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            is_open = sizes < len(labels) // clients
            shares = rng.dirichlet(np.full(clients, self.alpha)) * is_open
            if shares.sum() == 0:  # every open client drew a share of exactly 0: deal this class evenly
                shares = is_open.astype(float) if is_open.any() else np.ones(clients)
            upto = np.cumsum(shares)
            cuts = (upto / upto[-1] * len(members)).astype(np.int64)[:-1]
            parts = np.diff(cuts, prepend=0, append=len(members))
            owner[members] = np.repeat(np.arange(clients), parts)
            sizes += parts
        return Shards.from_owner(owner, clients)


class DirichletClient(Partition):
    """A Dirichlet(α) prior over the classes per client, equal sizes; samples can repeat (FedDyn, FedTOGA, FedSAM).

    With `sigma` sizes are log-normal, as an option of FedDyn's code (`unbalanced_sgm`; an example of FedDC's has 0.3).
    """

    name = "dirichlet_client"
    paper = (
        "Acar et al., Federated learning based on dynamic regularization, ICLR 2021, the authors' code; as in "
        "FL-Simulator (FedTOGA, FedSAM)"
    )
    alpha: float = Field(gt=0, description="α: concentration (u in FedTOGA)")
    sigma: float = Field(0.0, ge=0, le=10, description="σ of log-normal client sizes; 0 for equal sizes (D-119)")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        sizes = draw_lognormal_sizes(len(labels), clients, self.sigma, rng) if self.sigma else None
        return deal_by_prior(rng.dirichlet(np.full(classes, self.alpha), size=clients), labels, rng, sizes)


class Pathological(Partition):
    """c classes per client, uniform among them, equal sizes; samples can repeat (FL-Simulator, FedTOGA)."""

    name = "pathological"
    paper = "FL-Simulator's code, as in FedTOGA"
    classes: int = Field(gt=0, description="c: classes per client")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        labels, classes = _number_present(labels)
        return deal_by_prior(draw_pathological_priors(self.classes, classes, clients, rng), labels, rng)


class PxCy(Partition):
    """PxCy: x clients (`clients.total`) of y classes each, every class is split evenly among its holders (FedGELA).

    In order, each client takes y different classes: the first picks are forced to be 0, 1, 2, ... until every class is
    held, the later ones are random. So in P10C2 clients 0 to 4 hold (0, 1), (2, 3), ... and the others two at random.
    """

    name = "pxcy"
    paper = (
        "Fan et al., Federated learning with bilateral curation for partially class-disjoint data, NeurIPS "
        "2023, table 5, the authors' code"
    )
    classes: int = Field(gt=0, description="y: classes per client")

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        labels, classes = _number_present(labels)
        if not self.classes <= classes <= self.classes * clients:
            raise UserError(
                f"partition.classes: found {self.classes}; {clients} clients cover the data's {classes} "
                f"classes with {-(-classes // clients)} to {classes} each"
            )
        chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, : self.classes]
        forced = classes // self.classes  # clients whose picks are all forced; the next one's are partly
        chosen[:forced] = np.arange(forced * self.classes).reshape(forced, self.classes)
        if rest := classes - forced * self.classes:
            last = np.arange(forced * self.classes, classes)
            others = rng.permutation(np.setdiff1d(np.arange(classes), last))
            chosen[forced] = np.concatenate([last, others[: self.classes - rest]])
        owner = np.full(len(labels), -1, dtype=np.int64)
        for label in range(classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            holders = np.flatnonzero((chosen == label).any(axis=1))
            owner[members] = np.repeat(holders, _cut_evenly(len(members), len(holders)))
        return Shards.from_owner(owner, clients)


class Sharding(Partition):
    """Samples sorted by label are cut into N·s shards of equal size; each client gets s of them (FedSOL).

    Sizes of shards differ by at most one. A shard that reaches over the end of a class holds two classes (more where
    classes are smaller than shards). With `sizes: by_class` each class is cut into equal shards instead, as many per
    class (up to one more), so that a client has at most s classes, and more samples where classes are larger (D-121).
    Fewer such shards than classes leave some classes unused.
    """

    name = "sharding"
    paper = (
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS "
        "2017; as in FedSOL's text"
    )
    shards: int = Field(gt=0, description="s: shards per client")
    sizes: Literal["equal", "by_class"] = Field(
        "equal", description="`by_class`: as in FedSOL's and FedNTD's code, equal shards of each class (D-121)"
    )

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        if self.shards * clients > len(labels):
            raise UserError(
                f"partition.shards: {clients} clients x {self.shards} shards are more than the "
                f"{len(labels)} training samples"
            )
        if self.sizes == "by_class":
            owner = self._deal_by_class(*_number_present(labels), clients, rng)
        else:
            order = rng.permutation(len(labels))
            order = order[np.argsort(labels[order], kind="stable")]
            owner = np.empty(len(labels), dtype=np.int64)
            owner[order] = np.repeat(self._deal(clients, rng), _cut_evenly(len(labels), self.shards * clients))
        return Shards.from_owner(owner, clients)

    def _deal_by_class(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        total = self.shards * clients
        per_class = np.full(classes, total // classes)
        per_class[rng.permutation(classes)[: total % classes]] += 1
        owners = self._deal(clients, rng)
        owner = np.full(len(labels), -1, dtype=np.int64)
        start = 0
        for label, count in enumerate(per_class):
            members = rng.permutation(np.flatnonzero(labels == label))
            if count == 0:
                continue
            owner[members] = np.repeat(owners[start : start + count], _cut_evenly(len(members), count))
            start += count
        return owner

    def _deal(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the client of each shard, in the order of the shards: s shards for each, at random."""
        return rng.permutation(np.repeat(np.arange(clients), self.shards))


class Natural(Partition):
    """The natural clients of the data: LEAF's users, centres, or `client_train` of an npz file, in order of their ids.

    With fewer clients than ids only some of them take part (FedGELA takes 50 of LEAF's writers and does not say which);
    with `divide`, ids are divided at random so that there are as many clients as requested, the largest pieces first
    (FedGELA: 6 centres, 20 clients, and does not say how).
    """

    name = "natural"
    pick: Literal["all", "first", "random"] = Field("all", description="which ids, if clients.total is smaller")
    divide: bool = Field(False, description="divide natural clients if clients.total is larger")

    def split(self, data: Dataset, clients: int, seed: int) -> Shards:
        if data.client_train is None:
            arrays = "client_train and, with data.test, client_test" if data.is_merged else "client_train"
            raise UserError(f"partition.name: data {data.name} have no natural clients ({arrays})")
        ids = np.union1d(data.client_train, data.client_train if data.natural_ids is None else data.natural_ids)
        owner = np.searchsorted(ids, data.client_train)
        rng = generator(self._get_seed(seed), "partition")
        if clients == len(ids):
            shards = Shards.from_owner(owner, clients)
        elif clients < len(ids) and self.pick != "all":
            first = self.pick == "first"
            kept = np.arange(clients) if first else np.sort(rng.choice(len(ids), clients, replace=False))
            number = np.full(len(ids), -1)
            number[kept] = np.arange(clients)
            shards = Shards.from_owner(number[owner], clients)
        elif clients > len(ids) and self.divide:
            shards = self._divide(owner, len(ids), clients, rng)
        else:
            hint = "partition.pick: first or random" if clients < len(ids) else "partition.divide: true"
            natural = f"data {data.name} have {len(ids)} natural clients; set {len(ids)}, or {hint}"
            raise UserError(f"clients.total: found {clients}; {natural}")
        return self.check_sizes(shards, "a natural client has")

    def split_test(self, data: Dataset, shards: Shards, seed: int, how: Literal["share", "disjoint"]) -> Shards:
        if data.client_train is None or data.client_test is None:
            return super().split_test(data, shards, seed, how)
        rng = generator(self._get_seed(seed), "partition test")
        return split_naturally(data.client_train, data.client_test, shards, rng)

    @staticmethod
    def _divide(owner: np.ndarray, ids: int, clients: int, rng: np.random.Generator) -> Shards:
        sizes = np.bincount(owner, minlength=ids)
        if clients > len(owner):
            raise UserError(f"clients.total: found {clients}; there are only {len(owner)} training samples")
        pieces = np.ones(ids, dtype=np.int64)
        largest = [(-float(size), i) for i, size in enumerate(sizes)]
        heapq.heapify(largest)
        for _ in range(clients - ids):
            i = largest[0][1]
            pieces[i] += 1
            heapq.heapreplace(largest, (-sizes[i] / pieces[i], i))
        of_id = Shards.from_owner(owner, ids)
        return Shards.from_lists(
            [part for i in range(ids) for part in np.array_split(rng.permutation(of_id[i]), pieces[i])]
        )


def _number_present(labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the labels numbered without gaps, and the number of classes that have samples."""
    present, numbered = np.unique(labels, return_inverse=True)
    return numbered, len(present)


def _cut_evenly(total: int, parts: int) -> np.ndarray:
    """Return the lengths of equal parts of `total` items; the first ones are longer by one if it does not divide."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


def deal_by_prior(priors: Array, labels: Array, rng: np.random.Generator, sizes: Array | None = None) -> Shards:
    """Deal each client its number of samples (default n/N), each from its prior over the classes, `(N, classes)`.

    This follows FedDyn's loop: a client that is not full yet is picked uniformly; it draws a class from its prior and
    takes the next sample of that class's shuffled pool. When a pool has run out it is refilled and the class is drawn
    again, so samples can repeat across and within clients and some may never be used (4.1 of the definitions).

    The loop is not run sample by sample. Uniform picks among clients that are not full come in the order of
    independent Poisson processes, one per client. The pools change the draws only when one runs out, so
    only those draws are made one at a time.
    """
    clients, classes = priors.shape
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    supply = np.array([len(pool) for pool in pools])
    priors = priors * (supply > 0)  # a client whose prior has only classes without samples draws uniformly from others
    priors[priors.sum(axis=1) == 0] = supply > 0
    cumulative = np.cumsum(priors / priors.sum(axis=1, keepdims=True), axis=1)
    cumulative[:, np.flatnonzero(supply)[-1] :] = 1.0  # rounding leaves it slightly off

    if sizes is None:
        sizes = np.full(clients, len(labels) // clients)
        sizes[0] += len(labels) % clients
    # One slot per sample of a client: `size` columns for every client, then the additional ones of some clients.
    size = int(sizes.min())
    beyond = sizes - size
    longer = np.flatnonzero(beyond)
    owner = np.concatenate([np.repeat(np.arange(clients), size), np.repeat(np.arange(clients), beyond)])
    arrival = np.cumsum(rng.exponential(size=(clients, size)), axis=1)
    last = arrival[:, -1] if size else np.zeros(clients)
    times = [arrival.ravel(), *(np.cumsum(rng.exponential(size=beyond[i])) + last[i] for i in longer)]
    order = np.argsort(np.concatenate(times), kind="stable")
    del arrival, times
    drawn = np.concatenate(
        [
            _choose_classes(cumulative, rng.random((clients, size))).ravel(),
            *(_choose_classes(cumulative[i : i + 1], rng.random((1, beyond[i]))).ravel() for i in longer),
        ]
    )[order]
    _redraw_where_exhausted(drawn, supply, lambda t: cumulative[owner[order[t]]], rng)

    taken = np.empty(len(labels), dtype=np.int64)
    for label, pool in enumerate(pools):
        at = np.flatnonzero(drawn == label)
        if len(at):
            taken[at] = pool[len(pool) - 1 - np.arange(len(at)) % len(pool)]
    slots = np.empty_like(taken)
    slots[order] = taken
    return Shards(slots[np.argsort(owner, kind="stable")], np.concatenate([[0], np.cumsum(sizes)]))


def draw_lognormal_sizes(n: int, clients: int, sigma: float, rng: np.random.Generator) -> Array:
    """Return log-normal sizes that sum to n, int64 `(N,)`: rounded down, with the remainder for the first client.

    As FedDyn's code draws them (`unbalanced_sgm`): exp(N(ln(n/N), σ²)), divided by their sum, times n.
    """
    drawn = rng.lognormal(np.log(n / clients), sigma, clients)
    sizes: Array = (drawn / drawn.sum() * n).astype(np.int64)
    sizes[0] += n - sizes.sum()
    return sizes


def _choose_classes(cumulative: Array, uniform: Array) -> Array:
    """Return the class of each draw by inverse CDF. cumulative: `(k, classes)`; uniform: `(k, draws)`, as is the
    result.
    """
    if len(cumulative) == 1:
        return np.searchsorted(cumulative[0, :-1], uniform, side="right").astype(np.int32)
    drawn = np.zeros(uniform.shape, dtype=np.int32)
    for label in range(cumulative.shape[1] - 1):
        drawn += uniform >= cumulative[:, label, None]
    return drawn


def _redraw_where_exhausted(
    drawn: Array, supply: Array, prior_at: Callable[[int], Array], rng: np.random.Generator
) -> None:
    """Replace, in order of time, the draws that find an empty pool.

    drawn: class drawn at each time, changed in place; supply: samples per class; prior_at: the cumulative prior of the
    client whose turn it is at a time.
    """
    times = [np.flatnonzero(drawn == label) for label in range(len(supply))]
    empty_at = supply.copy()  # per class: which of its draws in `times` will be the next to find the pool empty
    while True:
        failing = [t[k] if k < len(t) else len(drawn) for t, k in zip(times, empty_at, strict=True)]
        label = int(np.argmin(failing))
        time = int(failing[label])
        if time == len(drawn):
            return
        empty_at[label] += 1 + supply[label]  # the pool is refilled, and this draw takes nothing from it
        while True:
            label = int(np.searchsorted(prior_at(time), rng.random(), side="right"))
            if empty_at[label] > np.searchsorted(times[label], time, side="right"):
                break
            empty_at[label] += supply[label]
        empty_at[label] -= 1
        drawn[time] = label


def draw_pathological_priors(active: int, classes: int, clients: int, rng: np.random.Generator) -> Array:
    """Return a uniform prior over `active` classes per client, chosen at random, `(clients, classes)`."""
    if active > classes:
        raise UserError(f"partition.classes: found {active}; the data have {classes} classes")
    chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, :active]
    priors = np.zeros((clients, classes))
    np.put_along_axis(priors, chosen, 1 / active, axis=1)
    return priors
