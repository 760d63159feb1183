"""Personal evaluation: its numbers, and the clients that they belong to."""

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.probes.scores import average_everyone, summarise
from tests import small


def few(algorithm: Any, personal: Mapping[str, Any], **evaluation: Any) -> dict[str, float]:
    """The only round of `few_rounds`."""
    return few_rounds(algorithm, personal, 1, **evaluation)[-1]


def few_rounds(
    algorithm: Any, personal: Mapping[str, Any], rounds: int = 2, **evaluation: Any
) -> list[dict[str, float]]:
    """Rounds of three clients, every input 1: client 0 has label 0, client 1 label 1, client 2 labels 0, 0, 1.

    One full-batch step with η = 1: W = (½, -½), (-½, ½) and (1/6, -1/6), so that the own models answer 0, 1, 0; the
    mean (1/18, -1/18) answers 0. Tests: labels 0, 0, 0, 1.
    """
    owner = np.array([0, 1, 2, 2, 2])
    data = Dataset(
        "few",
        np.ones((5, 1), np.float32),
        np.array([0, 1, 0, 0, 1]),
        np.ones((4, 1), np.float32),
        np.array([0, 0, 0, 1]),
        2,
        client_train=owner,
    )
    built = small.problem(
        algorithm,
        (3, 3),
        {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]},
        "natural",
        arrays=data,
        training={"rounds": rounds, "local_epochs": 1, "batch_size": "full", "lr": 1.0},
        evaluation={"every": 1, "personal": dict(personal)} | evaluation,
    )
    return run(built, InlineBackend()).history


def test_disjoint_test_sets() -> None:
    """Label 0 is split 1 : 0 : 2 over its holders' samples, label 1 at floor(½) = 0, all of it to client 2.

    Client 1 has no test sample and is left out. x answers 0: client 0 is right on 1 of 1, client 2 on 2 of 3.
    After an epoch of fine-tuning, with W = 1/18 and more, every model still answers 0.
    """
    found = few("fedavg", {"epochs": [0, 1]})
    pa, std = (100 + 200 / 3) / 2, (100 - 200 / 3) / 2
    for suffix in ("", "_e0", "_e1"):
        assert found[f"personal_accuracy{suffix}"] == pytest.approx(pa)
        assert found[f"personal_std{suffix}"] == pytest.approx(std)
        assert found[f"personal_worst10{suffix}"] == pytest.approx(200 / 3)
    assert found["generic_accuracy"] == found["test_accuracy"] == pytest.approx(75)


def test_shared_test_sets() -> None:
    """floor(1000 x share) of a label is more than there is: 3 of label 0, 1 of label 1, and all 4 for client 2.

    x answers 0: 100, 0 and 75 %. After an epoch client 1 (W = (1/18, -1/18) less half and more) answers 1: 100.
    """
    found = few("fedavg", {"epochs": [1, 0], "split": "share"})
    assert found["personal_accuracy_e0"] == pytest.approx(175 / 3)
    assert found["personal_std_e0"] == pytest.approx(sqrt((100**2 + 75**2) / 3 - (175 / 3) ** 2))
    assert found["personal_worst10_e0"] == 0
    assert found["personal_accuracy"] == found["personal_accuracy_e1"] == pytest.approx(275 / 3)
    assert found["personal_worst10"] == pytest.approx(75)


def test_the_global_model_on_own_samples() -> None:
    """x answers 0: 100, 0 and 2/3 of the clients' training samples, 100, 0 and 75 % of their test samples."""
    found = few("fedavg", {"epochs": 0, "split": "share", "train": True})
    assert found["personal_train_accuracy"] == pytest.approx(500 / 9)
    assert found["personal_train_std"] == pytest.approx(sqrt((100**2 + (200 / 3) ** 2) / 3 - (500 / 9) ** 2))
    assert (found["personal_train_best"], found["personal_train_worst"]) == pytest.approx((100, 0))
    assert (found["personal_best"], found["personal_worst"]) == pytest.approx((100, 0))
    assert not [name for name in few("fedavg", {"epochs": 0}) if "train_accuracy" in name]


