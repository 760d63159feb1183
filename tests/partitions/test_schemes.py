"""Data splits: invariants of every partitioner, the definitions by hand, digests that must never change, natural
clients, the numbers and the picture of a partition; samples held out for validation and testing, never trained on;
splits from files, partition.npz and JSON."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib import rc_context
from sklearn.model_selection import train_test_split

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset, take_train
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.partitions import PARTITIONS, make_partition
from fedray.partitions.held_out import Split, _count, draw_stratified, hold_out, split_samples
from fedray.partitions.heterogeneity import EXACT_CLIENTS, draw_heatmap, measure_heterogeneity
from fedray.partitions.schemes import _redraw_where_exhausted, deal_by_prior, draw_lognormal_sizes
from fedray.partitions.shards import Shards
from tests import small


def data(labels: np.ndarray, classes: int, test: np.ndarray | None = None, **clients: np.ndarray) -> Dataset:
    """Samples without content: y_train, y_test (as y_train unless given), and `client_train`, `client_test`."""
    y, y_test = labels.astype(np.int64), (labels if test is None else test).astype(np.int64)
    x, x_test = (np.zeros((len(given), 1), np.float32) for given in (y, y_test))
    return Dataset("d", x, y, x_test, y_test, classes, **clients)  # type: ignore[arg-type]


EXACT: dict[str, dict[str, Any]] = {
    "iid": {}, "iid_stratified": {"name": "iid", "stratified": True}, "dirichlet": {"alpha": 0.3},
    "sharding": {"shards": 2}, "sharding_by_class": {"name": "sharding", "shards": 2, "sizes": "by_class"},
    "pxcy": {"classes": 2},
}  # fmt: skip
REUSING: dict[str, dict[str, Any]] = {"dirichlet_client": {"alpha": 0.3}, "pathological": {"classes": 2}}


def chosen(name: str, **more: Any) -> Any:
    return make_partition({"name": name, **{**EXACT, **REUSING}.get(name, {}), **more})


def test_each_scheme_is_here_and_a_seed_is_a_split() -> None:
    """Those that deal samples, and do not look up whose they are."""
    here = {chosen(name).name for name in (*EXACT, *REUSING)}
    assert here == {*PARTITIONS} - {"natural", "file"}, "give it options in EXACT or REUSING, and digests in DIGESTS"
    labels = np.arange(300) % 5
    for name in (*EXACT, *REUSING):
        one, same, other = (chosen(name).split(data(labels, 5), 10, seed).digest for seed in (0, 0, 1))
        assert one == same != other
        assert chosen(name, seed=1).split(data(labels, 5), 10, 0).digest == other


@st.composite
def problems(draw: Any) -> tuple[np.ndarray, int, int, int]:
    """Labels in which every class occurs, number of classes, of clients, a seed."""
    classes = draw(st.integers(2, 6))
    counts = draw(st.lists(st.integers(1, 40), min_size=classes, max_size=classes))
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), counts))
    return labels, classes, draw(st.integers(1, min(12, len(labels) // 2))), draw(st.integers(0, 99))


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_every_sample_goes_to_exactly_one_client(name: str, problem: Any) -> None:
    labels, classes, clients, seed = problem
    if name in ("pxcy", "sharding_by_class"):  # fewer hands than classes: refused, or classes left over (tested below)
        assume(classes <= 2 * clients)
    shards = chosen(name, min_size=0).split(data(labels, classes), clients, seed)
    assert len(shards) == clients
    np.testing.assert_array_equal(np.sort(shards.indices), np.arange(len(labels)))
    assert (shards.offsets[0], shards.offsets[-1]) == (0, len(labels))


@pytest.mark.parametrize("name", REUSING)
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_dealing_by_prior_fills_every_quota(name: str, problem: Any) -> None:
    """floor(n/N) samples each, the remainder to the first client; samples exist, they may repeat (the exception)."""
    labels, classes, clients, seed = problem
    shards = chosen(name).split(data(labels, classes), clients, seed)
    size, rest = divmod(len(labels), clients)
    np.testing.assert_array_equal(shards.sizes, [size + rest] + [size] * (clients - 1))
    assert 0 <= shards.indices.min() <= shards.indices.max() < len(labels)
    if name == "pathological":
        assert ((shards.count_labels(labels, classes) > 0).sum(1) <= 2).all()


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_sizes_and_classes(problem: Any) -> None:
    """IID sizes differ by at most 1, stratified ones also within a class.

    Shards differ by at most 1, so clients with s = 2 of them by at most 2; cut class by class they hold s classes."""
    labels, classes, clients, seed = problem
    d = data(labels, classes)
    assert np.ptp(chosen("iid").split(d, clients, seed).sizes) <= 1
    stratified = chosen("iid_stratified").split(d, clients, seed)
    assert np.ptp(stratified.count_labels(labels, classes), axis=0).max() <= 1
    assert np.ptp(stratified.sizes) <= 1
    assert np.ptp(chosen("sharding").split(d, clients, seed).sizes) <= 2
    sharding = chosen("sharding_by_class", min_size=0).split(d, clients, seed)
    assert ((sharding.count_labels(labels, classes) > 0).sum(1) <= 2).all()


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_client", "pathological", "iid"])
def test_min_size_is_kept_or_refused(name: str) -> None:
    labels = np.arange(200) % 4
    assert chosen(name, min_size=5).split(data(labels, 4), 10, 0).sizes.min() >= 5
    with pytest.raises(UserError, match=r"partition\.min_size: .*201|partition\.min_size: 10 clients x 21"):
        chosen(name, min_size=21).split(data(labels, 4), 10, 0)


DIGESTS = {
    "iid": ("fb4b0580f95ec2f4", "fe47088c734dea8c"), "iid_stratified": ("fdbcba75e45215aa", "6a654905fe2a0706"),
    "dirichlet": ("b028dc40acb04f61", "953d3f190bab7ee2"), "sharding": ("200a61947b0fd5a6", "967503858baf5d17"),
    "sharding_by_class": ("29e6b667f0fb51a1", "0ad4389da975c3d8"), "pxcy": ("37ced785366abe58", "38f8423e33cfdb9b"),
    "dirichlet_client": ("2c8ead0b9eb6b4c5", "0dcabcf177716c6e"),
    "pathological": ("a5f7d18eb3f86587", "baaccce2336366fb"),
}  # fmt: skip
"""Scheme -> those of seeds 0 and 1."""


@pytest.mark.parametrize(("name", "seed"), list(itertools.product((*EXACT, *REUSING), (0, 1))))
def test_recorded_digests(name: str, seed: int) -> None:
    """No change of NumPy or of this code moves a client's data unseen. 1,000 samples of 10 classes, 20 clients.

    A deliberate change of a partitioner records new digests here and raises `fedray.config.run.NUMERICS`."""
    assert chosen(name).split(data(np.arange(1000) * 7 % 10, 10), 20, seed).digest[:16] == DIGESTS[name][seed]


def test_dirichlet_closes_clients_that_hold_their_share() -> None:
    """A client is open for a class only while it holds less than floor(n/N), for any draw.

    Classes are assigned in order, so a client that receives some of class c holds less than that of those before it."""
    labels = np.repeat(np.arange(5), 100)
    for alpha, seed in itertools.product((1e-3, 0.1, 1.0), range(10)):
        counts = chosen("dirichlet", alpha=alpha, min_size=0).split(data(labels, 5), 5, seed).count_labels(labels, 5)
        assert ((np.cumsum(counts, axis=1) - counts)[counts > 0] < 500 // 5).all()


def literal_redraws(drawn: np.ndarray, supply: np.ndarray, cumulative: np.ndarray, rng: Any) -> np.ndarray:
    """The loop of FedDyn's code on given first draws: a draw from an empty pool refills it and is repeated."""
    left, result = supply.copy(), drawn.copy()
    for t in range(len(drawn)):
        label = drawn[t]
        while left[label] == 0:
            left[label] = supply[label]
            label = np.searchsorted(cumulative[t], rng.random(), side="right")
        left[label] -= 1
        result[t] = label
    return result


