"""What is measured in a run beside accuracy, in rounds that are evaluated, where `evaluation.probes` asks for it.

A client's probes look at it right after its local training; a round gives their mean over the cohort and, as
`NAME_std`, their standard deviation over it (population). What is undefined for a client is left out of both.
"""

import math
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.algorithms.fedsol import FedSOL
from fedray.client import CHUNK, LocalClient
from fedray.datasets.dataset import Samples
from fedray.evaluation import angles
from fedray.evaluation.proximal import proximal, radii


def probe_client(
    probes: Collection[str],
    c: LocalClient,
    algorithm: Algorithm,
    test: Samples,
    received: Tensor,
    batch_size: int | Literal["full"],
) -> dict[str, float]:
    """The measurements of one trained client, name -> value; the network still holds its running statistics.

    received: the running statistics (B,) that it began with.
    """
    found: dict[str, float] = {}
    if "drift" in probes:
        found |= drift(c, algorithm)
    if "lambda" in probes and isinstance(algorithm, FedSOL):
        found |= radii(c, algorithm)
    if "proximal" in probes:
        found |= proximal(c, algorithm, received, batch_size)
    if "forgetting" in probes or "angles" in probes:  # one pass over the test set for both
        accuracy, sums = tested(c, algorithm, test)
        if "forgetting" in probes:
            found["local_test_accuracy"] = accuracy
        if "angles" in probes:
            found |= angles.of_client(c.theta, c.layout, sums, c.counts > 0)
    return found


def drift(c: LocalClient, algorithm: Algorithm) -> dict[str, float]:
    """`drift`: ||y_i - x||, over the shared parameters (FedSOL, figure 6a)."""
    u = c.update if algorithm.shares != "body" else c.update[c.network.index("body")]
    return {"drift": float(torch.linalg.vector_norm(u))}


def drift_between(lengths: Mapping[int, float], weights: Mapping[int, float], update: torch.Tensor) -> dict[str, float]:
    """`drift_between`: the root of the mean squared distance between two local models of the round (FedSOL, figure 6b).

    Pairs i ≠ j count π_i π_j; by Σ_ij π_i π_j ||u_i - u_j||² = 2 (Σ π_i ||u_i||² - ||Σ π_i u_i||²) no pair is formed.
    lengths: ||u_i||; update: Σ π_i u_i of the shared parameters. Nothing for a cohort of one.
    """
    pairs = 1 - math.fsum(w * w for w in weights.values())
    if len(weights) < 2:
        return {}
    square = math.fsum(weights[i] * length**2 for i, length in lengths.items()) - float(update.double().square().sum())
    return {"drift_between": float(np.sqrt(max(2 * square / pairs, 0.0)))}


def tested(c: LocalClient, algorithm: Algorithm, test: Samples) -> tuple[float, Tensor]:
    """The local model on the whole test set, in evaluation mode, by its generic logits.

    Percent that it gets right (`local_test_accuracy`: FedSOL, figure 7a), and `angles.class_sums`.
    """
    c.network.load(c.theta)
    c.network.train(False)
    correct, sums = 0, torch.zeros(())
    for start in range(0, len(test), CHUNK):
        x, y = test.batch(np.arange(start, min(start + CHUNK, len(test))))
        with torch.no_grad():
            output = c.network(x)
            correct += int((algorithm.logits(output).argmax(1) == y).sum())
        sums = angles.class_sums(output.features, y, c.population.classes) + sums
    return 100 * correct / len(test), sums


def over_cohort(measured: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Mean and standard deviation over the clients, in ascending order of their ids, of each thing measured."""
    names = dict.fromkeys(name for i in sorted(measured) for name in measured[i])
    result: dict[str, float] = {}
    for name in names:
        values = np.array([measured[i][name] for i in sorted(measured) if name in measured[i]])
        result |= {name: float(values.mean()), f"{name}_std": float(values.std())}
    return result


def by_class(correct: torch.Tensor, labels: np.ndarray) -> dict[str, float]:
    """`accuracy_class_C`: percent of each class's test samples that the global model gets right (FedSOL, figure 7b)."""
    counts = np.bincount(labels, minlength=len(correct))
    return {f"accuracy_class_{k}": 100 * float(correct[k]) / int(n) for k, n in enumerate(counts) if n}
