"""Paired differences and their intervals against numbers from a t table."""

import math

import pytest

from analysis.collect import collect
from analysis.compare import paired, report
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write


def test_interval_of_paired_seeds(store: Tracker) -> None:
    """Seeds 0, 1, 2: fedavg 80, 60, 70. ρ=0.1 81, 62, 73: differences 1, 2, 3, mean 2, s = 1, and t(0.975, 2) = 4.303,
    so 2 ± 4.303/sqrt(3) = 2 ± 2.484: not told apart, though unpaired noise is tenfold. ρ=0.5 is 5, 5.1, 5.2 above:
    5.1 ± 4.303 * 0.1/sqrt(3) = 5.1 ± 0.248: better. At α = 0.1 fedavg lacks seed 1: one pair, and no interval.
    """
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1, 2)]
    cells += [cell(a, 0.1, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    numbers = (80, 60, 70, 81, 62, 73, 85, 65.1, 75.2, 50, None, 40, 41)
    write(store, cells, {one["hash"]: ("finished", history(v)) for one, v in zip(cells, numbers, strict=True) if v})
    found = paired(collect("sweep"), "fedavg")
    small, large, lone = found
    assert (small.row, small.column, small.n, small.unpaired) == ("fedsam ρ=0.1", "dirichlet α=0.5", 3, 0)
    half = 4.302653 / math.sqrt(3)
    assert (small.mean, small.low, small.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-5)
    assert (large.mean, large.low, large.high) == pytest.approx((5.1, 5.1 - half / 10, 5.1 + half / 10), abs=1e-5)
    assert [one.verdict(lower=False) for one in found] == ["not told apart", "better", "too few seeds"]
    assert [one.verdict(lower=True) for one in found] == ["not told apart", "worse", "too few seeds"]
    assert (lone.n, lone.mean, lone.low, lone.unpaired) == (1, -10, None, 1)
    text = report(found, "sweep", "fedavg", "last10_test_accuracy", 0.95)
    assert "| fedsam ρ=0.5 | dirichlet α=0.5 | 3 | +5.10 | +4.85 .. +5.35 | better |" in text
    assert "| 1 (unpaired: 1) | -10.00 | - | too few seeds |" in text
    narrow, *_ = paired(collect("sweep"), "fedavg", confidence=0.5)
    assert narrow.high == pytest.approx(2 + 0.816497 / math.sqrt(3), abs=1e-5)  # t(0.75, 2) = 0.8165


@pytest.mark.parametrize(
    ("to", "confidence", "columns", "message"),
    [
        ("fedavgg", 0.95, "", "--to: unknown name 'fedavgg'; did you mean 'fedavg'?"),
        ("fedavg", 95, "", "--confidence: found 95; a number between 0 and 1"),
        ("fedavg", 0.95, "data", "--rows/--cols: unknown name 'data'"),
        ("fedavg", 0.95, "algorithm", "--cols: with 'algorithm' several runs share method, setting and seed"),
    ],
)
def test_refusals(store: Tracker, to: str, confidence: float, columns: str, message: str) -> None:
    cells = [cell(FEDAVG, alpha, 0) for alpha in (0.1, 0.5)]
    write(store, cells, {one["hash"]: ("finished", history(70)) for one in cells})
    with pytest.raises(UserError) as error:
        paired(collect("sweep"), to, confidence=confidence, columns=columns)
    assert message in str(error.value)
