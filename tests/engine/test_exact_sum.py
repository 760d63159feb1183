"""The order-free sum: any order and any grouping give the same bits, and nothing that does not fit gets in.

A plain sum has units of 2^-44, a limit of 2^18; a wide one 2^-71 and 2^30, and rounds what 2^-32 leaves to float32."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedray.datasets.dataset import as_tensor
from fedray.engine.exact_sum import BLOCK, LIMIT, REST, SCALE, WIDE, add_up, describe_inexact, is_finite
from fedray.engine.process.reduction import Reduction

values = st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3)
terms = st.lists(st.tuples(values, st.floats(0, 1)), min_size=1, max_size=12)


def reduce(vectors: Sequence[torch.Tensor], weights: Sequence[float], terms: int, wide: bool) -> dict[str, Tensor]:
    """The integers of one process. Raises ValueError for the first vector that is refused."""
    sums = Reduction()
    for vector, weight in zip(vectors, weights, strict=True):
        sums.add_vector("u", vector, weight, terms, wide)
    refused, found, _ = sums.finish()
    if refused:
        raise ValueError(refused[-1])
    return found


@settings(max_examples=200, deadline=None)
@given(terms=terms, wide=st.booleans(), data=st.data())
def test_no_grouping_or_order_matters(terms: list[tuple[list[float], float]], wide: bool, data: st.DataObject) -> None:
    """One process in order, compared with any permutation split among any number of processes, merged in any order."""

    def accumulate(part: list[tuple[list[float], float]]) -> dict[str, Tensor]:
        return reduce([torch.tensor(vector) for vector, _ in part], [weight for _, weight in part], len(terms), wide)

    whole, order = add_up([accumulate(terms)])["u"], data.draw(st.permutations(terms))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(terms)), max_size=3)))
    groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(terms)], strict=True)]
    assert torch.equal(add_up([accumulate(group) for group in data.draw(st.permutations(groups))])["u"], whole)
    exact = sum(np.array(vector, dtype=np.float64) * weight for vector, weight in terms)
    # A wide sum rounds what 2^-32 leaves, at most 2^-33, to float32: 2^-25 of it.
    atol = 2.0**-58 if wide else 1 / SCALE
    assert np.allclose(whole.numpy(), exact, rtol=2.0**-24, atol=len(terms) * atol)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_does_not_fit_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="u is"):
        reduce([torch.tensor([1.0, 2.0]), torch.tensor([1.0, bad])], [0.5, 0.5], 2, wide=False)
    assert is_finite(torch.zeros(0))
    assert not is_finite(torch.tensor([1.0, bad])) or bad == 3e38


@settings(max_examples=200, deadline=None)
@given(terms=st.integers(1, 1000), size=st.floats(1, 2.0**32, width=32), weight=st.floats(1e-6, 10), wide=st.booleans())
def test_a_sum_that_is_accepted_cannot_wrap(terms: int, size: float, weight: float, wide: bool) -> None:
    """Every one of the terms at the same extreme: either refused, or the sum is right to rounding."""
    scale = WIDE if wide else SCALE
    try:
        found = reduce([torch.tensor([size, -size])], [weight], terms, wide)
    except ValueError:
        assert size * weight * terms >= LIMIT / scale * (1 - 1e-9)
        return
    total = int(found["u"][0]) * terms
    assert abs(total) < LIMIT + terms
    assert total / scale == pytest.approx(size * weight * terms, rel=1e-6, abs=terms / scale)


def test_what_rounding_leaves_cannot_wrap() -> None:
    """At most half a unit is left, 2^38 of the second integer's: the limit is 2^24 terms, more than 10^7 clients."""
    half = [torch.tensor([0.5, -0.5]) / WIDE]
    assert reduce(half, [1.0], 10**7, wide=True)["u" + REST].abs().max() * 10**7 < LIMIT
    with pytest.raises(ValueError, match="u rest is too large"):
        reduce(half, [1.0], 2**24, wide=True)


@pytest.mark.parametrize("entries", [1, 2, BLOCK + 1])
@pytest.mark.parametrize(("wide", "limit", "half"), [(False, 2.0**18, r"1\.31e\+05"), (True, 2.0**30, r"5\.37e\+08")])
def test_what_reaches_the_limit_is_refused(entries: int, wide: bool, limit: float, half: str) -> None:
    """Two terms of weight ½: the limit each is too much, a little less is not. A number, a vector and a long one."""
    vector = torch.zeros(entries)
    vector[-1] = -limit
    with pytest.raises(ValueError, match=rf"u is too large to be summed exactly \({half}\)"):
        reduce([vector], [0.5], 2, wide)
    less = torch.nextafter(vector, torch.ones(()))
    assert torch.equal(add_up([reduce([less, less], [0.5, 0.5], 2, wide)])["u"][-1], less[-1])


def test_running_statistics_that_are_too_large_name_their_cause() -> None:
    reason = ": running statistics of inputs that are not normalised"
    found = describe_inexact("buffers", 2.0**18, SCALE, 1, SCALE)
    assert found == f"buffers is too large to be summed exactly (2.62e+05){reason}"


def test_uploads_are_left_alone_and_long_vectors_are_summed_like_short_ones() -> None:
    for kind, wide in itertools.product((torch.float32, torch.float64), (False, True)):
        vector = torch.tensor([1.0, -2.0], dtype=kind)
        found = reduce([vector, vector], [0.5, 0.5], 2, wide)
        assert torch.equal(vector, torch.tensor([1.0, -2.0], dtype=kind))
        assert torch.equal(add_up([found])["u"], torch.tensor([1.0, -2.0]))
    # Over several blocks, the last one not whole, and from memory that cannot be written to.
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-(2**50), 2**50, 2 * BLOCK + 3) for _ in range(3)]
    for array in arrays:
        array.setflags(write=False)
    got = add_up([{"u": as_tensor(array)} for array in arrays] + [{"v": torch.zeros(1, dtype=torch.int64)}])
    assert np.array_equal(got["u"].numpy(), (sum(arrays) / SCALE).astype(np.float32))
    assert got["v"].shape == (1,)


@settings(max_examples=200, deadline=None)
@given(entries=values, weight=st.floats(0, 1), wide=st.booleans())
def test_a_single_entry_is_rounded_like_those_of_a_vector(entries: list[float], weight: float, wide: bool) -> None:
    alone = [reduce([torch.tensor(entry)], [weight], 1, wide) for entry in entries]
    for name, summed in reduce([torch.tensor(entries)], [weight], 1, wide).items():
        assert summed.tolist() == [int(found[name]) for found in alone]
