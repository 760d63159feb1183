"""Tables of an evaluation, as columns: each client's accuracies, and the confusion matrix."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

Table = dict[str, list[float]]
"""Column -> values."""


def tabulate_clients(scores: Mapping[int, Mapping[str, float]], epochs: int, sizes: np.ndarray) -> Table:
    """Return `client` (ascending), `samples`, `accuracy` on its own test samples in percent, and, if tested, on its own
    training samples. epochs: of fine-tuning; the largest number counts.
    """
    columns: Table = {
        "client": [float(i) for i in sorted(scores)],
        "samples": [float(sizes[i]) for i in sorted(scores)],
    }
    for name, test in (("accuracy", f"own_{epochs}"), ("train_accuracy", f"train_{epochs}")):
        if scores and all(test in one for one in scores.values()):
            columns[name] = [scores[i][test] for i in sorted(scores)]
    return columns


def add_newcomers(table: Table, scores: Mapping[int, Mapping[str, float]], epochs: int, sizes: np.ndarray) -> Table:
    """Return the table of clients with rows for the unseen ones, and `unseen` (0 or 1) and `finetuned_accuracy`.

    `accuracy` of an unseen client is that of the model it receives. Tests that a client does not take are NaN.
    """
    ids, none = sorted(scores), float("nan")
    rows = {
        "client": [float(i) for i in ids],
        "samples": [float(sizes[i]) for i in ids],
        "accuracy": [scores[i]["received"] for i in ids],
    }
    known = len(table["client"])
    joined = {name: [*column, *rows.get(name, [none] * len(ids))] for name, column in table.items()}
    finetuned = [scores[i][f"own_{epochs}"] for i in ids]
    return joined | {
        "unseen": [0.0] * known + [1.0] * len(ids),
        "finetuned_accuracy": [none] * known + finetuned,
    }


def tabulate_confusion(counts: Tensor) -> Table:
    """Return a row per class: `class`, and `predicted_K` for each answer K, of counts `(C, outputs)` up to rounding."""
    whole = counts.double().round()
    answers = {f"predicted_{k}": whole[:, k].tolist() for k in range(whole.shape[1])}
    return {"class": [float(k) for k in range(len(whole))], **answers}
