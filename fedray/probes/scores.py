"""From an evaluation's counts and scores: metrics of classes and of clients, and tables as columns.

Of clients: personal accuracy (PA) and generic accuracy (GA), from the scores of every client's personal model.
"""

from collections.abc import Mapping, Sequence

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


Table = dict[str, list[float]]
"""Column -> values."""
Scores = Mapping[int, Mapping[str, float]]
"""Client -> test -> value (`evaluate_personal`)."""


def tabulate_clients(scores: Scores, epochs: int, newcomers: Scores, tuned: int, sizes: np.ndarray) -> Table:
    """Return `client` (ascending), `samples`, `accuracy` on its own test samples in percent, and, if tested, on its own
    training samples, after the largest numbers of epochs. Unseen clients come last, with the `accuracy` of the model
    they receive; then there are also `unseen` (0 or 1) and `finetuned_accuracy`. Tests that a client does not take are
    NaN.
    """
    unseen = {i: {f"own_{epochs}": one["received"], "tuned": one[f"own_{tuned}"]} for i, one in newcomers.items()}
    marks = {i: each[i] for each in (scores, unseen) for i in sorted(each)}
    columns = {"client": [float(i) for i in marks], "samples": [float(sizes[i]) for i in marks]}

    def collect(test: str) -> list[float]:
        return [one.get(test, float("nan")) for one in marks.values()]

    for name, test in (("accuracy", f"own_{epochs}"), ("train_accuracy", f"train_{epochs}")):
        if scores and all(test in scores[i] for i in scores):
            columns[name] = collect(test)
    if newcomers:
        columns |= {"unseen": [float(i in unseen) for i in marks], "finetuned_accuracy": collect("tuned")}
    return columns


def tabulate_confusion(counts: Tensor) -> Table:
    """Return a row per class: `class`, and `predicted_K` for each answer K, of counts `(C, outputs)` up to rounding."""
    whole = counts.double().round()
    answers = {f"predicted_{k}": whole[:, k].tolist() for k in range(whole.shape[1])}
    return {"class": [float(k) for k in range(len(whole))], **answers}


WORST = 0.1
"""Fraction of clients, at least one client, whose mean is `personal_worst10`."""


def summarise(
    scores: Scores,
    epochs: Sequence[int],
    test_accuracy: float | None,
    sizes: Sequence[int] | np.ndarray,
) -> dict[str, float]:
    """Return the metrics of a personal evaluation (`evaluate_personal`); accuracies in percent.

    `personal_accuracy`: mean over clients. `personal_std`: standard deviation over clients (population).
    `personal_worst10`: mean of the worst tenth of them (rounded up). `personal_weighted_accuracy`: mean over clients,
    weighted by their test samples, of which `sizes` has the numbers of all. These are after the largest number of
    epochs; with several numbers also `personal_accuracy_eE` and so on for each. `personal_best`, `personal_worst`: the
    best and the worst client. `personal_train_accuracy`, `_std`, `_best`, `_worst`: the same on the clients' own
    training samples, if these were tested. `generic_accuracy`: `test_accuracy`, the global model's, or the mean of the
    personal models' if that is None.
    """
    result: dict[str, float] = {}
    for name, test in (("personal", "own"), ("personal_train", "train"), ("validation_personal", "validation")):
        for e in epochs:
            own = [scores[i][f"{test}_{e}"] for i in sorted(scores) if f"{test}_{e}" in scores[i]]
            if own:
                values = summarise_clients(name, np.array(own))
                if test == "own":
                    values["personal_weighted_accuracy"] = float(
                        np.average(own, weights=[sizes[i] for i in sorted(scores)])
                    )
                result |= values
                if len(epochs) > 1:
                    result |= {f"{key}_e{e}": value for key, value in values.items()}
                if e == epochs[-1] and test != "validation":
                    result |= {f"{name}_best": max(own), f"{name}_worst": min(own)}
    generic = test_accuracy if test_accuracy is not None else average_everyone(scores)["test_accuracy"]
    return result | {"generic_accuracy": generic}


def summarise_newcomers(scores: Scores, epochs: Sequence[int]) -> dict[str, float]:
    """Return the metrics of clients that have never trained, of the model that each receives, in percent.

    `unseen_accuracy`, `unseen_std` and `unseen_worst10` are mean, deviation (population) and mean of the worst tenth;
    `unseen_finetuned_accuracy` is the mean after the largest number of epochs, `..._eE` after each of several.
    """
    received = np.array([scores[i]["received"] for i in sorted(scores)])
    tuned = {e: float(np.mean([scores[i][f"own_{e}"] for i in sorted(scores)])) for e in epochs}
    name = "unseen_finetuned_accuracy"
    each = {f"{name}_e{e}": value for e, value in tuned.items()} if len(epochs) > 1 else {}
    return summarise_clients("unseen", received) | {name: tuned[epochs[-1]]} | each


def summarise_clients(name: str, accuracies: np.ndarray) -> dict[str, float]:
    """Return `NAME_accuracy`, `NAME_std` (population) and `NAME_worst10`, the mean of the worst tenth (rounded up)."""
    return {
        f"{name}_accuracy": float(accuracies.mean()),
        f"{name}_std": float(accuracies.std()),
        f"{name}_worst10": float(np.sort(accuracies)[: int(np.ceil(WORST * len(accuracies)))].mean()),
    }


def average_everyone(scores: Scores) -> dict[str, float]:
    """Return the mean over clients of accuracy (percent) and loss on the whole test set and on all held-out samples."""
    return {
        f"{name}_{what}": float(np.mean([scores[i][f"{test}{suffix}"] for i in sorted(scores)]))
        for name, test in (("test", "everyone"), ("validation", "everyone_validation"))
        for what, suffix in (("accuracy", ""), ("loss", "_loss"))
        if all(test in scores[i] for i in scores)
    }
