"""Each client's accuracies and the confusion matrix: their contents, their sums, and their files."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedray.common.errors import UserError
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import make_rounds, run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import Result
from fedray.engine.server.simulation import Simulation
from fedray.probes.scores import tabulate_clients, tabulate_confusion
from tests import small


def problem(**sections: Any) -> Problem:
    evaluation = {"every": 2, "last": 1, "personal": {"epochs": [0, 1], "every": 2, "train": True}}
    base = {"partition": 0.3, "evaluation": evaluation, "training": {"rounds": 4, "local_epochs": 1}}
    return small.problem(**{**base, **sections})


@pytest.fixture(scope="module")
def result() -> Result:
    return run(problem(), InlineBackend())


def test_columns_of_clients() -> None:
    """Client 2 has no score; of epochs 0 and 1 the last counts; client 3's shard has 7 samples."""
    scores = {3: {"own_0": 1.0, "own_1": 40.0}, 1: {"own_0": 2.0, "own_1": 50.0}}
    found = tabulate_clients(scores, 1, np.array([0, 5, 9, 7]))
    assert found == {"client": [1, 3], "samples": [5, 7], "accuracy": [50, 40]}


def test_columns_of_a_confusion_matrix() -> None:
    """Two classes, three answers; sums in fixed point may be off by rounding."""
    found = tabulate_confusion(torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.9999999, 1.0]]))
    assert found == {"class": [0, 1], "predicted_0": [2, 0], "predicted_1": [1, 3], "predicted_2": [0, 1]}


def test_clients_are_those_of_the_metrics(result: Result) -> None:
    """Their mean, deviation and extremes are what the last row says."""
    table, last = result.table("clients"), result.history[-1]
    assert list(table["client"]) == [i for i in range(6) if result.problem.shards.sizes[i]]
    assert list(table["samples"]) == [result.problem.shards.sizes[int(i)] for i in table["client"]]
    assert [kind.kind for kind in table.dtypes] == ["i", "i", "f", "f"]
    assert table["accuracy"].mean() == pytest.approx(last["personal_accuracy"])
    assert table["accuracy"].std(ddof=0) == pytest.approx(last["personal_std"])
    assert table["accuracy"].min() == last["personal_worst"]
    assert table["train_accuracy"].max() == last["personal_train_best"]


def test_the_confusion_matrix_is_of_the_test_set(result: Result) -> None:
    """Rows sum to the samples of each class, the diagonal to the accuracy; it is what the model itself answers."""
    counts = result.table("confusion").set_index("class").to_numpy()
    assert counts.dtype.kind == "i"
    y = result.problem.data.y_test
    assert counts.sum(axis=1).tolist() == np.bincount(y, minlength=10).tolist()
    assert 100 * np.trace(counts) / len(y) == pytest.approx(result.history[-1]["test_accuracy"])
    inputs = torch.from_numpy(result.problem.data.x_test)
    with torch.no_grad():
        answers = result.model()(inputs).argmax(1).numpy()
    expected = np.zeros((10, 10))
    np.add.at(expected, (y, answers), 1)
    assert (counts == expected).all()


def test_they_survive_a_checkpoint(result: Result, tmp_path: Path) -> None:
    for state in make_rounds(Simulation(problem(), InlineBackend()), Checkpoints(tmp_path), every=1):
        if state.round == 3:
            break
    *_, last = make_rounds(Simulation(problem(), InlineBackend()), Checkpoints(tmp_path), every=1)
    found = Checkpoints(tmp_path).load()
    assert found.tables == last.tables == result.state.tables


def test_what_there_is_none_of(tmp_path: Path) -> None:
    """Local-only has no global model; without `evaluation.personal` the clients are not tested."""
    alone = run(problem(algorithm="local-only"), InlineBackend())
    assert set(alone.state.tables) == {"clients"}
    plain = run(problem(evaluation={"every": 4}), InlineBackend())
    assert set(plain.state.tables) == {"confusion"}
    with pytest.raises(UserError, match="table: unknown name 'clients'"):
        plain.table("clients")


def test_the_split_as_a_file() -> None:
    """Client i's training samples are those that it holds, its test samples those of its test; no pickle."""
    dealt = problem(data={"name": "digits", "validation": {"fraction": 0.2, "from": "clients"}})
    with np.load(io.BytesIO(dealt.pack_split()), allow_pickle=False) as file:
        for name, shards in (("train", dealt.shards), ("test", dealt.tests), ("validation", dealt.validation)):
            indices, offsets = file[f"{name}_indices"], file[f"{name}_offsets"]
            assert len(offsets) == 7
            for i in range(6):
                assert indices[offsets[i] : offsets[i + 1]].tolist() == shards[i].tolist()
    plain = np.load(io.BytesIO(problem(evaluation={}).pack_split()), allow_pickle=False)
    assert set(plain.files) == {"train_indices", "train_offsets", "samples", "digest"}
