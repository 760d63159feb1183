"""Number of batch gradients that a run takes, from the file and the published size of the data; nothing is read.

Clients are counted as if they had equal shards. A method's gradients per local step are measured (`engine.cost`).
"""

import json
from functools import cache

from fedray.algorithms import algorithm
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.base import Published
from fedray.engine.cost import Cost, measure_cost

FORWARD = 1 / 3
"""Cost of a forward pass relative to a gradient, which takes three passes of equal length, two of them backward."""


def count_gradients(run: RunConfig, known: Published | None = None) -> float | None:
    """Return the number of batch gradients that a run takes; a forward pass counts as a third.

    Args:
        run: the configuration.
        known: sizes of its data; None for the published ones.

    Returns:
        The number, or None for data of unknown size.
    """
    known = known or run.data.get_expected()
    if known is None or known.train is None or known.test is None:
        return None
    training, evaluation, method = run.training, run.evaluation, run.algorithm
    samples = _count_samples(run, known.train)
    batch, epoch = get_batch_size(run, samples), training.count_steps_per_epoch(samples)
    client = _count_of_client(run, samples)
    total = training.rounds * run.clients.cohort_size * client + _count_of_opening(run, samples)
    rounds = range(1, training.rounds + 1)
    testing = FORWARD * known.test / batch * (1 if method.keeps == "none" else run.clients.total)
    testing += evaluation.train * FORWARD * known.train / batch
    total += testing * sum(evaluation.is_due(t, training.rounds) for t in rounds)
    if evaluation.personal is not None:
        times = sum(evaluation.is_personal_due(t, training.rounds) for t in rounds)
        tuning = {"tuned": evaluation.personal.tuned[-1] * epoch, "trained": client, "kept": 0}[method.personal]
        total += times * run.clients.total * tuning
        total += times * run.clients.unseen * sum(evaluation.personal.tuned) * epoch
    return total


def count_training_gradients(run: RunConfig) -> float | None:
    """Return the batch gradients of a run's training, a forward pass counting as a third; None if of unknown size."""
    known = run.data.get_expected()
    if known is None or known.train is None:
        return None
    samples = _count_samples(run, known.train)
    rounds = run.training.rounds * run.clients.cohort_size * _count_of_client(run, samples)
    return rounds + _count_of_opening(run, samples)


def _count_of_opening(run: RunConfig, samples: int) -> float:
    """Return the batch gradients of the opening: every client takes the steps of a round, one gradient each."""
    return run.clients.total * run.training.count_steps(samples) if run.algorithm.opening is not None else 0


def _count_of_client(run: RunConfig, samples: int) -> float:
    """Return the batch gradients of a client with this many samples in a round."""
    passes, training = _measure_cost(json.dumps(run.algorithm.list_options())), run.training
    in_full = passes.full_gradients * training.count_steps_per_epoch(samples)
    return training.count_steps(samples) * _count_of_step(passes) + in_full


def count_gradients_per_step(run: RunConfig) -> float:
    """Return the batch gradients per local step, a forward pass counting as a third; FedAvg takes 1.

    A pass over the whole shard is spread over the steps of its round.

    Raises:
        UserError: the number depends on the size of the data, which is not known before they are read.
    """
    passes = _measure_cost(json.dumps(run.algorithm.list_options()))
    if not passes.full_gradients:
        return _count_of_step(passes)
    if run.training.local_steps is None:
        return _count_of_step(passes) + passes.full_gradients / run.training.epochs
    known = run.data.get_expected()
    if known is None or known.train is None:
        raise UserError(
            f"equal_budget: {run.algorithm.name} passes over the whole shard, and the size of {run.data.name} is not "
            "known before it is read; give training.local_epochs instead of local_steps"
        )
    per_epoch = run.training.count_steps_per_epoch(_count_samples(run, known.train))
    return _count_of_step(passes) + passes.full_gradients * per_epoch / run.training.local_steps


def _count_of_step(passes: Cost) -> float:
    return passes.gradients + FORWARD * passes.predictions


def _count_samples(run: RunConfig, train: int) -> int:
    """Return the samples per client if all clients have equally many."""
    return -(-train // run.clients.dealt)


def get_batch_size(run: RunConfig, samples: int) -> int:
    """Return the number of samples in a full batch of a client with this many samples."""
    return samples if run.training.batch_size == "full" else min(run.training.batch_size, samples)


@cache
def _measure_cost(options: str) -> Cost:
    return measure_cost(algorithm(json.loads(options)))
