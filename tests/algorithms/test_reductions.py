"""Reductions: a method with its novelty switched off is another one, bit for bit if possible.

Run through the whole engine on real digits, with weight decay, clipping, momentum, learning-rate decay, unequal clients
and partial participation on. tests/oracle compares every option where it changes something, and a value 2 % off is
noticed there; here stand the values where a formula could divide by zero or has no history, and what has no oracle.

Not asserted, because untrue: dual methods with α = 0 against FedAvg (the server still adds the mean of all H_i);
FedSMOO with s = 0 against FedSpeed beyond a first step; FedSOL on the head as a slice of FedSOL on everything (their
norms differ).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.auxiliary import AuxiliaryLoss
from fedray.algorithms.base import Algorithm, Client
from fedray.algorithms.fednova import effective_steps
from fedray.algorithms.fedsol import FedSOL
from fedray.algorithms.heads import FedRep
from fedray.algorithms.linear_head import Unbiased
from fedray.models.network import Output
from tests.algorithms.digits import final, states


class LocalSOL(FedSOL):
    """FedSOL that perturbs along the local loss, its only proximal one."""

    class CrossEntropy(AuxiliaryLoss):
        """The local loss itself."""

        name = "ce"

        def term(self, output: Output, y: Tensor, *references: Tensor) -> Tensor:
            return cross_entropy(output.logits, y)

    choices = {"kl": CrossEntropy}


class NoBias(Unbiased):
    """FedAvg whose head has no bias."""

    name = "no_bias"


class Alternating(Algorithm):
    """FedAvg whose clients take the head's gradient for the first epochs, then the body's for one."""

    name = "alternating"

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta, part="body" if c.epoch == c.epochs - 1 else "head")


class SharedHead(FedRep):
    """FedRep whose head is averaged like the body."""

    name = "shared_head"
    shares = "all"
    keeps = "none"


@dataclass
class Reduction:
    """`left` run with `options` ends at `right`'s theta: exactly, or within `tolerance` of the largest entry."""

    left: str
    right: str
    tolerance: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    right_options: Mapping[str, Any] = field(default_factory=dict)


HERE = "tests.algorithms.test_reductions"
FIRST = {"rounds": 1}
ONE_STEP = {"batch_size": "full", "local_epochs": 1}
FIVE_STEPS = {"local_epochs": None, "local_steps": 5}
ALONE = {"sizes": (60,), "per_round": 1, "momentum": 0}
ADAPTIVE = {"momentum": 0, "lr": 0.01}
BIG_EPS = {"momentum": 0, "weight_decay": 0, "clip_norm": 1.0, "lr_decay": 1.0}
ONE_OF_SIX = {"clients": {"cohorts": [[4]] * 4}}
EQUAL_SIZES = {"sizes": (32, 32, 32, 32)}
PLAIN = {"weight_decay": 0, "momentum": 0, "clip_norm": None}
FEDGEN = "fedgen hidden=12 noise=4 steps=3"
SPEED = "fedspeed rho=0.2 alpha=0.3"
DYN = "feddyn alpha=0.3"
TOGA = "fedtoga rho=0.2 alpha=0.3"
TOGA_FORMS = "fedtoga@forms rho=0.2 alpha=0.3"
WMSAM = "fedwmsam rho=0 adaptive=false"


def parts(*on: str) -> str:
    """FedTOGA with only these parts."""
    switches = ("sam", "dynamic_regularisation", "dual_correction", "sam_correction")
    return " ".join([TOGA_FORMS, *(f"{switch}={switch in on}" for switch in switches)])


