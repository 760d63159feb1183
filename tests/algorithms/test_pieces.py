"""The pieces of methods: distillation, contrast over taps, the projection; and edges that no oracle reaches, where a
method is another one bit for bit: a radius of 0, no epochs, a bound never met. Runs are on real digits, with weight
decay, clipping, momentum, learning-rate decay, unequal clients and partial participation on.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from fedray.algorithms.auxiliary import FedRCL, kl
from fedray.algorithms.base import Output, Vectors
from fedray.algorithms.feature_terms import correlation, crowding, missing_variance
from fedray.models.network import Layout
from fedray.papers.variants import FedSOLForms
from tests.algorithms.digits import final


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_kl_of_equal_logits_has_no_gradient_at_all() -> None:
    """Exactly 0: a unit vector of rounding noise would be a perturbation of full length (D-34)."""
    target = 10 * random(50, 10)
    logits = target.clone().requires_grad_()
    assert not torch.autograd.grad(kl(target, logits), logits)[0].any()


def rcl(tap: Tensor, y: list[int], **options: float) -> float:
    """FedRCL's term for one tap."""
    return float(FedRCL.parse("algorithm", options).term(Output(tap, tap, (tap,)), torch.tensor(y)))


def test_fedrcl_of_samples_without_mates() -> None:
    """All classes distinct: no penalty, and orthogonal features leave log(1 + 2 e^-20) of the contrast."""
    assert rcl(torch.eye(4), [0, 1, 2, 3], contrast=0) < 1e-12
    assert rcl(torch.eye(4), [0, 1, 2, 3]) < 1e-7
    assert rcl(torch.eye(4)[:1], [0]) < 1e-7


LAYOUT = Layout(("a.weight", "a.bias", "h.weight"), ((2, 3), (2,), (2, 2)), frozenset({"h.weight"}))


def test_fedsol_does_not_follow_noise() -> None:
    """D-34: a gradient below 1e-8 counts as 0."""
    method, local = (
        FedSOLForms.parse("algorithm", {"perturb": "all", "radius": "fixed"}),
        Vectors(perturbed=LAYOUT.part("all")),
    )
    c: Any = SimpleNamespace(theta=random(12), theta_0=random(12, seed=1), layout=LAYOUT, local=local)
    assert torch.equal(method.perturbed(c, 1e-10 * random(12, seed=2)), c.theta)


def test_without_spread_there_is_no_gradient() -> None:
    """All samples equal: neither a standard deviation nor a median has a derivative there; both give 0, not NaN."""
    for term in (missing_variance, crowding, correlation):
        features = torch.full((4, 3), 1 / 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(term(features), features)
        assert torch.equal(gradient, torch.zeros_like(gradient)), term.__name__


REDUCTIONS = [
    ("fedgloss rho=0 alpha=0.3 rho_l=0", "feddyn alpha=0.3"),
    ("fedwmsam rho=0 adaptive=false variates=false alpha=0.3", "fedcm alpha=0.3"),
    ("fedgen hidden=12 noise=4 steps=3 epochs=0", "fedavg"),
    ("feddisco a=0 b=0", "fedavg"),
    ("fedrep body_epochs=2", "fedbabu"),
    ("fedala threshold=1.0e-9 start_epochs=11", "fedala start_epochs=11"),  # never settles
    ("fedala threshold=1.0e+9 start_epochs=30", "fedala start_epochs=11"),  # at the first chance
]


def parse(text: str) -> str | dict[str, Any]:
    """`name option=value ...` as an algorithm section."""
    name, *options = text.split()
    values = (option.replace(":", ": ").partition("=") for option in options)
    return {"name": name, **{key: yaml.safe_load(value) for key, _, value in values}} if options else name


@pytest.mark.parametrize(("left", "right"), REDUCTIONS)
def test_reduction(left: str, right: str) -> None:
    assert torch.equal(final(parse(left)).theta, final(parse(right)).theta)


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    options = {"batch_size": "full", "local_epochs": 1, "rounds": 1}
    assert not final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **options).server["s"].any()
