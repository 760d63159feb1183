"""Personal accuracy (PA) and generic accuracy (GA) from what every client's personal model scored."""

from collections.abc import Mapping, Sequence

import numpy as np

WORST = 0.1
"""The share of clients, at least one, whose mean is `personal_worst10`."""


def summary(
    scores: Mapping[int, Mapping[str, float]], epochs: Sequence[int], test_accuracy: float | None
) -> dict[str, float]:
    """The metrics of a personal evaluation; accuracies in percent.

    scores: client -> test -> value (`Worker.evaluate_personal`). epochs: of fine-tuning, ascending.
    test_accuracy: the global
    model's, where it is the generic model; None where the generic accuracy is the mean of the personal models'.

    `personal_accuracy`: mean over clients. `personal_std`: standard deviation over clients (population).
    `personal_worst10`: mean of the worst tenth of them (rounded up). Of the largest number of epochs; with several also
    `personal_accuracy_eE` and so on for each. `generic_accuracy`.
    """
    result: dict[str, float] = {}
    for e in epochs:
        own = np.array([scores[i][f"own_{e}"] for i in sorted(scores)])
        values = {
            "personal_accuracy": float(own.mean()),
            "personal_std": float(own.std()),
            "personal_worst10": float(np.sort(own)[: int(np.ceil(WORST * len(own)))].mean()),
        }
        result |= values
        if len(epochs) > 1:
            result |= {f"{name}_e{e}": value for name, value in values.items()}
    generic = test_accuracy if test_accuracy is not None else everyone(scores)["test_accuracy"]
    return result | {"generic_accuracy": generic}


def everyone(scores: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Mean over clients of accuracy (percent) and loss on the whole test set."""
    return {
        "test_accuracy": float(np.mean([scores[i]["everyone"] for i in sorted(scores)])),
        "test_loss": float(np.mean([scores[i]["everyone_loss"] for i in sorted(scores)])),
    }
