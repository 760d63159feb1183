"""Samples held out for validation: how many of which class, from which clients, and that no client trains on them."""

from collections import Counter

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.arrays import Digits
from fedray.datasets.base import Validation
from fedray.partitions import make_partition
from fedray.partitions.shards import Shards
from fedray.partitions.validation_split import draw_stratified, hold_out, split_validation


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


def test_equal_remainders_and_the_samples_of_a_class_are_drawn_at_random() -> None:
    """1 of 2 + 2: either class, and each of the four samples a quarter of the time (100 of 400, sd 8.7)."""
    labels = np.array([0, 0, 1, 1])
    drawn = Counter(int(draw_stratified(labels, 1, np.random.default_rng(seed))[0]) for seed in range(400))
    assert set(drawn) == {0, 1, 2, 3}
    assert all(abs(n - 100) < 40 for n in drawn.values()), drawn


def test_every_client_holds_its_share_out_and_keeps_one_sample() -> None:
    """Shards of 40, 10, 4, 1 and 0 samples at 0.1: 4, 1, 0 (0.4), 0, 0. At 0.9 of 4: 3.6 is 4, and 3 leave one."""
    sizes = [40, 10, 4, 1, 0]
    shards = Shards(np.arange(55), np.concatenate([[0], np.cumsum(sizes)]))
    labels = np.arange(55) % 5
    left, held = hold_out(shards, labels, 0.1, seed=3)
    assert held.sizes.tolist() == [4, 1, 0, 0, 0]
    assert left.sizes.tolist() == [36, 9, 4, 1, 0]
    for client in range(5):
        assert sorted([*left[client], *held[client]]) == shards[client].tolist()
    assert hold_out(shards, labels, 0.9, seed=3)[1].sizes.tolist() == [36, 9, 3, 0, 0]


def test_every_client_draws_on_its_own() -> None:
    """1 of 10 samples of one class, 50 clients: were it always the same position, one would be held out, not 10."""
    shards = Shards(np.arange(500), np.arange(0, 501, 10))
    _, held = hold_out(shards, np.zeros(500, dtype=np.int64), 0.1, seed=0)
    assert held.sizes.tolist() == [1] * 50
    assert len(set((held.indices % 10).tolist())) >= 8  # each position is missed by all with probability 0.9^50 = 0.5 %


def test_nobody_trains_on_a_sample_that_another_client_holds_out() -> None:
    """Client 0 has ten samples, client 1 the same ten twice: a sample held out by one leaves the other, every copy."""
    shards = Shards.from_lists([np.arange(10), np.tile(np.arange(10), 2)])
    left, held = hold_out(shards, np.zeros(10, dtype=np.int64), 0.3, seed=0)
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
    data, who = Digits().load(), make_partition(dealing)
    wanted = Validation(fraction=0.1, source=source)
    shards, held = split_validation(who, data, 20, 5, wanted)
    assert held is not None
    again = split_validation(who, data, 20, 5, wanted)
    assert (shards.digest, held.digest) == (again[0].digest, again[1].digest if again[1] else "")
    assert held.digest != getattr(split_validation(who, data, 20, 6, wanted)[1], "digest", "")
    assert not np.intersect1d(shards.indices, held.indices).size
    assert len(held) == (20 if source == "clients" else 1)
    if source == "pool":
        assert len(held.indices) == round(0.1 * len(data.y_train))
        shares = np.bincount(data.y_train[held.indices]) / len(held.indices)
        assert abs(shares - np.bincount(data.y_train) / len(data.y_train)).max() < 1 / len(held.indices)


def test_without_validation_the_partition_is_what_it_was() -> None:
    data, who = Digits().load(), make_partition({"name": "dirichlet", "alpha": 0.3})
    shards, held = split_validation(who, data, 20, 5, None)
    assert held is None
    assert shards.digest == who.split(data, 20, 5).digest


def test_a_fraction_that_holds_nothing_out_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.validation.fraction: found 0.001; that is not a single sample of any"):
        split_validation(make_partition("iid"), Digits().load(), 20, 0, Validation(fraction=0.001))


def test_a_cell_is_another_with_validation_and_the_same_without() -> None:
    base = {"partition": "iid", "model": "mlp", "algorithm": "fedavg"}
    plain = RunConfig.parse(base | {"data": "digits"})
    assert "validation" not in plain.identity("digest")["data"]
    cells = {
        RunConfig.parse(base | {"data": {"name": "digits", "validation": wanted}}).cell("digest")
        for wanted in ({}, {"fraction": 0.2}, {"from": "pool"}, None)
    }
    assert len(cells) == 4
    assert plain.cell("digest") in cells
