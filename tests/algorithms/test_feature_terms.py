"""The terms of FedUV and FedDecorr on a few samples, by hand; they stay finite where their formulas would not."""

import pytest
import torch

from fedray.algorithms.feature_terms import correlation, crowding, missing_variance


def test_correlation() -> None:
    """Three samples (1, 1), (2, 2), (3, 1): z_1 = (-1, 0, 1), z_2 = (-1, 2, -1)/√3 · ... are uncorrelated: 0. With
    (3, 3) instead both are (-1, 0, 1): (Z'Z)_12 = 2, its square over n = 3.
    """
    assert correlation(torch.tensor([[1.0, 1], [2, 2], [3, 1]])) == pytest.approx(0, abs=1e-6)
    assert correlation(torch.tensor([[1.0, 1], [2, 2], [3, 3]])) == pytest.approx(4 / 3, rel=1e-6)
    assert correlation(torch.ones(1, 5)) == 0


def test_missing_variance() -> None:
    """Two classes, target √½. p_1 = (1, 0): std √½, nothing missing; (¾, ¼): std √½/2, half of the target missing."""
    assert missing_variance(torch.tensor([[1.0, 0], [0, 1]])) == pytest.approx(0, abs=1e-6)
    assert missing_variance(torch.tensor([[0.75, 0.25], [0.25, 0.75]])) == pytest.approx(0.5**0.5 / 2, rel=1e-6)


def test_crowding() -> None:
    """At 0, 1 and 3 on a line the squares are 1, 4, 9, the median 4: mean of e^-¼, e^-1, e^-9/4. Two equal ones leave
    the median of the others: 0, 0, 2 has 4 twice: (1 + 2/e)/3.
    """
    found = crowding(torch.tensor([[0.0], [1], [3]]))
    assert found == pytest.approx(float(torch.tensor([-0.25, -1, -2.25]).exp().mean()), rel=1e-6)
    assert crowding(torch.tensor([[0.0], [0], [2]])) == pytest.approx((1 + 2 / torch.e) / 3, rel=1e-6)


def test_without_spread_there_is_no_gradient() -> None:
    """All samples equal: neither a standard deviation nor a median has a derivative there; both give 0, not NaN."""
    for term in (missing_variance, crowding, correlation):
        features = torch.full((4, 3), 1 / 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(term(features), features)
        assert torch.equal(gradient, torch.zeros_like(gradient)), term.__name__
