"""Samples held out for validation and testing: how many of which class and client, and never trained on; splits from
files, partition.npz and JSON.
"""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.partitions import make_partition
from fedray.partitions.held_out import Split, _count, draw_stratified, hold_out, split_samples
from fedray.partitions.shards import Shards
from tests import small


def split(dealing: object, seed: int, clients: int = 20, **held_out: Any) -> Split:
    """The digits, dealt."""
    source = make_data_source({"name": "digits", **held_out})
    data = Digits().load() if source.test is None else Digits().load().merge()
    return split_samples(source, make_partition(dealing), data, clients, seed)


def digests(found: Split) -> list[str]:
    return [shards.digest for shards in (found.train, found.test, found.validation) if shards is not None]


def test_classes_in_proportion_the_largest_remainders_rounded_up() -> None:
    """10 of 60 + 30 + 10: 6, 3, 1. 4 of 5 + 3 + 2: 2.0, 1.2, 0.8, so 2, 1 and the one left goes to the last class."""
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    drawn = draw_stratified(labels, 10, np.random.default_rng(0))
    assert Counter(labels[drawn].tolist()) == {0: 6, 1: 3, 2: 1}
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    labels = np.repeat([0, 1, 2], [5, 3, 2])
    for seed in range(20):
        drawn = draw_stratified(labels, 4, np.random.default_rng(seed))
        assert np.bincount(labels[drawn]).tolist() == [2, 1, 1]


def test_every_client_holds_its_share_out_and_keeps_one_sample() -> None:
    """Shards of 40, 10, 4, 1 and 0 samples at 0.1: 4, 1, 0 (0.4), 0, 0. At 0.9 of 4: 3.6 is 4, and 3 leave one."""
    sizes = [40, 10, 4, 1, 0]
    shards = Shards(np.arange(55), np.concatenate([[0], np.cumsum(sizes)]))
    labels = np.arange(55) % 5
    left, held = hold_out(shards, labels, partial(_count, 0.1), seed=3)
    assert held.sizes.tolist() == [4, 1, 0, 0, 0]
    assert left.sizes.tolist() == [36, 9, 4, 1, 0]
    for client in range(5):
        assert sorted([*left[client], *held[client]]) == shards[client].tolist()
    assert hold_out(shards, labels, partial(_count, 0.9), seed=3)[1].sizes.tolist() == [36, 9, 3, 0, 0]


def test_nobody_trains_on_a_sample_that_another_client_holds_out() -> None:
    """Client 0 has ten samples, client 1 the same ten twice: a sample held out by one leaves the other, every copy."""
    shards = Shards.from_lists([np.arange(10), np.tile(np.arange(10), 2)])
    left, held = hold_out(shards, np.zeros(10, dtype=np.int64), partial(_count, 0.3), seed=0)
    assert held.sizes.tolist() == [3, 3], "a share of the different samples"
    gone = set(held.indices.tolist())
    assert set(left[0].tolist()) == set(range(10)) - gone
    assert sorted(left[1].tolist()) == sorted([*(set(range(10)) - gone)] * 2)


@pytest.mark.parametrize("source", ["clients", "pool"])
@pytest.mark.parametrize(
    "dealing", ["iid", {"name": "dirichlet", "alpha": 0.3}, {"name": "dirichlet_client", "alpha": 0.1}]
)
def test_of_digits_a_tenth_keyed_by_the_seed_and_apart_from_training(source: str, dealing: object) -> None:
    """Digits' classes are even to within 3 points, and so are the samples held out of the pool."""
    data = Digits().load()
    found = split(dealing, 5, validation={"fraction": 0.1, "from": source})
    shards, held = found.train, found.validation
    again, other = (split(dealing, seed, validation={"fraction": 0.1, "from": source}) for seed in (5, 6))
    assert digests(found) == digests(again)
    assert other.validation is not None
    assert held.digest != other.validation.digest
    assert not np.intersect1d(shards.indices, held.indices).size
    assert len(held) == (20 if source == "clients" else 1)
    if source == "pool":
        assert len(held.indices) == round(0.1 * len(data.y_train))
        shares = np.bincount(data.y_train[held.indices]) / len(held.indices)
        assert abs(shares - np.bincount(data.y_train) / len(data.y_train)).max() < 1 / len(held.indices)


def test_a_client_tests_on_a_quarter_rounded_up_as_scikit_learn_does() -> None:
    """`train_size=0.75` trains on floor(0.75 n): of 8, 9, 10 and 40 samples 6, 6, 7 and 30. One sample stays."""
    for n in (8, 9, 10, 11, 40):
        assert n - _count(0.25, n, up=True) == len(train_test_split(range(n), train_size=0.75)[0])
    assert [_count(0.25, n, up=True) for n in (0, 1, 2)] == [0, 0, 1]
    assert [_count(0.9, n, up=True) for n in (2, 10, 1000)] == [1, 9, 900]


