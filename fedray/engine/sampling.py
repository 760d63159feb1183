"""Who takes part in a round, and what each client weighs in its average."""

import numpy as np

from fedray.common.errors import Diverged, UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.sections import Clients


def draw_cohort(config: RunConfig, sizes: np.ndarray, t: int) -> np.ndarray:
    """The clients of round t (from 0).

    Args:
        config: of the run; `clients` and `seed` count here.
        sizes: int64 `(N,)`, each client's training samples. Clients without any take no part.
        t: the round, from 0.

    Returns:
        Ids, int64 `(M,)`, ascending. A draw of nobody is repeated.

    Raises:
        Diverged: where `clients.cohorts` names none but empty clients.
    """
    clients = config.clients
    if clients.cohorts is not None:
        listed = np.array(clients.cohorts[t])
        if len(listed := np.sort(listed[sizes[listed] > 0])) == 0:
            raise Diverged(t + 1, None, "every client of clients.cohorts in this round is empty")
        return listed
    attempt = 0
    while True:
        drawn = _draw(clients, generator(config.seed, "cohort", t, attempt))
        if len(drawn := np.sort(drawn[sizes[drawn] > 0])):
            return drawn
        attempt += 1


def _draw(clients: Clients, rng: np.random.Generator) -> np.ndarray:
    count = clients.cohort_size
    if clients.sampling == "bernoulli":  # the number of successes first, then who: no draw per client
        rate = clients.per_round if isinstance(clients.per_round, float) else count / clients.total
        count = int(rng.binomial(clients.total, rate))
    return rng.choice(clients.total, size=count, replace=False, shuffle=False)


def cohort_weights(
    config: RunConfig, sizes: np.ndarray, cohort: np.ndarray, counts: np.ndarray | None = None
) -> dict[int, float]:
    """π: client -> its weight in the cohort's average; they sum to 1.

    `training.aggregation` says which: uniform, proportional to n_i or to the whole batches in n_i, or FedDisco's.

    Args:
        config: of the run.
        sizes: int64 `(N,)`, each client's training samples.
        cohort: ids, int64 `(M,)`.
        counts: int64 `(N, C)`, each client's samples of each class; FedDisco alone needs them.

    Raises:
        UserError: No client of the cohort has a whole batch.
    """
    training, counted = config.training, sizes[cohort]
    if config.disco is not None and counts is not None:
        weights = config.disco.weights(counts[cohort])
    elif training.aggregation == "uniform":
        weights = np.full(len(cohort), 1 / len(cohort))
    else:
        if training.aggregation == "batches" and training.batch_size != "full":
            counted = counted // training.batch_size
        if not counted.any():
            raise UserError(
                f"training.aggregation: found batches; no client of a cohort has a whole batch of {training.batch_size}"
            )
        weights = counted / counted.sum()
    return {int(i): float(w) for i, w in zip(cohort, weights, strict=True)}