@settings(max_examples=150, deadline=None)
@given(supply=st.lists(st.integers(1, 5), min_size=2, max_size=4), seed=st.integers(0, 10**6))
def test_redraws_are_those_of_the_literal_loop(supply: list[int], seed: int) -> None:
    """The shortcut takes the same uniforms at the same times, so the result is the same, refills included."""
    rng, n = np.random.default_rng(seed), 60
    cumulative = np.cumsum(rng.dirichlet(np.full(len(supply), 0.5), size=n), axis=1)
    cumulative[:, -1] = 1.0
    drawn = rng.integers(0, len(supply), n).astype(np.int16)
    expected = literal_redraws(drawn, np.array(supply), cumulative, np.random.default_rng(1))
    _redraw_where_exhausted(drawn, np.array(supply), lambda t: cumulative[t], np.random.default_rng(1))
    np.testing.assert_array_equal(drawn, expected)


def test_pools_are_used_up_before_anything_repeats() -> None:
    """One class, so every draw takes from one pool of n: N clients with n/N each hold every sample exactly once.

    Two classes of 50 and clients that want only class 0: 100 draws from a pool of 50 take each of its samples twice."""
    once = deal_by_prior(np.ones((5, 1)), np.zeros(100, np.int64), generator(0, "t"))
    np.testing.assert_array_equal(np.sort(once.indices), np.arange(100))
    twice = deal_by_prior(np.tile([1.0, 0.0], (5, 1)), np.repeat([0, 1], 50), generator(0, "t"))
    np.testing.assert_array_equal(np.bincount(twice.indices, minlength=100), np.repeat([2, 0], 50))


