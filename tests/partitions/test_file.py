"""Splits from files: partition.npz and JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from tests import small

SPLIT = {"train": [[0, 3], [5], [1, 2, 4]], "test": [[0], [1], [2, 3]]}


def problem(partition: Any, data: Any = "digits", clients: int = 3, **sections: Any) -> Problem:
    return small.problem("fedavg", (clients, 2), partition=partition, data=data, **sections)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "split.json").write_text(json.dumps(SPLIT))
    return tmp_path / "split.json"


@pytest.mark.parametrize(
    "held_out", [{}, {"test": {}}, {"validation": {"fraction": 0.2}}, {"test": {}, "validation": {}}]
)
def test_a_partition_npz_gives_the_same_run(tmp_path: Path, held_out: dict[str, Any]) -> None:
    """The split of a run, read again: the same samples, and the same numbers in the same training."""
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 20}
    sections = {"training": training, "evaluation": {"personal": {"every": 1}}}
    first = problem(0.5, {"name": "digits", **held_out}, 6, **sections)
    (tmp_path / "partition.npz").write_bytes(first.pack_split())
    of_file = {"name": "file", "path": str(tmp_path / "partition.npz")}
    held_out = {key: value for key, value in held_out.items() if key != "validation"}
    again = problem(of_file, {"name": "digits", **held_out}, 6, **sections)
    assert again.shards.digest == first.shards.digest
    assert again.pack_split() == first.pack_split()
    assert run(again, InlineBackend()).history == run(first, InlineBackend()).history


def test_a_json_of_lists(path: Path) -> None:
    """Without `data.test` the lists of `test` count test samples, with it training and test samples together."""
    given = {"name": "file", "path": str(path)}
    apart = problem(given, evaluation={"personal": {}})
    assert [apart.shards[i].tolist() for i in range(3)] == SPLIT["train"]
    assert [apart.tests[i].tolist() for i in range(3)] == SPLIT["test"]
    assert problem(given).tests is None
    path.write_text(json.dumps({"train": SPLIT["train"], "test": [[1796], [1500], [6, 7]]}))
    merged = problem(given, {"name": "digits", "test": {}})
    assert merged.evaluated["test"].tolist() == [1796, 1500, 6, 7]
    np.testing.assert_array_equal(merged.data.x_test[1796], make_data_source("digits").load().x_test[-1])
    path.write_text(json.dumps(SPLIT["train"]))
    assert [problem(given).shards[i].tolist() for i in range(3)] == SPLIT["train"]


def test_a_data_set_that_the_file_is_not_of_is_refused(tmp_path: Path) -> None:
    given = {"name": "file", "path": str(tmp_path / "split.npz")}
    (tmp_path / "split.npz").write_bytes(problem("iid", {"name": "digits", "test": {}}).pack_split())
    apart = r"counts 1797 samples \(training and test samples as one set\); digits has 1437 \+ 360 without data.test"
    with pytest.raises(UserError, match=apart):
        problem(given)
    with pytest.raises(UserError, match=r"counts 1797 samples .* synthetic has 50 with data.test"):
        problem(given, {"name": "synthetic", "train_samples": 40, "test_samples": 10, "test": {}})


def test_a_run_s_file_is_for_its_own_labels(tmp_path: Path) -> None:
    """Two labels change places: equal sizes, another digest. Without the digest only sizes are compared."""
    first = problem(0.5, clients=6)
    (tmp_path / "split.npz").write_bytes(first.pack_split())
    of_file = {"name": "file", "path": str(tmp_path / "split.npz")}
    labels = first.data.y_train.copy()
    other = int(np.flatnonzero(labels != labels[0])[0])
    labels[[0, other]] = labels[[other, 0]]
    changed = replace(first.data, y_train=labels)
    with pytest.raises(UserError, match=r"was made for labels with the digest .* other samples, or another order"):
        problem(of_file, clients=6, arrays=changed)
    with np.load(tmp_path / "split.npz") as file:
        arrays = {name: file[name] for name in file.files if name != "digest"}
    np.savez(tmp_path / "split.npz", allow_pickle=False, **arrays)
    assert problem(of_file, clients=6, arrays=changed).shards.digest == first.shards.digest
    np.savez(tmp_path / "split.npz", allow_pickle=False, **arrays, digest=np.zeros(3, np.uint8))
    with pytest.raises(UserError, match=r"holds digest as uint8 \(3,\); uint8 \(32,\) is required"):
        problem(of_file, clients=6, arrays=changed)