REDUCTIONS = [
    *[
        reduction
        for name in ("fedavg", "fedper")
        for reduction in (
            Reduction(name, name, right_options={"relaxed_start": 0.0}),
            Reduction(name, name, options=FIRST, right_options={"relaxed_start": 0.4}),  # x is x⁰
            Reduction(name, name, options=FIRST, right_options={"relaxed_start": 0.4, "relaxed_average": "models"}),
        )
    ],
    Reduction("fedavg", "fedavg", 1e-5, ONE_OF_SIX, {"relaxed_start": 0.4}),  # x is its own last local model
    Reduction("fedprox mu=0", "fedavg"),
    Reduction("fedsam rho=0", "fedavg"),
    Reduction("fedsam@forms delta=old", "local-only", options=FIRST),  # x stays where it is
    Reduction("fedsam@forms delta=old", "fedsam", options={"rounds": 2}, right_options=FIRST),
    Reduction("mofedsam step=printed", "mofedsam", 1e-6, {**FIVE_STEPS, **FIRST}, {"server_lr": 2.0}),  # 1/(η K)
    Reduction("mofedsam beta=0.3 rho=0", "fedcm alpha=0.3"),
    Reduction("scaffold", "fedavg", options=FIRST),
    Reduction("scaffold", "fedavg", 1e-6, options=ALONE),
    *[
        Reduction(f"fedtoga alpha=0.3 beta=0 kappa=0 rho=0 perturbation={kind}", DYN)
        for kind in ("fusion", "global", "neighbour")
    ],
    Reduction("fedadam start=zero", "fedyogi start=zero", 1e-6, options=FIRST),
    Reduction("fedacg lam=0.8 beta=0.5", "fedprox mu=0.5", options=FIRST),
    Reduction("fednova", "fedavg", 1e-6, options=FIVE_STEPS),
    Reduction("fednova", "fedavg", 1e-6, options={"per_round": 1}),
    Reduction("feddc alpha=0.3", DYN, options=FIRST),
    Reduction("fedavg", "fedavg", 0.0, {**EQUAL_SIZES, "aggregation": "uniform"}, {"aggregation": "samples"}),
    Reduction("fedasam rho=0", "fedavg"),
    Reduction("fedgamma rho=0", "scaffold"),
    Reduction("fedgamma rho=0.2", "fedsam rho=0.2", options=FIRST),
    Reduction("fedspeed rho=0 alpha=0.3", DYN),
    Reduction("fedsmoo rho=0 alpha=0.3", DYN),
    Reduction("fedlesam rho=0", "fedavg"),
    Reduction("fedlesam rho=0.2", "fedavg", options=FIRST),
    Reduction("fedlesam@forms rho=0.2 estimate=server", "fedavg", options=FIRST),
    Reduction("fedlesam-s rho=0", "scaffold"),
    Reduction("fedlesam-s rho=0.2", "scaffold", options=FIRST),
    Reduction("fedlesam-d rho=0 alpha=0.3", DYN),
    Reduction("fedlesam-d rho=0.2 alpha=0.3", DYN, options=FIRST),
    Reduction(parts(), "fedavg"),
    Reduction(parts("sam_correction"), "fedavg"),
    Reduction(f"{TOGA} kappa=2 beta=0.8 perturbation=global", SPEED, options=FIRST),
    *[Reduction(f"fedrobust ascent_lr=0 affine={affine}", "fedavg") for affine in ("channel", "diagonal", "full")],
    Reduction("fedrobust", "fedavg", options={**ONE_STEP, **FIRST}),
    Reduction("moon", "fedavg", options=FIRST),
    Reduction("fedsol rho=0", "fedavg"),
    *[Reduction(f"fedsol perturb=all radius={radius}", "fedavg", options=ONE_STEP) for radius in ("adaptive", "fixed")],
    Reduction("fedsol rho=0 proximal=fednova", "fednova"),
    Reduction("fedsol rho=0 proximal=scaffold", "fedavg"),
    Reduction("fedsol proximal=moon", "fedavg", options=FIRST),
    Reduction(f"{HERE}:LocalSOL rho=0.2 perturb=all radius=fixed", "fedsam rho=0.2", 1e-6),
    Reduction("fedrs alpha=1", f"{HERE}:NoBias"),
    Reduction(
        f"{HERE}:SharedHead", f"{HERE}:Alternating", options={"momentum": 0, "weight_decay": 0, "local_epochs": 3}
    ),
    Reduction("fedrep body_epochs=2", "fedbabu"),
    Reduction("perfedavg inner_lr=0", "fedavg"),
    Reduction("perfedavg inner_lr=0 hessian_free=true", "fedavg"),
    Reduction("knnper lam=1", "fedavg"),
    Reduction(f"{FEDGEN} alpha=0 beta=0", "fedavg"),
    Reduction(f"{FEDGEN} epochs=0", "fedavg"),
    Reduction(FEDGEN, "fedavg", options=FIRST),
    Reduction("fedala", "fedavg", options=FIRST),
    Reduction("fedala threshold=1.0e-9 start_epochs=11", "fedala start_epochs=11"),  # never settles
    Reduction("fedala threshold=1.0e+9 start_epochs=30", "fedala start_epochs=11"),  # at the first chance
    Reduction("fedas aligns_with=initial", "fedas", options=FIRST),  # x is x⁰
    Reduction("fedgloss rho=0 alpha=0.3 rho_l=0.2", SPEED),
    Reduction("fedgloss rho=0 alpha=0.3 rho_l=0", DYN),
    Reduction("fedswa rho=1 alpha=1", "fedavg"),
    Reduction("fedmoswa", "fedswa", options=FIRST),
    Reduction(f"{WMSAM} variates=false alpha=0.3", "fedcm alpha=0.3"),
    Reduction("fednsam rho=0 gamma=0.8", "fedacg lam=0.8 beta=0"),
    Reduction("fednsam rho=0.2", "fedsam rho=0.2", options=FIRST),
    Reduction("fednsam rho=0 memory=last", "fedavg", options=FIRST),
    Reduction("fedexp epsilon=1.0e+9", "fedavg"),  # the lower bound of the step
    Reduction(
        "fedexp", "fedavg", options={"clients": {"cohorts": [[0], [3], [2], [5]]}}
    ),  # ratio ½ for a cohort of one
    Reduction("local-adamw", "fedavg", 0.0, ADAPTIVE, {"optimizer": "adamw"}),
    Reduction("local-muon", "fedavg", 0.0, ADAPTIVE, {"optimizer": "muon"}),
    Reduction("fedadamw", "local-adamw", options={**ADAPTIVE, **FIRST}),
    Reduction("fedmuon gamma=0 momentum=0.95", "local-muon", options={**ADAPTIVE, **FIRST}),
    # without v̄ and Δ, both moments corrected in the first round
    Reduction("fedlada form=vision alpha=1 beta2=0.999", "local-adamw", options={**ADAPTIVE, **FIRST, **PLAIN}),
    # v^ stays ε² = 16 while no entry of q exceeds the clip norm of 1: steps of q/4 at the rate 4 η
    Reduction("fedlada alpha=1 beta1=0 beta2=0 eps=4", "fedavg", 1e-6, {**BIG_EPS, "lr": 0.4}, {"lr": 0.1}),
    Reduction("feddisco a=0 b=0", "fedavg"),  # by samples
]