def test_lognormal_sizes() -> None:
    """2,000 clients, σ = 0.3: ln of the sizes has the deviation 0.3 ± 0.02 (four times 0.3/√4000), their sum is n, and
    each client gets its size. Rounding down to about 500 moves ln by 0.002 at most."""
    n = 1_000_000
    sizes = draw_lognormal_sizes(n, 2000, 0.3, generator(0, "t"))
    assert (sizes.sum(), np.log(sizes[1:]).std()) == (n, pytest.approx(0.3, abs=0.02))
    assert np.log(sizes[1:]).mean() == pytest.approx(np.log(500) - 0.3**2 / 2, abs=0.03)  # divided by the sum
    shards = chosen("dirichlet_client", sigma=1.0).split(data(np.arange(2000) % 10, 10), 20, 0)
    assert shards.sizes.sum() == 2000
    assert shards.sizes.max() > 4 * shards.sizes.min()


def test_equal_shards_reach_over_the_end_of_a_class_and_p10c2() -> None:
    """30 samples of class 0 and 70 of class 1, 5 clients x 1 shard of 20: 20 + 0, 10 + 10, and three of 0 + 20."""
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1], [30, 70]))
    counts = chosen("sharding", shards=1).split(data(labels, 2), 5, 0).count_labels(labels, 2)
    assert sorted(map(tuple, counts)) == [(0, 20), (0, 20), (0, 20), (10, 10), (20, 0)]
    by_class = chosen("sharding_by_class", shards=1).split(data(labels, 2), 5, 0).count_labels(labels, 2)
    assert sorted(by_class.sum(1)) in ([15, 15, 23, 23, 24], [10, 10, 10, 35, 35])
    # Clients 0 to 4 of P10C2 hold classes (0, 1), (2, 3), ...; everyone holds two; a class is shared evenly.
    labels = np.arange(1000) % 10
    counts = chosen("pxcy").split(data(labels, 10), 10, 0).count_labels(labels, 10)
    for client in range(5):
        np.testing.assert_array_equal(np.flatnonzero(counts[client]), [2 * client, 2 * client + 1])
    assert ((counts > 0).sum(1) == 2).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize("name", ["pathological", "pxcy", "sharding_by_class"])
@pytest.mark.parametrize("kinds", [[0, 2, 4, 6, 8, 9], [1, 2, 3], [3, 0, 90]])
def test_clients_choose_among_the_classes_that_have_samples(name: str, kinds: list[int]) -> None:
    """Labels with gaps are dealt as if they were numbered without any."""
    labels = np.array(kinds)[np.arange(600) % len(kinds)]
    numbered = np.argsort(np.argsort(kinds))[np.arange(600) % len(kinds)]
    dealt = chosen(name).split(data(labels, max(kinds) + 1), 9, 0)
    assert dealt.digest == chosen(name).split(data(numbered, len(kinds)), 9, 0).digest
    assert ((dealt.count_labels(labels, max(kinds) + 1) > 0).sum(1) <= 2).all()


