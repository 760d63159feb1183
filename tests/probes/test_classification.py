"""Tests of the global model: exact sums over the chunks, for any loss; balanced accuracy, macro F1 and AUC, by hand
and as scikit-learn has them; each client's accuracies and the confusion matrix as tables and files."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from torch.nn.functional import cross_entropy

import fedray
from fedray.algorithms.base import Algorithm
from fedray.client import LocalClient
from fedray.common.errors import Diverged, UserError
from fedray.datasets.base import load_data
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.result import Result
from fedray.engine.server.simulation import Simulation
from fedray.probes.probe import EvaluatedRound, Probe, TrainedClient
from tests import small
from tests.algorithms.digits import data, problem
from tests.conftest import each


class Undefined(Probe):
    name = "undefined"

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: torch.Tensor) -> dict[str, float]:
        return {"of_step": math.inf}

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return {"of_client": math.nan}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"of_round": math.nan}


def test_what_is_undefined_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A test set of one class has no AUC; the probe measures ∞ at a step, NaN of a client and of the round."""
    whole = load_data(small.config().data)
    arrays = replace(whole, y_test=np.zeros_like(whole.y_test))
    asked = {"auc": True, "probes": [f"{__name__}:Undefined"]}
    result = run(small.problem(training={"rounds": 2}, evaluation=asked, arrays=arrays), InlineBackend())
    assert all(math.isfinite(value) for row in result.history for value in row.values())
    measured = {"of_step", "of_step_std", "of_client", "of_client_std", "of_round", "test_auc"}
    assert measured.isdisjoint(result.history[-1])
    assert "test_auc is undefined" in caplog.text
    summary = json.dumps([result.summary(), result.record().summarise()])
    assert not any(word in summary for word in ("test_auc", "NaN"))


