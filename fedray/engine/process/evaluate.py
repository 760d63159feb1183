"""Tests of a global model on chunks of a set of samples, in one process."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.client import CHUNK
from fedray.common.errors import UserError
from fedray.common.explain import explain
from fedray.engine.guard import refuse_other_logits
from fedray.engine.process.reduction import Reduction
from fedray.engine.process.worker import Worker

MAX_TEST_LOSS = 1e5
SCORES = "scores of chunk "
"""Prefix of the sums that hold the bits of a chunk's probabilities, with `evaluation.auc`."""
MAX_CONFUSED = 200
"""The confusion matrix is computed for at most this many classes."""


@explain("the test of the global model")
def evaluate(
    worker: Worker, theta: Tensor, buffers: Tensor, chunks: Sequence[int], split: str = "test", round: int = 0
) -> dict[str, Tensor]:
    """Test a model on chunks of 500 consecutive samples of a set of `Problem.evaluated` (not augmented).

    Chunks are numbered from 0; `round`, the number of rounds made so far, keys what the user's own code draws while
    testing. Returns exact sums over the whole set: `loss` (its mean), `correct` per class, and `unbounded`, the number
    of chunks whose mean loss is not finite or above 1e5 (such chunks are left out of `loss`). For the test set also
    `answers` per output, `confusion`, samples by class and answer `(C, outputs)` for up to 200 outputs, each chunk's
    probabilities (`evaluation.auc`), and, under each probe's name, its sums (`Probe.test_sums`) divided by 500. For
    samples held out by clients also `correct_of_clients`, the correct answers of each client that holds samples out.
    Raises UserError if a probe's sum is not finite, though the chunk's loss is bounded, or is too large.
    """
    theta, buffers = theta.to(worker.device), buffers.to(worker.device)
    worker.network.train(False)
    sums = Reduction()
    samples = worker.test_samples if split == "test" else worker.train_samples
    positions = worker.problem.evaluated[split]
    owners: np.ndarray | None = None
    held = worker.problem.own_validation if split == "validation" else None
    if held is not None:  # numbers the clients that hold samples out
        owners = np.repeat(np.cumsum(held.sizes > 0) - 1, held.sizes)
    of_clients: Tensor | None = None
    classes, n = worker.problem.data.num_classes, len(positions)
    terms = count_chunks(n)
    probes = [probe for probe in worker.probes if split == "test" and "global" in probe.tested_models]
    for chunk in chunks:
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        x, y = samples.make_batch(positions[part])
        worker.network.reset(buffers)
        with torch.no_grad(), worker.key_draws(f"test {split}", round, chunk):
            output = worker.network.predict(theta, x)
            logits = worker.problem.config.algorithm.logits(output)
        refuse_other_logits(worker.problem.config.algorithm, "logits", logits, y, classes)
        loss = cross_entropy(logits, y, reduction="sum")
        bounded = loss <= MAX_TEST_LOSS * len(y)  # false for NaN; an unbounded loss cannot be summed
        sums.add_vector("unbounded", (~bounded).float(), 1.0, terms, wide=True)
        sums.add_vector("loss", torch.where(bounded, loss, 0.0), 1 / n, terms)
        answers, outputs = logits.argmax(1), logits.shape[1]
        is_right = (answers == y).float()
        ones = torch.ones_like(is_right)
        if split == "test":
            if outputs <= MAX_CONFUSED:
                counted = _count(y * outputs + answers, ones, classes * outputs).view(classes, outputs)
                sums.add_vector("confusion", counted, 1.0, terms, wide=True)
            sums.add_vector("answers", _count(answers, ones, outputs), 1.0, terms, wide=True)
            if worker.problem.config.evaluation.auc:
                bits = logits.softmax(1).nan_to_num().float().view(torch.int32)  # ordered as the numbers, and exact
                sums.add_vector(f"{SCORES}{chunk}", torch.stack([bits >> 15, bits & 0x7FFF]).float(), 1.0, 1)
        sums.add_vector("correct", _count(y, is_right, classes), 1.0, terms, wide=True)
        if owners is not None:
            theirs = torch.from_numpy(owners[part]).to(worker.device)
            of_clients = is_right.new_zeros(int(owners[-1]) + 1) if of_clients is None else of_clients
            of_clients.scatter_add_(0, theirs, is_right)
        for probe in probes:
            with worker.key_draws(f"probe {probe.name}", round, chunk):
                probed = probe.test_sums(output, y, classes)
            if probed is not None:
                probed = torch.where(bounded, probed, torch.zeros_like(probed))
                sums.add_vector(probe.name, probed, 1 / CHUNK, terms)
    if of_clients is not None:
        sums.add_vector("correct_of_clients", of_clients, 1.0, terms, wide=True)
    refused, fetched, _ = sums.finish()
    if refused:  # all other sums are bounded
        raise UserError(f"evaluation.probes: the sum {refused[-1]}")
    return fetched


def count_chunks(samples: int) -> int:
    """Return the number of chunks of a set."""
    return -(-samples // CHUNK)


def _count(places: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Return the sum of the amounts at each place, float32 `(size,)`: torch.bincount would wait for the device."""
    return amounts.new_zeros(size).scatter_add_(0, places, amounts)
