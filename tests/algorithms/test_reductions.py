"""Reductions: a method with its novelty switched off is another one, bit for bit if possible.

Run through the whole engine on real digits, with weight decay, clipping, momentum, learning-rate decay, unequal clients
and partial participation on. tests/oracle compares every option where it changes something, from the first round on;
here stand the values where a formula could divide by zero, and what has no oracle.

Not asserted, because untrue: dual methods with α = 0 against FedAvg (the server still adds the mean of all H_i);
FedSMOO with s = 0 against FedSpeed beyond a first step; FedSOL on the head as a slice of FedSOL on everything (their
norms differ).
"""

from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from fedray.algorithms.fednova import effective_steps
from fedray.algorithms.linear_head import Unbiased
from tests.algorithms.digits import final


class NoBias(Unbiased):
    """FedAvg whose head has no bias."""

    name = "no_bias"


FIRST = {"rounds": 1}
ONE_STEP = {"batch_size": "full", "local_epochs": 1}
ADAPTIVE = {"momentum": 0, "lr": 0.01}
DYN = "feddyn alpha=0.3"
SPEED = "fedspeed rho=0.2 alpha=0.3"
FEDGEN = "fedgen hidden=12 noise=4 steps=3"
OFF = "sam=false dynamic_regularisation=false dual_correction=false"

REDUCTIONS: list[tuple[str, str, float, dict[str, Any]]] = [
    # a radius, step or weight of 0
    *[
        (left, right, 0.0, {})
        for left, right in (
            ("fedprox mu=0", "fedavg"),
            ("fedsam rho=0", "fedavg"),
            ("fedasam rho=0", "fedavg"),
            ("fedlesam rho=0", "fedavg"),
            ("fedsol rho=0", "fedavg"),
            ("fedsol rho=0 proximal=fednova", "fednova"),
            ("fedsol rho=0 proximal=scaffold", "fedavg"),
            ("mofedsam beta=0.3 rho=0", "fedcm alpha=0.3"),
            ("fedgamma rho=0", "scaffold"),
            ("fedlesam-s rho=0", "scaffold"),
            *[(f"{name} rho=0 alpha=0.3", DYN) for name in ("fedspeed", "fedsmoo", "fedlesam-d")],
            *[(f"fedtoga alpha=0.3 beta=0 kappa=0 rho=0 perturbation={kind}", DYN) for kind in ("fusion", "neighbour")],
            (f"fedtoga@forms rho=0.2 alpha=0.3 {OFF}", "fedavg"),
            ("fedrobust ascent_lr=0", "fedavg"),
            ("fedgloss rho=0 alpha=0.3 rho_l=0.2", SPEED),
            ("fedgloss rho=0 alpha=0.3 rho_l=0", DYN),
            ("fedswa rho=1 alpha=1", "fedavg"),
            ("fedwmsam rho=0 adaptive=false variates=false alpha=0.3", "fedcm alpha=0.3"),
            ("fednsam rho=0 gamma=0.8", "fedacg lam=0.8 beta=0"),
            ("fedrs alpha=1", "tests.algorithms.test_reductions:NoBias"),
            ("perfedavg inner_lr=0", "fedavg"),
            ("perfedavg inner_lr=0 hessian_free=true", "fedavg"),
            (f"{FEDGEN} alpha=0 beta=0", "fedavg"),
            (f"{FEDGEN} epochs=0", "fedavg"),
            ("feddisco a=0 b=0", "fedavg"),
        )
    ],
    # one step, at which a proximal loss has no gradient; one client; nothing remembered yet
    *[(f"fedsol perturb=all radius={radius}", "fedavg", 0.0, ONE_STEP) for radius in ("adaptive", "fixed")],
    ("scaffold", "fedavg", 1e-6, {"sizes": (60,), "per_round": 1, "momentum": 0}),
    ("fednova", "fedavg", 1e-6, {"per_round": 1}),
    ("fedexp", "fedavg", 0.0, {"clients": {"cohorts": [[0], [3], [2], [5]]}}),  # ratio ½ for a cohort of one
    *[(name, "fedavg", 0.0, FIRST) for name in (FEDGEN, "fedala")],
    # the edges of what has no oracle, or of what one does not reach
    ("fedrep body_epochs=2", "fedbabu", 0.0, {}),
    ("fedala threshold=1.0e-9 start_epochs=11", "fedala start_epochs=11", 0.0, {}),  # never settles
    ("fedala threshold=1.0e+9 start_epochs=30", "fedala start_epochs=11", 0.0, {}),  # at the first chance
    ("fedmuon gamma=0 momentum=0.95", "local-muon", 0.0, ADAPTIVE | FIRST),
]


def parse(text: str) -> str | dict[str, Any]:
    """`name option=value ...` as an algorithm section."""
    name, *options = text.split()
    values = (option.replace(":", ": ").partition("=") for option in options)
    return {"name": name, **{key: yaml.safe_load(value) for key, _, value in values}} if options else name


@pytest.mark.parametrize(("left", "right", "tolerance", "options"), REDUCTIONS)
def test_reduction(left: str, right: str, tolerance: float, options: dict[str, Any]) -> None:
    """`left` ends at `right`'s theta: exactly, or within `tolerance` of the largest entry."""
    assert close(final(parse(left), **options).theta, final(parse(right), **options).theta, tolerance)


def close(left: Tensor, right: Tensor, tolerance: float) -> bool:
    """Equal bits for tolerance 0, else within tolerance x the largest entry."""
    if tolerance == 0:
        return torch.equal(left, right)
    return bool((left - right).abs().max() <= tolerance * right.abs().max())


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    state = final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **ONE_STEP, **FIRST)
    assert not state.server["s"].any()


def test_effective_steps() -> None:
    """A constant gradient G moves y by -η a_i G: a_i against closed forms, K, with momentum m alone
    (K - m(1 - m^K)/(1 - m))/(1 - m), with a proximal pull s alone (1 - (1 - s)^K)/s.
    """
    for steps in (1, 2, 7):
        assert effective_steps(steps, 0.0) == steps
        m, s = 0.9, 0.05
        assert effective_steps(steps, m) == pytest.approx((steps - m * (1 - m**steps) / (1 - m)) / (1 - m), rel=1e-12)
        assert effective_steps(steps, 0.0, s) == pytest.approx((1 - (1 - s) ** steps) / s, rel=1e-12)
