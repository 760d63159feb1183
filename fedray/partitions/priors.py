"""Partitions in which every client draws its samples from its own class prior (FedDyn's code and its descendants)."""

from collections.abc import Callable

import numpy as np

from fedray.common.errors import UserError
from fedray.partitions.shards import Shards

Array = np.ndarray


def deal_by_prior(priors: Array, labels: Array, rng: np.random.Generator, sizes: Array | None = None) -> Shards:
    """Deal each client its number of samples, each from its prior over the classes.

    This follows FedDyn's loop: a client that is not full yet is picked uniformly; it draws a class from its prior and
    takes the next sample of that class's shuffled pool. When a pool has run out it is refilled and the class is drawn
    again, so samples can repeat across and within clients and some may never be used (4.1 of the definitions).

    The loop is not run sample by sample. Uniform picks among clients that are not full come in the order of
    independent Poisson processes, one per client. The pools change the draws only when one runs out, so
    only those draws are made one at a time.

    Args:
        priors: `(N, classes)`.
        labels: int64 `(n,)`.
        rng: the stream to draw from.
        sizes: samples of each client, int64 `(N,)`, n in all; default floor(n/N), the remainder to the first.
    """
    clients, classes = priors.shape
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    supply = np.array([len(pool) for pool in pools])
    cumulative = _accumulate(priors, supply > 0)

    sizes = make_equal_sizes(len(labels), clients) if sizes is None else sizes
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


def make_equal_sizes(n: int, clients: int) -> Array:
    """Return floor(n/N) samples for each client, the remainder for the first, int64 `(N,)`."""
    sizes = np.full(clients, n // clients)
    sizes[0] += n % clients
    return sizes


def draw_lognormal_sizes(n: int, clients: int, sigma: float, rng: np.random.Generator) -> Array:
    """Return log-normal sizes that sum to n, int64 `(N,)`: rounded down, with the remainder for the first client.

    As FedDyn's code draws them (`unbalanced_sgm`): exp(N(ln(n/N), σ²)), divided by their sum, times n.
    """
    drawn = rng.lognormal(np.log(n / clients), sigma, clients)
    sizes: Array = (drawn / drawn.sum() * n).astype(np.int64)
    sizes[0] += n - sizes.sum()
    return sizes


def _accumulate(priors: Array, present: Array) -> Array:
    """Return the cumulative prior over the classes that have samples; uniform over these if a client's prior has
    none.
    """
    priors = priors * present
    priors[priors.sum(axis=1) == 0] = present
    cumulative = np.cumsum(priors / priors.sum(axis=1, keepdims=True), axis=1)
    cumulative[:, np.flatnonzero(present)[-1] :] = 1.0  # rounding leaves it slightly off
    return cumulative


def _choose_classes(cumulative: Array, uniform: Array) -> Array:
    """Return the class of each draw by inverse CDF. cumulative: `(k, classes)`; uniform: `(k, draws)`, as is the
    result.
    """
    drawn = np.zeros(uniform.shape, dtype=np.int16)
    for label in range(cumulative.shape[1] - 1):
        drawn += uniform >= cumulative[:, label, None]
    return drawn


def _redraw_where_exhausted(
    drawn: Array,
    supply: Array,
    prior_at: Callable[[int], Array],
    rng: np.random.Generator,
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


def draw_dirichlet_priors(alpha: float, classes: int, clients: int, rng: np.random.Generator) -> Array:
    """Return a Dirichlet(α) draw over the classes per client, `(clients, classes)`."""
    return rng.dirichlet(np.full(classes, alpha), size=clients)


def draw_pathological_priors(active: int, classes: int, clients: int, rng: np.random.Generator) -> Array:
    """Return a uniform prior over `active` classes per client, chosen at random, `(clients, classes)`."""
    if active > classes:
        raise UserError(f"partition.classes: found {active}; the data have {classes} classes")
    chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, :active]
    priors = np.zeros((clients, classes))
    np.put_along_axis(priors, chosen, 1 / active, axis=1)
    return priors