def test_generic_accuracy_is_of_the_clients_with_test_samples() -> None:
    """Disjoint: client 1 has no test samples. Round 1 of 2 tests only the stored models, as does the last."""
    first, last = few_rounds("local-only", {"every": 2})
    assert "personal_accuracy" not in first
    assert first["generic_accuracy"] == pytest.approx(75)
    assert last["generic_accuracy"] == pytest.approx(75)


def test_one_number_of_epochs_has_no_suffix() -> None:
    found = few("fedavg", {"epochs": 0, "split": "share"})
    assert found["personal_accuracy"] == pytest.approx(175 / 3)
    assert not [name for name in found if "_e" in name]


def test_without_a_global_model() -> None:
    """Own models answer 0, 1, 0: on the whole test set 75, 25, 75 %. PA and GA are of the clients that have tests.

    Losses there: with logits ±½ a right answer costs ln(1 + 1/e), a wrong one 1 more; with ±1/6 ln(1 + e^-⅓), ⅓ more.
    """
    disjoint, shared = few("local-only", {}), few("local-only", {"split": "share"})
    assert disjoint["personal_accuracy"] == pytest.approx((100 + 200 / 3) / 2)
    assert disjoint["generic_accuracy"] == pytest.approx(75)
    assert shared["personal_accuracy"] == pytest.approx((100 + 100 + 75) / 3)
    assert shared["generic_accuracy"] == pytest.approx(175 / 3)
    near, far = log(1 + np.exp(-1)), log(1 + np.exp(-1 / 3))
    for found in (disjoint, shared):
        assert found["test_accuracy"] == pytest.approx(175 / 3)
        assert found["test_loss"] == pytest.approx((near + 1 / 4 + near + 3 / 4 + far + 1 / 12) / 3, rel=1e-6)


def test_summary() -> None:
    """Eleven clients with 0, 10, .. 100 %: mean 50, variance 1,000, the worst two (11 % rounded up) 5 on average.
    With one test sample of the first and three of the last, three of four answers are right.
    """
    marks = {i: {"own_1": 10.0 * i, "own_5": 100.0, "everyone": 2.0 * i, "everyone_loss": 1.0 + i} for i in range(11)}
    trained = {i: {**scores, "train_1": 10.0 * i} for i, scores in marks.items()}
    found = summarise(marks, (1, 5), 61.0, [1, *[0] * 9, 3])
    assert found == pytest.approx(
        {
            "personal_accuracy_e1": 50,
            "personal_std_e1": sqrt(1000),
            "personal_worst10_e1": 5,
            "personal_weighted_accuracy_e1": 75,
            "personal_accuracy_e5": 100,
            "personal_std_e5": 0,
            "personal_worst10_e5": 100,
            "personal_weighted_accuracy_e5": 100,
            "personal_weighted_accuracy": 100,
            "personal_accuracy": 100,
            "personal_std": 0,
            "personal_worst10": 100,
            "personal_best": 100,
            "personal_worst": 100,
            "generic_accuracy": 61,
        }
    )
    own = {"personal_accuracy": 50, "personal_std": sqrt(1000), "personal_worst10": 5}
    own |= {"personal_weighted_accuracy": 75}
    own |= {"personal_best": 100, "personal_worst": 0, "generic_accuracy": 10}
    assert summarise(marks, (1,), None, [1, *[0] * 9, 3]) == pytest.approx(own)
    train = {"personal_train_accuracy": 50, "personal_train_std": sqrt(1000)}
    train |= {"personal_train_worst10": 5, "personal_train_best": 100, "personal_train_worst": 0}
    assert summarise(trained, (1,), None, [1, *[0] * 9, 3]) == pytest.approx(own | train)
    assert average_everyone(marks) == pytest.approx({"test_accuracy": 10, "test_loss": 6})