def test_personal_test_sets_of_fedsol() -> None:
    """Training counts (30, 10) and (0, 40), 2,000 test samples per class: floor(1000 · (.75, .25)), then (0, 1000).

    Drawn for each client on its own, so that two clients with the same mix share samples."""
    labels, shards = np.repeat([0, 1], [30, 50]), Shards.from_lists([np.arange(40), np.arange(40, 80)])
    d = data(labels, 2, np.repeat([0, 1], 2000))
    tests = chosen("iid").split_test(d, shards, 0, "share")
    np.testing.assert_array_equal(tests.count_labels(d.y_test, 2), [[750, 250], [0, 1000]])
    assert all(len(set(tests[i])) == 1000 for i in range(2))
    assert set(tests[0]) & set(tests[1])
    thirds = Shards.from_lists([np.arange(25, 40), np.arange(40, 80)])  # 5 and 10 samples: floor(333.3), floor(666.7)
    assert chosen("iid").split_test(d, thirds, 0, "share").count_labels(d.y_test, 2)[0].tolist() == [333, 666]
    few = data(labels, 2, np.repeat([0, 1], 100))
    assert chosen("iid").split_test(few, shards, 0, "share").sizes.tolist() == [200, 100]


NATURAL = np.repeat([3, 7, 9], [10, 20, 60])


def natural(clients: int, seed: int = 0, own_seed: int | None = None, **options: Any) -> tuple[Shards, Dataset]:
    d = data(np.arange(90) % 3, 3, client_train=NATURAL, client_test=np.resize([3, 7, 9], 90))
    return make_partition({"name": "natural", "seed": own_seed, **options}).split(d, clients, seed), d


def test_natural_clients_are_dealt_whole_some_of_them_or_in_pieces_with_their_test_samples() -> None:
    """In pieces, one by one goes to the id with the largest: with 6 clients 60 is cut when 60 > 20 (2 pieces),
    30 > 20 (3 pieces), 20 = 20 (the first, so id 7): 1, 2, 3."""
    shards, _ = natural(3)
    assert [sorted(set(NATURAL[shards[i]])) for i in range(3)] == [[3], [7], [9]]
    np.testing.assert_array_equal(natural(2, pick="first")[0].sizes, [10, 20])
    assert {tuple(natural(2, seed, pick="random")[0].sizes) for seed in range(30)} == {(10, 20), (10, 60), (20, 60)}
    pieces, _ = natural(6, divide=True)
    np.testing.assert_array_equal(pieces.sizes, [10, 10, 10, 20, 20, 20])
    assert [sorted(set(NATURAL[pieces[i]])) for i in range(6)] == [[3], [7], [7], [9], [9], [9]]
    np.testing.assert_array_equal(np.sort(pieces.indices), np.arange(90))
    # 30 test samples per id; id 9 is divided in three pieces of 10, id 7 in two of 15.
    shards, d = natural(6, divide=True)
    tests = make_partition({"name": "natural", "divide": True}).split_test(d, shards, 0, "disjoint")
    np.testing.assert_array_equal(tests.sizes, [30, 15, 15, 10, 10, 10])
    assert len(set(tests.indices)) == 90
    assert [sorted(set(d.client_test[tests[i]])) for i in range(6)] == [[3], [7], [7], [9], [9], [9]]


@pytest.mark.parametrize(("clients", "words"), [(2, "set 3, or partition.pick"), (4, "set 3, or partition.divide")])
def test_the_number_of_natural_clients_is_said(clients: int, words: str) -> None:
    with pytest.raises(UserError, match=rf"clients\.total: found {clients}.*3 natural clients.*{words}"):
        natural(clients)
    with pytest.raises(UserError, match=r"^partition\.min_size: a natural client has 10 samples, 11 are required"):
        natural(3, min_size=11)


def test_a_seed_of_the_partition_draws_its_test_sets_and_natural_clients_too() -> None:
    """For any seed of the run: otherwise runs that differ only in it would be tested on other samples."""
    shards, d = natural(6, divide=True)
    for own, how in (("natural", "disjoint"), ("iid", "disjoint"), ("iid", "share")):

        def tests(run: int, own: str = own, how: Any = how, **options: Any) -> str:
            return make_partition({"name": own, **options}).split_test(d, shards, run, how).digest

        assert tests(0) != tests(1) == tests(0, seed=1) == tests(2, seed=1), (own, how)
    for options in ({"clients": 6, "divide": True}, {"clients": 2, "pick": "random"}):
        drawn = [natural(**options, seed=seed)[0].digest for seed in range(8)]
        assert drawn == [natural(**options, own_seed=seed)[0].digest for seed in range(8)]
        assert len(set(drawn)) > 1


