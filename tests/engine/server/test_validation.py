"""Samples held out for validation and testing: what is measured on them, and that training never sees them."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.cells.record import summarise_rounds
from fedray.config import RunConfig
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Samples
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.result import Result
from fedray.partitions.held_out import Split
from tests import small


def config(algorithm: Any = "fedavg", validation: Any = None, test: Any = None, **evaluation: Any) -> RunConfig:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 20}
    held_out = {"name": "digits", "validation": validation, "test": test}
    return small.config(
        algorithm, (8, 4), 16, 0.5, data=held_out, training=training, evaluation={"every": 1, **evaluation}
    )


def answered(problem: Problem, result: Result, training_samples: np.ndarray) -> tuple[Tensor, Tensor]:
    """Logits of the trained model on these samples, and their labels."""
    network = problem.build_network("cpu")
    network.load(result.theta)
    network.train(False)
    x, y = Samples(problem.data.x_train, problem.data.y_train, problem.data, "cpu").make_batch(training_samples)
    with torch.no_grad():
        return network(x).logits, y


@pytest.mark.parametrize("source", ["clients", "pool"])
def test_what_is_measured_on_the_held_out_samples(source: str) -> None:
    """As the trained model gives it, sample by sample; 0.45 of 1,437 are more than one chunk of 500."""
    problem = Problem.build(config(validation={"fraction": 0.45, "from": source}))
    result = run(problem, InlineBackend())
    last, held = result.history[-1], problem.split.validation
    assert len(held.indices) > 500
    logits, y = answered(problem, result, held.indices)
    is_right = (logits.argmax(1) == y).numpy()
    assert last["validation_accuracy"] == pytest.approx(100 * is_right.mean())
    assert last["validation_loss"] == pytest.approx(float(cross_entropy(logits, y)), rel=1e-5)
    if source == "pool":
        assert "validation_client_accuracy" not in last
        return
    parts = np.split(is_right, held.offsets[1:-1])
    own = np.array([100 * part.mean() for part in parts if len(part)])
    assert last["validation_client_accuracy"] == pytest.approx(own.mean())
    assert last["validation_client_std"] == pytest.approx(own.std())
    assert last["validation_client_worst10"] == pytest.approx(own.min()), "a tenth of 8 clients is one"


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
@pytest.mark.parametrize("source", ["clients", "pool"])
def test_training_never_sees_them(algorithm: str, source: str) -> None:
    """Black images in their place change what is measured on them, and nothing else."""
    asked = config(algorithm, {"fraction": 0.2, "from": source}, personal={"epochs": 1, "every": 1})
    problem = Problem.build(asked)
    x = problem.data.x_train.copy()
    x[problem.split.validation.indices] = 0
    blackened = replace(problem, data=replace(problem.data, x_train=x))
    ours, theirs = run(problem, InlineBackend()), run(blackened, InlineBackend())
    assert ours.state.digest() == theirs.state.digest()
    for row, other in zip(ours.history, theirs.history, strict=True):
        changed = {name for name in row if row[name] != other[name]}
        assert changed
        assert all(name.startswith("validation_") for name in changed), changed


def test_measuring_changes_nothing_and_train_accuracy_is_of_what_is_trained_on() -> None:
    """A run with the same shards and no held-out samples has the same state; all 1,437 less a fifth are left."""
    asked = config(validation={"fraction": 0.2}, train=True)
    problem = Problem.build(asked)
    assert len(problem.evaluated["train"]) == 1437 - len(problem.evaluated["validation"])
    assert Worker(problem).population.total_samples == len(problem.evaluated["train"]), "what methods weigh by"
    plain, result = Problem(config(train=True), problem.data, Split(problem.split.train)), run(problem, InlineBackend())
    assert result.state.digest() == run(plain, InlineBackend()).state.digest()
    logits, y = answered(problem, result, problem.evaluated["train"])
    assert result.history[-1]["train_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))
    assert "validation" not in Problem.build(config(), Digits().load()).evaluated


def test_own_test_samples_are_what_is_tested_and_never_trained_on() -> None:
    """The global model on all clients' test samples, personal models on their own; black images there change only that.

    Weighted by test samples, the clients' accuracies of the same global model (no epoch of fine-tuning) are its own.
    """
    asked = config(personal={"epochs": 0, "every": 1}, train=True, probes=["forgetting"], test={"fraction": 0.3})
    problem = Problem.build(asked)
    assert len(problem.evaluated["train"]) + len(problem.split.test.indices) == 1797
    result = run(problem, InlineBackend())
    logits, y = answered(problem, result, problem.split.test.indices)
    last = result.history[-1]
    assert last["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))
    assert last["personal_weighted_accuracy"] == pytest.approx(last["test_accuracy"])
    parts = np.split((logits.argmax(1) == y).numpy(), problem.split.test.offsets[1:-1])
    assert last["personal_accuracy"] == pytest.approx(np.mean([100 * part.mean() for part in parts if len(part)]))
    assert result.table("confusion").drop(columns="class").to_numpy().sum() == len(problem.split.test.indices)
    x = problem.data.x_train.copy()
    x[problem.split.test.indices] = 0
    blackened = run(replace(problem, data=replace(problem.data, x_train=x, x_test=x)), InlineBackend())
    assert blackened.state.digest() == result.state.digest()
    assert blackened.history[-1]["train_accuracy"] == last["train_accuracy"]
    assert blackened.history[-1]["test_accuracy"] != last["test_accuracy"]
    with np.load(BytesIO(problem.pack_split())) as split:
        np.testing.assert_array_equal(split["test_indices"], problem.split.test.indices)
        assert not np.intersect1d(split["train_indices"], split["test_indices"]).size


def test_best_is_selected_on_the_held_out_samples() -> None:
    """Round 2 is best on the held-out samples, round 3 on the test set; of equal ones the first counts."""
    rows = [
        {"round": 1.0, "test_accuracy": 60.0, "validation_accuracy": 50.0, "personal_accuracy": 70.0},
        {"round": 2.0, "test_accuracy": 61.0, "validation_accuracy": 58.0},
        {"round": 3.0, "test_accuracy": 69.0, "validation_accuracy": 58.0},
        {"round": 4.0, "test_accuracy": 62.0, "validation_accuracy": 55.0, "personal_accuracy": 65.0},
    ]
    found = summarise_rounds(rows)
    assert (found["best_round"], found["best_test_accuracy"], found["best_validation_accuracy"]) == (2, 61, 58)
    assert found["best_personal_accuracy"] == 65, "of the rounds that measure it"
    plain = [{key: value for key, value in row.items() if key != "validation_accuracy"} for row in rows]
    found = summarise_rounds(plain)
    assert (found["best_round"], found["best_test_accuracy"], found["best_personal_accuracy"]) == (3, 69, 70)
