"""The clients of a round, and each one's weight in the average."""

from collections.abc import Callable

import numpy as np

from fedray.algorithms.base import Cohort
from fedray.common.errors import UserError, truncate_repr
from fedray.common.rng import generator
from fedray.config import RunConfig, Training

ATTEMPTS = 10_000
"""A round's cohort is drawn so often at most until a client with samples is in it."""


def draw_cohort(config: RunConfig, sizes: np.ndarray, t: int) -> np.ndarray:
    """Draw the clients of round t (from 0): ids, int64 `(M,)`, ascending. An empty cohort is redrawn.

    Clients without samples do not take part (`sizes`: int64 `(N,)`). Raises UserError if all draws are empty.
    """
    clients = config.clients
    if clients.cohorts is not None:
        listed = np.array(clients.cohorts[t])
        return np.sort(listed[sizes[listed] > 0])  # `Problem` refuses a round without one
    for attempt in range(ATTEMPTS):
        rng, count = generator(config.seed, "cohort", t, attempt), clients.cohort_size
        if clients.sampling == "bernoulli":  # the number of successes first, then which: no draw per client
            rate = clients.per_round if isinstance(clients.per_round, float) else count / clients.total
            count = int(rng.binomial(clients.total, rate))
        drawn = rng.choice(clients.total, size=count, replace=False, shuffle=False)
        if len(drawn := np.sort(drawn[sizes[drawn] > 0])):
            return drawn
    raise UserError(
        f"clients.per_round: found {clients.per_round} of {clients.total} clients, {np.count_nonzero(sizes)} of them "
        f"with samples; {ATTEMPTS} draws of round {t + 1} had none of these; more are required"
    )


def refuse_without_batches(config: RunConfig, sizes: np.ndarray) -> None:
    """Refuse `training.aggregation: batches` if no client of some cohort has a whole batch. Raises UserError."""
    training, size = config.training, config.training.batch_size
    if training.aggregation != "batches" or size == "full" or config.algorithm.overrides("weights"):
        return
    for t in range(training.rounds if (sizes < size).any() else 0):
        if not (sizes[draw_cohort(config, sizes, t)] >= size).any():
            raise UserError(
                f"training.aggregation: found batches; no client of round {t + 1} has a whole one of {size}"
            )


def weigh_cohort(
    config: RunConfig, sizes: np.ndarray, cohort: np.ndarray, label_counts: Callable[[], np.ndarray]
) -> dict[int, float]:
    """Return π: client -> its weight in the cohort's average, by the method or `training.aggregation`; they sum to 1.

    Raises UserError if they are not valid weights, or no client of the cohort has a whole batch.
    """
    weights = config.weighing.weights(Cohort(sizes[cohort], lambda: label_counts()[cohort]))
    if weights is None:
        weights = _weigh_by_size(config.training, sizes[cohort])
    elif np.shape(weights) != np.shape(cohort) or not (np.min(weights) >= 0 and abs(np.sum(weights) - 1) < 1e-6):
        numbers = truncate_repr(np.asarray(weights).tolist())
        raise UserError(
            f"algorithm: {config.weighing.name}.weights gives {numbers}; {len(cohort)} numbers of at least 0 that sum "
            "to 1 are required"
        )
    return {int(i): float(w) for i, w in zip(cohort, weights, strict=True)}


def _weigh_by_size(training: Training, counted: np.ndarray) -> np.ndarray:
    """Return the weights of `training.aggregation`. counted: each client's training samples, int64 `(M,)`."""
    if training.aggregation == "uniform":
        return np.full(len(counted), 1 / len(counted))
    if training.aggregation == "batches" and training.batch_size != "full":
        counted = counted // training.batch_size
    if not counted.any():
        raise UserError(
            f"training.aggregation: found batches; no client of a cohort has a whole batch of {training.batch_size}"
        )
    weights: np.ndarray = counted / counted.sum()
    return weights