def test_heterogeneity_by_hand_of_many_clients_and_as_a_heatmap() -> None:
    """Clients (4, 0), (2, 2), (0, 0), (0, 8).

    Held classes 1, 2, 1: mean 4/3. Sizes of the three that hold something 4, 4, 8: median 4, upper quartile 6.
    Proportions (1, 0), (1/2, 1/2), (0, 1): total variations 1/2, 1, 1/2, their mean 2/3."""
    expected = {"clients": 4, "empty_clients": 1, "samples": 16, "mean_classes": 4 / 3, "mean_tv": 2 / 3}
    expected |= {"size_min": 4, "size_q25": 4, "size_median": 4, "size_q75": 6, "size_max": 8}
    assert measure_heterogeneity(np.array([[4, 0], [2, 2], [0, 0], [0, 8]])) == pytest.approx(expected)
    assert measure_heterogeneity(np.array([[1, 2]]))["mean_tv"] == 0.0, "one client has no pairs"
    # Half the clients hold class 0, half class 1: of all pairs, N/2 / (N - 1) ≈ 1/2 are at distance 1, the others 0.
    # A sample of 500 of 5,000 differs from that by about 1/500. All count for the rest: the first holds both classes.
    counts = np.zeros((10 * EXACT_CLIENTS, 2), dtype=np.int64)
    counts[::2, 0] = counts[1::2, 1] = counts[0] = 3
    first = measure_heterogeneity(counts)
    assert first == measure_heterogeneity(counts)
    assert first["mean_tv"] == pytest.approx(0.5, abs=0.02)
    assert (first["empty_clients"], first["mean_classes"]) == (0, pytest.approx(5001 / 5000))
    counts = np.arange(6200).reshape(100, 62)
    with rc_context({"text.usetex": True}):  # the wish of a user's matplotlibrc, which needs LaTeX
        assert Problem.build(RunConfig.parse(small.sections())).draw_picture().startswith(b"\x89PNG")
    figure = draw_heatmap(counts, title="t")
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), counts.T)
    assert figure.axes[0].get_xlabel() == "client"


def split(dealing: object, seed: int, clients: int = 20, **held_out: Any) -> Split:
    """The digits, dealt."""
    source = make_data_source({"name": "digits", **held_out})
    data = Digits().load() if source.test is None else Digits().load().merge()
    return split_samples(source, make_partition(dealing), data, clients, seed)


def digests(found: Split) -> list[str]:
    return [shards.digest for shards in (found.train, found.test, found.validation) if shards is not None]


def test_how_many_samples_of_which_class_are_held_out() -> None:
    """10 of 60 + 30 + 10: 6, 3, 1. 4 of 5 + 3 + 2: 2.0, 1.2, 0.8, so 2, 1 and the one left goes to the last class."""
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    drawn = draw_stratified(labels, 10, np.random.default_rng(0))
    assert (Counter(labels[drawn].tolist()), drawn.tolist()) == ({0: 6, 1: 3, 2: 1}, sorted(set(drawn.tolist())))
    labels = np.repeat([0, 1, 2], [5, 3, 2])
    for seed in range(20):
        drawn = draw_stratified(labels, 4, np.random.default_rng(seed))
        assert np.bincount(labels[drawn]).tolist() == [2, 1, 1]
    # `train_size=0.75` trains on floor(0.75 n): of 8, 9, 10 and 40 samples 6, 6, 7 and 30. One sample stays.
    for n in (8, 9, 10, 11, 40):
        assert n - _count(0.25, n, up=True) == len(train_test_split(range(n), train_size=0.75)[0])
    assert [_count(0.25, n, up=True) for n in (0, 1, 2)] == [0, 0, 1]
    assert [_count(0.25, n) for n in (2, 5, 6, 10)] == [1, 1, 2, 3], "0.5, 1.25, 1.5 and 2.5: a half is rounded up"
    assert [_count(0.9, n, up=True) for n in (2, 10, 1000)] == [1, 9, 900]


