"""Splits from files: our own partition.npz, JSON, and folders that PFLlib and FL-bench generate."""

import io
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.partitions.file import read_folder
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
    assert apart.tests is not None
    assert [apart.shards[i].tolist() for i in range(3)] == SPLIT["train"]
    assert [apart.tests[i].tolist() for i in range(3)] == SPLIT["test"]
    assert problem(given).tests is None
    path.write_text(json.dumps({"train": SPLIT["train"], "test": [[1796], [1500], [6, 7]]}))
    merged = problem(given, {"name": "digits", "test": {}})
    assert merged.evaluated["test"].tolist() == [1796, 1500, 6, 7]
    np.testing.assert_array_equal(merged.data.x_test[1796], make_data_source("digits").load().x_test[-1])
    path.write_text(json.dumps(SPLIT["train"]))
    assert [problem(given).shards[i].tolist() for i in range(3)] == SPLIT["train"]


def test_a_cell_depends_on_the_content_of_the_file_and_not_on_its_name(path: Path) -> None:
    def cell(file: Path) -> str:
        return RunConfig.parse(small.sections(partition={"name": "file", "path": str(file)})).hash_cell("digest")

    copy = path.with_name("copy.json")
    copy.write_text(path.read_text())
    assert cell(copy) == cell(path)
    copy.write_text(json.dumps(SPLIT | {"train": [[0, 3], [6], [1, 2, 4]]}))
    assert cell(copy) != cell(path)


def made_by_pfllib(folder: Path) -> dict[str, list[np.ndarray]]:
    """Three clients of 3, 4 and 5 training samples, and 1, 1 and 2 test samples, each sample its own number."""
    numbers = {"train": np.split(np.arange(12), [3, 7]), "test": np.split(np.arange(12, 16), [1, 2])}
    for part, clients in numbers.items():
        (folder / part).mkdir(parents=True)
        for i, own in enumerate(clients):
            x = np.zeros((len(own), 1, 2, 2), np.float32) + own[:, None, None, None]
            with (folder / part / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": own % 3})  # type: ignore[arg-type]
    return numbers


def test_a_folder_of_pfllibs_is_a_data_set_with_natural_clients(tmp_path: Path) -> None:
    numbers = made_by_pfllib(tmp_path / "own")
    (tmp_path / "own/train/._0.npz").write_bytes(b"\0\5\x16\7")  # left by macOS
    np.savez(tmp_path / "own.npz", allow_pickle=False, **read_folder(tmp_path / "own"))
    own = problem("natural", {"name": "npz", "path": str(tmp_path / "own.npz")}, evaluation={"personal": {}})
    assert own.tests is not None
    for i in range(3):
        assert sorted(own.data.x_train[own.shards[i], 0, 0, 0].tolist()) == numbers["train"][i].tolist()
        assert sorted(own.data.x_test[own.tests[i], 0, 0, 0].tolist()) == numbers["test"][i].tolist()
    np.testing.assert_array_equal(own.data.y_train, np.arange(12) % 3)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_partition_of_fl_benchs_is_a_split_or_a_data_set(tmp_path: Path, protocol: int) -> None:
    """Positions of training and then test samples; with the samples, a data set."""
    none = np.array([], dtype=np.int64)
    clients = [
        {"train": np.array([0, 1700]), "val": none, "test": np.array([1])},
        {"train": np.array([5], dtype=np.int32), "val": none, "test": [4, 2]},
    ]
    content = {"separation": {"train": [0, 1], "val": [], "test": [0, 1], "total": 2}, "data_indices": clients}
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps(content, protocol))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **read_folder(tmp_path))
    (tmp_path / "split.npz").write_bytes(file.getvalue())
    dealt = problem({"name": "file", "path": str(tmp_path / "split.npz")}, {"name": "digits", "test": {}}, 2)
    assert dealt.tests is not None
    assert [dealt.shards[i].tolist() for i in (0, 1)] == [[0, 1700], [5]]
    assert [dealt.tests[i].tolist() for i in (0, 1)] == [[1], [4, 2]]
    np.save(tmp_path / "data.npy", np.arange(1800.0)[:, None])
    np.save(tmp_path / "targets.npy", np.arange(1800) % 7)
    found = read_folder(tmp_path)
    assert found["x_train"].tolist() == [[0], [1700], [5]]
    assert found["client_train"].tolist() == [0, 0, 1]
    assert (found["y_test"].tolist(), found["client_test"].tolist()) == ([1, 4, 2], [0, 1, 1])


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
