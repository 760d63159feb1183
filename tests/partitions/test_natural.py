"""Clients that the data name: all, fewer or more of them, and their test samples."""

from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets.dataset import Dataset
from fedray.partitions import make_partition
from fedray.partitions.shards import Shards, split_naturally
from tests.partitions.labelled import data

NATURAL = np.repeat([3, 7, 9], [10, 20, 60])


def natural(clients: int, seed: int = 0, own_seed: int | None = None, **options: Any) -> tuple[Shards, Dataset]:
    d = data(np.arange(90) % 3, 3, client_train=NATURAL, client_test=np.resize([3, 7, 9], 90))
    return make_partition({"name": "natural", "seed": own_seed, **options}).split(d, clients, seed), d


def test_natural_clients() -> None:
    shards, _ = natural(3)
    assert [sorted(set(NATURAL[shards[i]])) for i in range(3)] == [[3], [7], [9]]
    np.testing.assert_array_equal(shards.sizes, [10, 20, 60])


def test_fewer_clients_than_natural_ones() -> None:
    first, _ = natural(2, pick="first")
    np.testing.assert_array_equal(first.sizes, [10, 20])
    sizes = {tuple(natural(2, seed, pick="random")[0].sizes) for seed in range(30)}
    assert sizes == {(10, 20), (10, 60), (20, 60)}


def test_more_clients_than_natural_ones() -> None:
    """One by one a piece goes to the id with the largest pieces: 60 -> 30+30 -> 20+20+20 -> 15 each, then 20 -> 10+10.

    With 6 clients: 60 is cut when 60 > 20 (2 pieces), 30 > 20 (3 pieces), 20 = 20 (the first, so id 7): 1, 2, 3.
    """
    shards, _ = natural(6, divide=True)
    np.testing.assert_array_equal(shards.sizes, [10, 10, 10, 20, 20, 20])
    assert [sorted(set(NATURAL[shards[i]])) for i in range(6)] == [[3], [7], [7], [9], [9], [9]]
    np.testing.assert_array_equal(np.sort(shards.indices), np.arange(90))


@pytest.mark.parametrize(("clients", "words"), [(2, "set 3, or partition.pick"), (4, "set 3, or partition.divide")])
def test_the_number_of_natural_clients_is_said(clients: int, words: str) -> None:
    with pytest.raises(UserError, match=rf"clients\.total: found {clients}.*3 natural clients.*{words}"):
        natural(clients)


def test_a_seed_of_the_partition_draws_its_test_sets_and_natural_clients_too() -> None:
    """For any seed of the run: otherwise runs that differ only in it would be tested on other samples."""
    shards, d = natural(6, divide=True)
    for own, how in (("natural", "disjoint"), ("iid", "disjoint"), ("iid", "share")):

        def tests(run: int, own: str = own, how: Any = how, **options: Any) -> str:
            return make_partition({"name": own, **options}).split_test(d, shards, run, how).digest

        assert tests(0) != tests(1) == tests(0, seed=1) == tests(2, seed=1), (own, how)
    for options in ({"clients": 6, "divide": True}, {"clients": 2, "pick": "random"}):
        drawn = [natural(**options, seed=seed)[0].digest for seed in range(8)]
        again = [natural(**options, own_seed=seed)[0].digest for seed in range(8)]
        assert drawn == again
        assert len(set(drawn)) > 1


def test_natural_test_samples_stay_with_their_client() -> None:
    """30 test samples per id; id 9 is divided in three pieces of 10, id 7 in two of 15."""
    shards, d = natural(6, divide=True)
    tests = make_partition({"name": "natural", "divide": True}).split_test(d, shards, 0, "disjoint")
    np.testing.assert_array_equal(tests.sizes, [30, 15, 15, 10, 10, 10])
    assert len(set(tests.indices)) == 90
    assert d.client_test is not None
    assert [sorted(set(d.client_test[tests[i]])) for i in range(6)] == [[3], [7], [7], [9], [9], [9]]


def test_natural_ids_may_be_negative_and_clients_empty() -> None:
    """Clients of the ids -1, none and 4; the test samples are of 4, -1, -1 and of 8, who trains nothing."""
    shards = Shards.from_lists([np.array([0, 1]), np.zeros(0, dtype=np.int64), np.array([2])])
    tests = split_naturally(np.array([-1, -1, 4]), np.array([4, -1, -1, 8]), shards, generator(0, "any"))
    assert [sorted(tests[i].tolist()) for i in range(3)] == [[1, 2], [], [0]]