def test_clients_hold_their_share_out_and_nobody_trains_on_it() -> None:
    """Shards of 40, 10, 4, 1 and 0 samples at 0.1: 4, 1, 0 (0.4), 0, 0. At 0.9 of 4: 3.6 is 4, and 3 leave one."""
    shards, labels = Shards(np.arange(55), np.concatenate([[0], np.cumsum([40, 10, 4, 1, 0])])), np.arange(55) % 5
    left, held = hold_out(shards, labels, partial(_count, 0.1), seed=3)
    assert (held.sizes.tolist(), left.sizes.tolist()) == ([4, 1, 0, 0, 0], [36, 9, 4, 1, 0])
    for client in range(5):
        assert sorted([*left[client], *held[client]]) == shards[client].tolist()
    assert hold_out(shards, labels, partial(_count, 0.9), seed=3)[1].sizes.tolist() == [36, 9, 3, 0, 0]
    first = hold_out(shards, labels, partial(_count, 0.9), seed=3, clients=1)[1]
    assert first.sizes.tolist() == [36, 0, 0, 0, 0], "client 0 alone trains"
    # Client 0 has ten samples, client 1 the same ten twice: a sample held out by one leaves the other, every copy.
    shards = Shards.from_lists([np.arange(10), np.tile(np.arange(10), 2)])
    left, held = hold_out(shards, np.zeros(10, dtype=np.int64), partial(_count, 0.3), seed=0)
    assert held.sizes.tolist() == [3, 3], "a share of the different samples"
    gone = set(held.indices.tolist())
    assert set(left[0].tolist()) == set(range(10)) - gone
    assert sorted(left[1].tolist()) == sorted([*(set(range(10)) - gone)] * 2)
    # 20 samples of each of two classes, 20 clients. By class each tests on 5 and 5; at random with a deviation of
    # √(10 ¼ 30/39) = 1.39, so that none of 20 clients deviates with a probability of 10⁻¹².
    shards, labels = Shards(np.arange(800), np.arange(0, 801, 40)), np.tile(np.repeat([0, 1], 20), 20)
    for stratify in (True, False):
        _, tests = hold_out(shards, labels, partial(_count, 0.25, up=True), 0, "client test", stratify)
        of_class_1 = [int(labels[tests[i]].sum()) for i in range(20)]
        assert set(tests.sizes) == {10}
        assert (set(of_class_1) == {5}) is stratify
        assert 4 < np.mean(of_class_1) < 6


@pytest.mark.parametrize("source", ["clients", "pool"])
@pytest.mark.parametrize("by", ["iid", {"name": "dirichlet", "alpha": 0.3}, {"name": "dirichlet_client", "alpha": 0.1}])
def test_of_digits_a_tenth_keyed_by_the_seed_and_apart_from_training(source: str, by: object) -> None:
    """Digits' classes are even to within 3 points, and so are the samples held out of the pool."""
    data, found = Digits().load(), split(by, 5, validation={"fraction": 0.1, "from": source})
    shards, held = found.train, found.validation
    again, other = (split(by, seed, validation={"fraction": 0.1, "from": source}) for seed in (5, 6))
    assert digests(found) == digests(again)
    assert other.validation is not None
    assert held.digest != other.validation.digest
    assert not np.intersect1d(shards.indices, held.indices).size
    assert len(held) == (20 if source == "clients" else 1)
    if source == "pool":
        assert len(held.indices) == round(0.1 * len(data.y_train))
        shares = np.bincount(data.y_train[held.indices]) / len(held.indices)
        assert abs(shares - np.bincount(data.y_train) / len(data.y_train)).max() < 1 / len(held.indices)


def test_no_unseen_client_trains_on_what_another_holds_out() -> None:
    """Clients share samples; those that never train hold none out, and lose what the others do."""
    data, source = Digits().load(), make_data_source({"name": "digits", "validation": {}})
    partition = make_partition({"name": "dirichlet_client", "alpha": 0.5})
    found, whole = (split_samples(source, partition, data, clients, 0, 13 - clients) for clients in (10, 13))
    assert found.unseen is not None
    assert not np.intersect1d(found.validation.indices, found.unseen.train.indices).size
    assert len(found.validation) == 10
    for client in range(10):
        np.testing.assert_array_equal(found.validation[client], whole.validation[client])


