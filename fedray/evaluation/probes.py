"""What is measured in a run beside accuracy, in rounds that are evaluated, where `evaluation.probes` asks for it.

A client's probes look at it right after its local training; a round gives their mean over the cohort and, as
`NAME_std`, their standard deviation over it (population). What is undefined for a client is left out of both.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from fedray.algorithms.base import Algorithm
from fedray.client import CHUNK, LocalClient
from fedray.data.batches import Samples


def probe_client(probes: Iterable[str], c: LocalClient, algorithm: Algorithm, test: Samples) -> dict[str, float]:
    """The measurements of one trained client, name -> value."""
    found: dict[str, float] = {}
    for probe in probes:
        if probe == "drift":
            found |= drift(c, algorithm)
        elif probe == "forgetting":
            found |= forgetting(c, algorithm, test)
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
    pairs = 1 - sum(w * w for w in weights.values())
    if len(weights) < 2:
        return {}
    square = sum(weights[i] * length**2 for i, length in lengths.items()) - float(update.double().square().sum())
    return {"drift_between": float(np.sqrt(max(2 * square / pairs, 0.0)))}


def forgetting(c: LocalClient, algorithm: Algorithm, test: Samples) -> dict[str, float]:
    """`local_test_accuracy`: percent of the whole test set that the local model gets right (FedSOL, figure 7a)."""
    c.network.load(c.theta)
    c.network.train(False)
    correct = 0
    for start in range(0, len(test), CHUNK):
        x, y = test.batch(np.arange(start, min(start + CHUNK, len(test))))
        with torch.no_grad():
            correct += int((algorithm.logits(c.network(x)).argmax(1) == y).sum())
    return {"local_test_accuracy": 100 * correct / len(test)}


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
