"""Personal evaluation: its numbers and the clients that they belong to; in whole runs fine-tuning, when it takes place,
and that a run never notices it."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedray.algorithms.base import Client
from fedray.algorithms.fedavg import FedAvg, FedProx
from fedray.common.errors import Diverged, UserError
from fedray.common.vectors import Vectors
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask, PersonalEval
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.result import Result
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from fedray.probes.scores import average_everyone, summarise
from tests import small
from tests.conftest import each


class TrainedProx(FedProx):
    name, personal = "trained-prox", "trained"


class NoNumber(FedAvg):
    name = "no-number"

    def personal_logits(self, c: Client) -> Tensor:
        return super().personal_logits(c) * (float("nan") if c.lr < 0.1 else 1.0)


@cache
def digits() -> Dataset:
    return Digits().load()


def problem(
    algorithm: Any, personal: Any = None, evaluation: Any = None, clients: Any = None, model: Any = 8, **training: Any
) -> Problem:
    """Six clients of the digits, three a round; momentum, weight decay and clipping on."""
    base = {"rounds": 2, "local_epochs": 1, "batch_size": 64, "lr": 0.1, "momentum": 0.5, "weight_decay": 1e-2}
    training = {**base, "clip_norm": 2.0, **training}
    clients = {"total": 6, "per_round": 3, **(clients or {})}
    evaluation = {"every": 100, "last": 1, "personal": personal, **(evaluation or {})}
    return small.problem(algorithm, clients, model, 0.5, arrays=digits(), training=training, evaluation=evaluation)


def result(*arguments: Any, **options: Any) -> Result:
    return run(problem(*arguments, **options), InlineBackend())


def another_round(state: State, client: int, algorithm: Any, epochs: int) -> Tensor:
    """theta after a round of only that client, from this state; samples in their order."""
    built = problem(algorithm, rounds=3, local_epochs=epochs, shuffle=False, clients={"cohorts": [[0], [0], [client]]})
    running = Simulation(built, InlineBackend())
    running.restore(dataclasses.replace(state, server=Vectors(), clients={}))
    running.step()
    return running.state.theta


@each(
    ("fedavg", "fedavg", 2), ({"name": "fedprox", "mu": 2.0}, "fedavg", 2), ({"name": "scaffold"}, "fedavg", 1),
    ({"name": "fedavg"}, "fedavg", 0),
    ({"name": "tests.probes.test_personal_runs:TrainedProx", "mu": 2.0}, {"name": "fedprox", "mu": 2.0}, 1),
)  # fmt: skip
def test_fine_tuning_is_training_on_from_x(algorithm: Any, same_as: Any, epochs: int) -> None:
    """e epochs on top of a method, here of one step a round for e = 2, are a round of plain FedAvg by the client alone,
    of e epochs; a model that counts as trained is a round of the method itself."""
    steps = {"local_epochs": None, "local_steps": 1} if epochs == 2 else {}
    built = problem(algorithm, {"epochs": epochs}, shuffle=False, **steps)
    running = Simulation(built, InlineBackend())
    running.step()
    running.step()
    state, worker = running.state, Worker(built)
    network, told = worker.network, running._make_broadcast(running._make_server(1, 6))
    marks = running.tester.test_personal(PersonalEval((epochs,), own=True, everyone=False))
    for i in range(6):
        c = worker.trainer.personalise(told, ClientTask(i, 1 / 6, state.clients.get(i, Vectors())), epochs)
        expected = state.theta if epochs == 0 else another_round(state, i, same_as, epochs)
        assert torch.allclose(c.theta, expected, rtol=0, atol=1e-7)  # x + (y - x) is y up to rounding
        assert torch.equal(c.theta, state.theta) == (epochs == 0)
        network.load(expected)
        x, y = worker.test_samples.make_batch(built.split.test[i])
        right = int((network(x).logits.argmax(1) == y).sum())
        assert marks[i] == {f"own_{epochs}": pytest.approx(100 * right / len(y))}


@each(("fedavg", [2, 3, 4]), ("local-only", [2, 3, 4]), ("fedbabu", [3, 4]), ("fedrep", [3, 4]))
def test_when(method: str, rounds: list[int]) -> None:
    """Tested every 2 rounds, personally every 3, in each case also in the last, 4. Generic accuracy is measured in
    every evaluated round if a global model or unchanged kept models answer."""
    found = result(method, {"epochs": 1, "every": 3}, {"every": 2}, rounds=4).history
    assert [row["round"] for row in found] == [2, 3, 4]
    assert [row["round"] for row in found if "generic_accuracy" in row] == rounds
    assert [row["round"] for row in found if "personal_accuracy" in row] == [3, 4]
    if method == "fedavg":
        assert all(row["generic_accuracy"] == row["test_accuracy"] for row in found)


@each("fedavg", "scaffold", "local-only", "fedproto", "perfedavg", "knnper", "fedrep", "fedrod", "fedgela")
def test_a_run_does_not_notice(method: Any) -> None:
    """Nothing of the state differs in a bit, though fine-tuning draws batches and dropout; nor do other metrics."""
    model = "tests.probes.probed:Careful"
    with_it = result(method, {"epochs": [0, 1], "every": 1}, {"every": 1}, model=model, rounds=3)
    without = result(method, None, {"every": 1}, model=model, rounds=3)
    assert with_it.summary()["theta_sha256"] == without.summary()["theta_sha256"]
    assert with_it.state.digest() == without.state.digest()
    plain = [{k: row[k] for k in row if "personal" not in k and "generic" not in k} for row in with_it.history]
    assert plain == without.history
    assert len([row for row in with_it.history if "personal_worst10" in row]) == 3


def test_without_numbers_it_has_diverged_and_without_test_samples_it_is_refused() -> None:
    with pytest.raises(Diverged, match="diverged in round 2, client 0: the personal model's outputs are not numbers"):
        result("tests.probes.test_personal_runs:NoNumber", {"epochs": 0, "every": 1}, {"every": 1}, lr_decay=0.5)
    # Clients hold the classes below 5, the test set has the others.
    whole = digits()
    kept, asked = whole.y_train < 5, whole.y_test >= 5
    train, test = (whole.x_train[kept], whole.y_train[kept]), (whole.x_test[asked], whole.y_test[asked])
    with pytest.raises(UserError, match=r"evaluation\.personal: no client has test samples of its own"):
        Problem.build(problem("fedavg", {}).config, Dataset("digits", *train, *test, 10))


def few(algorithm: Any, personal: Mapping[str, Any]) -> dict[str, float]:
    """A round of three clients, every input 1: client 0 has label 0, client 1 label 1, client 2 labels 0, 0, 1.

    One full-batch step with η = 1: W = (½, -½), (-½, ½) and (1/6, -1/6), so that the own models answer 0, 1, 0; the
    mean (1/18, -1/18) answers 0. Tests: labels 0, 0, 0, 1."""
    x, y, owner = np.ones((5, 1), np.float32), np.array([0, 1, 0, 0, 1]), np.array([0, 1, 2, 2, 2])
    arrays = Dataset("few", x, y, x[:4], np.array([0, 0, 0, 1]), 2, client_train=owner)
    model = {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}
    sections = {"training": {"rounds": 1, "local_epochs": 1, "batch_size": "full", "lr": 1.0}}
    sections["evaluation"] = {"every": 1, "personal": dict(personal)}
    built = small.problem(algorithm, (3, 3), model, "natural", arrays=arrays, **sections)
    return run(built, InlineBackend()).history[-1]


def test_disjoint_test_sets() -> None:
    """Label 0 is split 1 : 0 : 2 over its holders' samples, label 1 at floor(½) = 0, all of it to client 2.

    Client 1 has no test sample and is left out. x answers 0: client 0 is right on 1 of 1, client 2 on 2 of 3.
    After an epoch of fine-tuning, with W = 1/18 and more, every model still answers 0."""
    found = few("fedavg", {"epochs": [0, 1]})
    pa, std = (100 + 200 / 3) / 2, (100 - 200 / 3) / 2
    for suffix in ("", "_e0", "_e1"):
        assert found[f"personal_accuracy{suffix}"] == pytest.approx(pa)
        assert found[f"personal_std{suffix}"] == pytest.approx(std)
        assert found[f"personal_worst10{suffix}"] == pytest.approx(200 / 3)
    assert found["generic_accuracy"] == found["test_accuracy"] == pytest.approx(75)


def test_shared_test_sets_and_own_training_samples() -> None:
    """floor(1000 x share) of a label is more than there is: 3 of label 0, 1 of label 1, and all 4 for client 2.

    x answers 0: 100, 0 and 75 %, and 100, 0 and 2/3 of the clients' training samples. After an epoch client 1
    (W = (1/18, -1/18) less half and more) answers 1: 100. One number of epochs has no suffix."""
    found = few("fedavg", {"epochs": [1, 0], "split": "share", "train": True})
    assert found["personal_accuracy_e0"] == pytest.approx(175 / 3)
    assert found["personal_std_e0"] == pytest.approx(sqrt((100**2 + 75**2) / 3 - (175 / 3) ** 2))
    assert found["personal_worst10_e0"] == 0
    assert found["personal_accuracy"] == found["personal_accuracy_e1"] == pytest.approx(275 / 3)
    assert (found["personal_worst10"], found["personal_best"], found["personal_worst"]) == pytest.approx((75, 100, 75))
    plain = few("fedavg", {"epochs": 0, "split": "share", "train": True})
    assert plain["personal_train_accuracy"] == pytest.approx(500 / 9)
    assert plain["personal_train_std"] == pytest.approx(sqrt((100**2 + (200 / 3) ** 2) / 3 - (500 / 9) ** 2))
    assert (plain["personal_train_best"], plain["personal_train_worst"]) == pytest.approx((100, 0))
    assert not [name for name in plain if "_e" in name]


def test_without_a_global_model() -> None:
    """Own models answer 0, 1, 0: on the whole test set 75, 25, 75 %. PA and GA are of the clients that have tests.

    Losses: with logits ±½ a right answer costs ln(1 + 1/e), a wrong one 1 more; with ±1/6 ln(1 + e^-⅓), ⅓ more."""
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
    With one test sample of the first and three of the last, three of four answers are right."""
    marks = {i: {"own_1": 10.0 * i, "own_5": 100.0, "everyone": 2.0 * i, "everyone_loss": 1.0 + i} for i in range(11)}
    found, samples = summarise(marks, (1, 5), 61.0, [1, *[0] * 9, 3]), [1, *[0] * 9, 3]
    of_1 = {"accuracy": 50, "std": sqrt(1000), "worst10": 5, "weighted_accuracy": 75}
    of_5 = dict.fromkeys(("accuracy", "std", "worst10", "weighted_accuracy"), 100) | {"std": 0}
    expected = {f"personal_{name}_e1": value for name, value in of_1.items()}
    expected |= {f"personal_{name}{e}": value for name, value in of_5.items() for e in ("_e5", "")}
    assert found == pytest.approx(expected | {"personal_best": 100, "personal_worst": 100, "generic_accuracy": 61})
    assert summarise(marks, (1,), None, samples)["generic_accuracy"] == pytest.approx(10)
    assert average_everyone(marks) == pytest.approx({"test_accuracy": 10, "test_loss": 6})