def test_both_sets_are_dealt_and_split_and_natural_clients_keep_what_comes_with_them() -> None:
    """1,437 + 360 digits among 20 clients: each has 89 or 90, tests on 23 (22.25 and 22.5 rounded up)."""
    plain, both = split("iid", 3, test={}), split("iid", 3, test={}, validation={"fraction": 0.1})
    assert sorted([*plain.train.indices, *plain.test.indices]) == list(range(1797))
    assert (set(plain.test.sizes), plain.test.digest) == ({23}, both.test.digest)
    assert sorted([*both.train.indices, *both.validation.indices]) == sorted(plain.train.indices)
    assert plain.test.digest != getattr(split("iid", 4, test={}).test, "digest", "")
    # Clients 3, 3, 7 in training and 7, 3 in the test set: client 0 holds the samples 0, 1, 4, client 1 holds 2, 3.
    x, y = np.zeros((3, 2), np.float32), np.zeros(3, np.int64)
    data = Dataset("own", x, y, x[:2], y[:2], 2, client_train=np.array([3, 3, 7]), client_test=np.array([7, 3]))
    source = make_data_source({"name": "digits", "test": {"fraction": 0.3}})
    found = split_samples(source, make_partition("natural"), data.merge(), 2, 0)
    assert [sorted([*found.train[i], *found.test[i]]) for i in (0, 1)] == [[0, 1, 4], [2, 3]]
    with pytest.raises(UserError, match="have no natural clients"):
        split_samples(source, make_partition("natural"), replace(data, client_test=None).merge(), 2, 0)


def test_a_natural_client_keeps_its_number_where_the_pool_takes_all_its_samples() -> None:
    """Half of ten samples: the only one of id 3 goes for about half of the seeds, and 7 is client 1 for all of them."""
    x, ids = np.zeros((10, 2), np.float32), np.repeat([3, 7, 9], [1, 4, 5])
    own = Dataset("own", x, np.zeros(10, np.int64), x, np.zeros(10, np.int64), 2, client_train=ids)
    source = make_data_source({"name": "digits", "validation": {"fraction": 0.5, "from": "pool"}})
    whole, some = (make_partition({"name": "natural", "min_size": 0, "pick": pick}) for pick in ("all", "first"))
    lost = set()
    for seed in range(20):
        every, first = (split_samples(source, one, own, n, seed).train for one, n in ((whole, 3), (some, 2)))
        lost.add(len(every[0]) == 0)
        assert all({*ids[every[i]]} <= {number} for i, number in enumerate((3, 7, 9)))
        assert first.digest == every.take(0, 2).digest
    assert lost == {False, True}
    part = take_train(own, np.arange(1, 10))  # as `data.train_samples` may leave out id 3
    assert part.digest != replace(part, natural_ids=None).digest, "whose splits are others"
    left = split_samples(source, whole, part, 3, 0).train
    assert [{*ids[1:][left[i]]} for i in range(3)] == [set(), {7}, {9}]


SPLIT = {"train": [[0, 3], [5], [1, 2, 4]], "test": [[0], [1], [2, 3]]}


def problem(partition: Any, data: Any = "digits", clients: int = 3, **sections: Any) -> Problem:
    return small.problem("fedavg", (clients, 2), partition=partition, data=data, **sections)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "split.json").write_text(json.dumps(SPLIT))
    return tmp_path / "split.json"


@pytest.mark.parametrize("held", [{}, {"test": {}}, {"validation": {"fraction": 0.2}}, {"test": {}, "validation": {}}])
def test_a_partition_npz_gives_the_same_run(tmp_path: Path, held: dict[str, Any]) -> None:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 20}
    sections = {"training": training, "evaluation": {"personal": {"every": 1, "epochs": 1}}}
    first = problem(0.5, {"name": "digits", **held}, 6, **sections)
    (tmp_path / "partition.npz").write_bytes(first.pack_split())
    of_file = {"name": "file", "path": str(tmp_path / "partition.npz")}
    held = {key: value for key, value in held.items() if key != "validation"}
    again = problem(of_file, {"name": "digits", **held}, 6, **sections)
    assert (again.split.train.digest, again.pack_split()) == (first.split.train.digest, first.pack_split())
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


def test_a_file_is_for_its_own_data_set_and_labels(tmp_path: Path) -> None:
    (tmp_path / "split.npz").write_bytes(problem("iid", {"name": "digits", "test": {}}).pack_split())
    apart = r"counts 1797 samples \(training and test samples as one set\); digits has 1437 \+ 360 without data.test"
    with pytest.raises(UserError, match=apart):
        problem({"name": "file", "path": str(tmp_path / "split.npz")})
    # Two labels change places: equal sizes, another digest. Without the digest only sizes are compared.
    first = problem(0.5, clients=6)
    (tmp_path / "split.npz").write_bytes(first.pack_split())
    of_file, labels = {"name": "file", "path": str(tmp_path / "split.npz")}, first.data.y_train.copy()
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
