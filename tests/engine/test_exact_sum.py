"""The order-free sum: any order and any grouping give the same bits, and nothing that does not fit gets in."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.datasets.dataset import as_tensor
from fedray.engine.exact_sum import BLOCK, LIMIT, SCALE, Accumulator, NotSummable, add_up, is_finite

values = st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3)
terms = st.lists(st.tuples(values, st.floats(0, 1)), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(terms=terms, data=st.data())
def test_grouping_and_order_do_not_matter(terms: list[tuple[list[float], float]], data: st.DataObject) -> None:
    """One process in order, compared with any permutation split among any number of processes, merged in any order."""

    def accumulate(part: list[tuple[list[float], float]]) -> Accumulator:
        sums = Accumulator()
        for vector, weight in part:
            sums.add("u", torch.tensor(vector), weight, len(terms))
        return sums

    whole = add_up([accumulate(terms).sums])["u"]
    order = data.draw(st.permutations(terms))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(terms)), max_size=3)))
    groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(terms)], strict=True)]
    merged = add_up([accumulate(group).sums for group in data.draw(st.permutations(groups))])
    assert torch.equal(merged["u"], whole)
    exact = sum(np.array(vector, dtype=np.float64) * weight for vector, weight in terms)
    assert np.allclose(whole.numpy(), exact, rtol=2.0**-24, atol=len(terms) / SCALE)


def test_a_floating_point_sum_would_not_do() -> None:
    """The same three float32 terms in two orders: the reason for all this."""
    a, b, c = torch.tensor([1e8]), torch.tensor([-1e8]), torch.tensor([1.0])
    assert not torch.equal((a + b) + c, a + (b + c))
    small = [v * 1e-4 for v in (a, b, c)]
    results = []
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        sums = Accumulator()
        for i in order:
            sums.add("u", small[i], 1.0, 3)
        results.append(add_up([sums.sums])["u"])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])
    assert float(results[0]) == pytest.approx(1e-4, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_does_not_fit_is_refused_and_nothing_is_added(bad: float) -> None:
    sums = Accumulator()
    sums.add("u", torch.tensor([1.0, 2.0]), 0.5, 2)
    with pytest.raises(NotSummable, match="u is"):
        sums.add("u", torch.tensor([1.0, bad]), 0.5, 2)
    assert torch.equal(add_up([sums.sums])["u"], torch.tensor([0.5, 1.0]))


@settings(max_examples=200, deadline=None)
@given(clients=st.integers(1, 1000), size=st.floats(1, 2.0**20, width=32), weight=st.floats(1e-6, 10))
def test_a_sum_that_is_accepted_cannot_wrap(clients: int, size: float, weight: float) -> None:
    """Every one of `clients` terms at the same extreme: either refused, or the sum is right to rounding."""
    sums = Accumulator()
    try:
        sums.add("u", torch.tensor([size, -size]), weight, clients)
    except NotSummable:
        assert size * weight * clients >= 2.0**18 * (1 - 1e-9)
        return
    total = int(sums.sums["u"][0]) * clients
    assert abs(total) < LIMIT + clients
    assert total / SCALE == pytest.approx(size * weight * clients, rel=1e-6, abs=clients / SCALE)


@pytest.mark.parametrize("entries", [1, 2, BLOCK + 1])
def test_what_reaches_2_to_the_18_is_refused(entries: int) -> None:
    """Two terms of weight ½: 2^18 each is too much, one less is not. A number, a vector and a long one."""
    vector = torch.zeros(entries)
    vector[-1] = -(2.0**18)
    with pytest.raises(NotSummable, match=r"u is too large to be summed exactly \(1\.31e\+05\)"):
        Accumulator().add("u", vector, 0.5, 2)
    sums = Accumulator()
    for _ in range(2):
        sums.add("u", vector + 1, 0.5, 2)
    assert torch.equal(add_up([sums.sums])["u"], vector + 1)


def test_uploads_are_left_alone() -> None:
    """For any dtype, a vector that was added is unchanged afterwards."""
    for kind in (torch.float32, torch.float64):
        vector = torch.tensor([1.0, -2.0], dtype=kind)
        first = Accumulator()
        first.add("u", vector, 0.5, 2)
        first.add("u", vector, 0.5, 2)
        assert torch.equal(vector, torch.tensor([1.0, -2.0], dtype=kind))
        assert torch.equal(add_up([first.sums])["u"], torch.tensor([1.0, -2.0]))


def test_precision_below_float32() -> None:
    """An entry of 1e-6 is kept to 2^-45/1e-6 = 2.8e-8 of its value, half of float32's own 6e-8."""
    sums = Accumulator()
    sums.add("u", torch.tensor([1e-6]), 1.0, 1)
    assert float(add_up([sums.sums])["u"]) == pytest.approx(1e-6, rel=6e-8)


def test_long_vectors_are_summed_like_short_ones() -> None:
    """Over several blocks, the last one not whole, and from memory that cannot be written to."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-(2**50), 2**50, 2 * BLOCK + 3) for _ in range(3)]
    for array in arrays:
        array.setflags(write=False)
    got = add_up([{"u": as_tensor(array)} for array in arrays] + [{"v": torch.zeros(1, dtype=torch.int64)}])
    assert np.array_equal(got["u"].numpy(), (sum(arrays) / SCALE).astype(np.float32))
    assert got["v"].shape == (1,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite(bad: float) -> None:
    vector = torch.randn(1000)
    assert is_finite(vector)
    vector[777] = bad
    assert not is_finite(vector)
    assert is_finite(torch.zeros(0))


@settings(max_examples=200, deadline=None)
@given(entries=values, weight=st.floats(0, 1))
def test_a_single_entry_is_rounded_like_those_of_a_vector(entries: list[float], weight: float) -> None:
    """Scalars are summed separately, with Python's numbers."""
    whole, alone = Accumulator(), Accumulator()
    whole.add("u", torch.tensor(entries), weight, 1)
    for k, entry in enumerate(entries):
        alone.add(f"u{k}", torch.tensor(entry), weight, 1)
    assert whole.sums["u"].tolist() == [int(v) for v in alone.sums.values()]