def parse(text: str) -> str | dict[str, Any]:
    """`name option=value ...` as an algorithm section."""
    name, *options = text.split()
    values = (option.replace(":", ": ").partition("=") for option in options)
    return {"name": name, **{key: yaml.safe_load(value) for key, _, value in values}} if options else name


@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: f"{case.left} = {case.right}")
def test_reduction(case: Reduction) -> None:
    left = final(parse(case.left), **case.options).theta
    right = final(parse(case.right), **{**case.options, **case.right_options}).theta
    assert close(left, right, case.tolerance)


def close(left: Tensor, right: Tensor, tolerance: float) -> bool:
    """Equal bits for tolerance 0, else within tolerance x the largest entry."""
    if tolerance == 0:
        return torch.equal(left, right)
    return bool((left - right).abs().max() <= tolerance * right.abs().max())


@pytest.mark.parametrize(
    ("name", "vector"),
    [
        *[
            (name, "c")
            for name in ("scaffold", "feddc", "fedgamma", "fedlesam-s", "fedwmsam", "fedsol proximal=scaffold")
        ],
        *[(name, "h") for name in ("feddyn", "fedtoga", "feddc", "fedspeed", "fedsmoo", "fedlesam-d", "fedgloss")],
        ("fedsol proximal=feddyn", "h"),
    ],
)
def test_server_vector_is_the_mean_over_all_clients(name: str, vector: str) -> None:
    """After every round server.v = (1/N) Σ_i v_i over all N = 6 clients; v_i = 0 for those who never took part."""
    for state in states(parse(name)):
        mean = sum(kept[vector].double() for kept in state.clients.values()) / 6
        assert state.round > 1 or len(state.clients) == 3
        assert torch.allclose(state.server[vector].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max()))


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    state = final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **ONE_STEP, **FIRST)
    assert not state.server["s"].any()


def test_one_client_is_its_own_average() -> None:
    """One client a round: x is that client's y_K, so two rounds of one epoch without momentum are one of two epochs."""
    options = {"clients": {"cohorts": [[1], [1]]}, "momentum": 0, "lr_decay": 1.0, "batch_size": "full"}
    once = final("fedavg", **options, rounds=1, local_epochs=2).theta
    twice = final("fedavg", **options, rounds=2, local_epochs=1).theta
    assert close(once, twice, 1e-6)


def test_effective_steps() -> None:
    """A constant gradient G moves y by -η a_i G: a_i against closed forms, K, with momentum m alone
    (K - m(1 - m^K)/(1 - m))/(1 - m), with a proximal pull s alone (1 - (1 - s)^K)/s.
    """
    for steps in (1, 2, 7):
        assert effective_steps(steps, 0.0) == steps
        m, s = 0.9, 0.05
        assert effective_steps(steps, m) == pytest.approx((steps - m * (1 - m**steps) / (1 - m)) / (1 - m), rel=1e-12)
        assert effective_steps(steps, 0.0, s) == pytest.approx((1 - (1 - s) ** steps) / s, rel=1e-12)