def test_test_samples_are_drawn_at_random_or_by_class() -> None:
    """20 samples of each of two classes, 20 clients. By class each tests on 5 and 5; at random with a deviation of
    √(10 ¼ 30/39) = 1.39, so that none of 20 clients deviates with a probability of 10⁻¹².
    """
    shards, labels = Shards(np.arange(800), np.arange(0, 801, 40)), np.tile(np.repeat([0, 1], 20), 20)
    for stratify in (True, False):
        _, tests = hold_out(shards, labels, partial(_count, 0.25, up=True), 0, "client test", stratify)
        of_class_1 = [int(labels[tests[i]].sum()) for i in range(20)]
        assert set(tests.sizes) == {10}
        assert (set(of_class_1) == {5}) is stratify
        assert 4 < np.mean(of_class_1) < 6


def test_both_sets_are_dealt_and_split_and_validation_leaves_the_tests_as_they_are() -> None:
    """1,437 + 360 digits among 20 clients: each has 89 or 90, tests on 23 (22.25 and 22.5 rounded up)."""
    plain, both = split("iid", 3, test={}), split("iid", 3, test={}, validation={"fraction": 0.1})
    assert sorted([*plain.train.indices, *plain.test.indices]) == list(range(1797))
    assert set(plain.test.sizes) == {23}
    assert plain.test.digest == both.test.digest
    assert sorted([*both.train.indices, *both.validation.indices]) == sorted(plain.train.indices)
    assert plain.test.digest != getattr(split("iid", 4, test={}).test, "digest", "")


def test_natural_clients_keep_the_test_samples_that_come_with_them() -> None:
    """Clients 3, 3, 7 in training and 7, 3 in the test set: client 0 holds the samples 0, 1, 4, client 1 holds 2, 3."""
    x, y = np.zeros((3, 2), np.float32), np.zeros(3, np.int64)
    data = Dataset("own", x, y, x[:2], y[:2], 2, client_train=np.array([3, 3, 7]), client_test=np.array([7, 3]))
    source = make_data_source({"name": "digits", "test": {"fraction": 0.3}})
    found = split_samples(source, make_partition("natural"), data.merge(), 2, 0)
    assert [sorted([*found.train[i], *found.test[i]]) for i in (0, 1)] == [[0, 1, 4], [2, 3]]
    with pytest.raises(UserError, match="have no natural clients"):
        split_samples(source, make_partition("natural"), replace(data, client_test=None).merge(), 2, 0)


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
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 20}
    sections = {"training": training, "evaluation": {"personal": {"every": 1, "epochs": 1}}}
    first = problem(0.5, {"name": "digits", **held_out}, 6, **sections)
    (tmp_path / "partition.npz").write_bytes(first.pack_split())
    of_file = {"name": "file", "path": str(tmp_path / "partition.npz")}
    held_out = {key: value for key, value in held_out.items() if key != "validation"}
    again = problem(of_file, {"name": "digits", **held_out}, 6, **sections)
    assert again.split.train.digest == first.split.train.digest
    assert again.pack_split() == first.pack_split()
    assert run(again, InlineBackend()).history == run(first, InlineBackend()).history


def test_a_json_of_lists(path: Path) -> None:
    """Without `data.test` the lists of `test` count test samples, with it training and test samples together."""
    given = {"name": "file", "path": str(path)}
    apart = problem(given, evaluation={"personal": {}})
    assert [apart.split.train[i].tolist() for i in range(3)] == SPLIT["train"]
    assert [apart.split.test[i].tolist() for i in range(3)] == SPLIT["test"]
    assert problem(given).split.test is None
    path.write_text(json.dumps({"train": SPLIT["train"], "test": [[1796], [1500], [6, 7]]}))
    merged = problem(given, {"name": "digits", "test": {}})
    assert merged.evaluated["test"].tolist() == [1796, 1500, 6, 7]
    np.testing.assert_array_equal(merged.data.x_test[1796], make_data_source("digits").load().x_test[-1])
    path.write_text(json.dumps(SPLIT["train"]))
    assert [problem(given).split.train[i].tolist() for i in range(3)] == SPLIT["train"]


def test_a_data_set_that_the_file_is_not_of_is_refused(tmp_path: Path) -> None:
    (tmp_path / "split.npz").write_bytes(problem("iid", {"name": "digits", "test": {}}).pack_split())
    apart = r"counts 1797 samples \(training and test samples as one set\); digits has 1437 \+ 360 without data.test"
    with pytest.raises(UserError, match=apart):
        problem({"name": "file", "path": str(tmp_path / "split.npz")})


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
    np.savez(tmp_path / "split.npz", **arrays)
    assert problem(of_file, clients=6, arrays=changed).split.train.digest == first.split.train.digest
    np.savez(tmp_path / "split.npz", **arrays, digest=np.zeros(3, np.uint8))
    with pytest.raises(UserError, match=r"holds digest as uint8 \(3,\); uint8 \(32,\) is required"):
        problem(of_file, clients=6, arrays=changed)