@each(("digits", 1), ({"name": "digits", "test": {"fraction": 0.4}}, 1), ("without 8 and 10", 1), ("digits", 400))
def test_in_a_run(data: Any, times: int) -> None:
    """In the third case no test sample is an 8, which is answered, and no sample at all is of an eleventh class. In the
    last one images are so bright that most probabilities are below 1e-14; their order counts, too."""
    given: dict[str, Any] = {"partition": 0.5, "data": data, "training": {"rounds": 2, "lr": 0.1 / times**2}}
    if data == "without 8 and 10":
        whole = load_data(small.config().data)
        kept = whole.y_test != 8
        arrays = replace(whole, x_test=whole.x_test[kept], y_test=whole.y_test[kept], num_classes=11)
        given |= {"data": "digits", "arrays": arrays}
    problem = small.problem("fedavg", **given, evaluation={"auc": True})
    problem = replace(problem, data=replace(problem.data, std=tuple(one / times for one in problem.data.std)))
    result, worker = run(problem, InlineBackend()), Worker(problem)
    worker.network.load(result.theta)
    worker.network.train(False)
    x, y = worker.test_samples.make_batch(problem.evaluated["test"])
    with torch.no_grad():
        scores = worker.network(x).logits.softmax(1).numpy()
    last, labels = result.history[-1], y.numpy()
    assert last["test_balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels, scores.argmax(1)))
    assert last["test_macro_f1"] == pytest.approx(100 * f1_score(labels, scores.argmax(1), average="macro"))
    areas = [roc_auc_score(labels == k, scores[:, k]) for k in np.unique(labels)]
    assert last["test_auc"] == pytest.approx(100 * np.mean(areas), abs=1e-3)
    assert times > 1 or {8, 10} & {*scores.argmax(1).tolist()} == {8}
    plain = run(replace(small.problem("fedavg", **given), data=problem.data), InlineBackend())
    assert plain.state.theta.equal(result.state.theta)
    assert plain.history == [{key: value for key, value in row.items() if key != "test_auc"} for row in result.history]


def simulate(*probes: Any, total: int = 4) -> dict[str, float]:
    """The last of two rounds of the first four clients on digits."""
    clients = {"total": total, "per_round": 4, "cohorts": [[0, 1, 2, 3]] * 2}
    config = small.sections(clients=clients, partition=0.3, training={"rounds": 2, "local_epochs": 1})
    return dict(fedray.simulate(config | {"evaluation": {"every": 1, "probes": list(probes)}}).history[-1])


def test_angles_of_one_client() -> None:
    """The mean over four clients is the mean of each alone; a client that takes no part has no angle."""
    name, each = "angle_classifier_existing", [simulate({"name": "angles", "client": i}) for i in range(4)]
    assert simulate("angles")[name] == pytest.approx(np.mean([row[name] for row in each]), rel=1e-6)
    assert (len({row[name] for row in each}), {row[f"{name}_std"] for row in each}) == (4, {0.0})
    assert len({row[f"global_{name}"] for row in each}) > 1
    none = simulate({"name": "angles", "client": 7}, total=8)
    assert name not in none
    assert "global_angle_classifier" in none
    with small.refused("evaluation.probes: found client 7; clients.total is 4"):
        simulate({"name": "angles", "client": 7})


def many(samples: int) -> Problem:
    """The digits, with a test set of this size (samples repeat)."""
    built, whole = problem("fedavg"), data()
    pick = np.arange(samples) % len(whole.y_test)
    return replace(built, data=replace(whole, x_test=whole.x_test[pick], y_test=whole.y_test[pick]))


@pytest.mark.parametrize("scale", [1.0, 3000.0])
@pytest.mark.parametrize("samples", [1, 90_000])
def test_loss_and_accuracy_over_chunks(scale: float, samples: int) -> None:
    """180 chunks of 500 give the mean over all 90,000 (the largest test set); a mean above 1e5 is a diverged run."""
    built = many(samples)
    running = Simulation(built, InlineBackend())
    state = replace(running.state, theta=scale * running.state.theta)
    running.restore(state)
    network = built.build_network("cpu")
    network.load(state.theta)
    x = (torch.from_numpy(built.data.x_test).float() / 255 - built.data.mean[0]) / built.data.std[0]
    with torch.no_grad():
        logits, y = network(x).logits, torch.from_numpy(built.data.y_test)
    expected = float(cross_entropy(logits.double(), y))
    assert (expected > 1e5) == (scale == 3000.0)
    if expected > 1e5:
        with pytest.raises(Diverged, match="the test loss is not finite or above 100000"):
            running.tester.test()
        return
    found = running.tester.test().row
    assert found["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))


def tabulated(**sections: Any) -> Problem:
    evaluation = {"every": 2, "last": 1, "personal": {"epochs": [0, 1], "every": 2, "train": True}}
    base = {"partition": 0.3, "evaluation": evaluation, "training": {"rounds": 4, "local_epochs": 1}}
    return small.problem(**{**base, **sections})


@pytest.fixture(scope="module")
def result() -> Result:
    return run(tabulated(), InlineBackend())


def test_the_confusion_matrix_is_of_the_test_set_where_there_is_one(result: Result) -> None:
    """Rows sum to the samples of each class, the diagonal to the accuracy; it is what the model itself answers."""
    counts = result.table("confusion").set_index("class").to_numpy()
    assert counts.dtype.kind == "i"
    y = result.problem.data.y_test
    assert counts.sum(axis=1).tolist() == np.bincount(y, minlength=10).tolist()
    assert 100 * np.trace(counts) / len(y) == pytest.approx(result.history[-1]["test_accuracy"])
    with torch.no_grad():
        answers = result.model()(torch.from_numpy(result.problem.data.x_test)).argmax(1).numpy()
    expected = np.zeros((10, 10))
    np.add.at(expected, (y, answers), 1)
    assert (counts == expected).all()
    assert set(run(tabulated(algorithm="local-only"), InlineBackend()).state.tables) == {"clients"}
    plain = run(tabulated(evaluation={"every": 4}), InlineBackend())
    assert set(plain.state.tables) == {"confusion"}
    with pytest.raises(UserError, match="table: unknown name 'clients'"):
        plain.table("clients")
