"""Measures of the global model's answers besides accuracy: balanced accuracy, macro F1 and area under the ROC curve."""

import numpy as np
from torch import Tensor


def measure_classes(correct: Tensor, answers: Tensor, counts: np.ndarray) -> dict[str, float]:
    """Return `test_balanced_accuracy` and `test_macro_f1` in percent, from exact counts per class and output.

    Balanced accuracy: mean accuracy over the classes that have samples. Macro F1: mean of 2 right / (samples +
    answers) over the classes that have samples or answers, as scikit-learn's `f1_score(average="macro")`.
    """
    right, given = correct.double().round().numpy(), answers.double().round().numpy()
    samples = np.zeros(len(given))
    samples[: len(counts)] = counts
    total, held = samples + given, counts > 0
    right_of_output = np.zeros(len(given))
    right_of_output[: len(right)] = right
    return {
        "test_balanced_accuracy": 100 * float((right[held] / counts[held]).mean()),
        "test_macro_f1": 100 * float((2 * right_of_output[total > 0] / total[total > 0]).mean()),
    }


def measure_auc(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return `test_auc`, the area under the ROC curve in percent: each class against the rest, mean over the classes.

    The probability that a sample of a class has a higher score for it than one of another class (equal scores count
    half); empty if all samples are of one class.
    """
    from scipy.stats import rankdata  # here: it takes half a second to import

    areas = []
    for label in np.unique(labels):
        is_own = labels == label
        own, others = int(is_own.sum()), int((~is_own).sum())
        if others:
            ranks = rankdata(scores[:, label])
            areas.append((ranks[is_own].sum() - own * (own + 1) / 2) / (own * others))
    return {"test_auc": 100 * float(np.mean(areas))} if areas else {}
