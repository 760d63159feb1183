"""Reductions of the sharpness, distillation and contrastive methods and of FedSOL, in `test_reductions.py`'s setting.

Not asserted, because untrue: FedSMOO with s = 0 against FedSpeed beyond a first step; FedSOL on the head as a slice of
FedSOL on everything (their norms differ); dual methods with α = 0 against FedAvg.
"""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedray.algorithms.auxiliary import AuxiliaryLoss, Term
from fedray.algorithms.base import Client
from fedray.algorithms.fedsol import FedSOL
from tests.algorithms.digits import final, states
from tests.algorithms.test_reductions import Reduction, close

ONE_STEP = {"batch_size": "full", "local_epochs": 1}
EVERYONE = {"per_round": 6}
SAM = {"name": "fedsam", "rho": 0.2}
SPEED = {"name": "fedspeed", "rho": 0.2, "alpha": 0.3}
DYN = {"name": "feddyn", "alpha": 0.3}
TOGA = {"name": "fedtoga", "rho": 0.2, "alpha": 0.3}
SWITCHES = ("sam", "dynamic_regularisation", "dual_correction", "sam_correction")


def toga(*on: str) -> dict[str, Any]:
    """FedTOGA with only these parts."""
    return {**TOGA, **{switch: switch in on for switch in SWITCHES}}


class CrossEntropy(AuxiliaryLoss):
    """The local loss itself as proximal loss."""

    name = "ce"

    def term(self, c: Client) -> Term:
        return lambda output: cross_entropy(output.logits, c.y)


class LocalSOL(FedSOL):
    """FedSOL that perturbs along the local loss."""

    choices = {"kl": CrossEntropy}


REDUCTIONS = {
    "fedasam_rho0": Reduction({"name": "fedasam", "rho": 0}, "fedavg"),
    "fedgamma_rho0": Reduction({"name": "fedgamma", "rho": 0}, "scaffold"),
    "fedgamma_round0": Reduction({"name": "fedgamma", "rho": 0.2}, SAM, options={"rounds": 1}),
    "fedgamma_one_client": Reduction(
        {"name": "fedgamma", "rho": 0.2}, SAM, 1e-6, options={"sizes": (60,), "per_round": 1, "momentum": 0}
    ),
    "fedspeed_rho0": Reduction({**SPEED, "rho": 0}, DYN),
    "fedsmoo_rho0": Reduction({"name": "fedsmoo", "rho": 0, "alpha": 0.3}, DYN),
    "fedsmoo_first_step": Reduction({**SPEED, "name": "fedsmoo"}, SPEED, options={**ONE_STEP, "rounds": 1}),
    "fedlesam_rho0": Reduction({"name": "fedlesam", "rho": 0}, "fedavg"),
    "fedlesam_round0": Reduction({"name": "fedlesam", "rho": 0.2}, "fedavg", options={"rounds": 1}),
    "fedlesam_server_round0": Reduction(
        {"name": "fedlesam", "rho": 0.2, "estimate": "server"}, "fedavg", options={"rounds": 1}
    ),
    "fedlesam_s_rho0": Reduction({"name": "fedlesam-s", "rho": 0}, "scaffold"),
    "fedlesam_s_round0": Reduction({"name": "fedlesam-s", "rho": 0.2}, "scaffold", options={"rounds": 1}),
    "fedlesam_s_uncorrected": Reduction(
        {"name": "fedlesam-s", "rho": 0.2, "correction": 0}, {"name": "fedlesam", "rho": 0.2}
    ),
    "fedlesam_d_rho0": Reduction({"name": "fedlesam-d", "rho": 0, "alpha": 0.3}, DYN),
    "fedlesam_d_round0": Reduction({"name": "fedlesam-d", "rho": 0.2, "alpha": 0.3}, DYN, options={"rounds": 1}),
    **{
        f"{name}_estimates_agree_with_everyone": Reduction(
            {"name": name, "rho": 0.2, "estimate": "server"}, {"name": name, "rho": 0.2}, options=EVERYONE
        )
        for name in ("fedlesam", "fedlesam-s", "fedlesam-d")
    },
    "fedtoga_nothing": Reduction(toga(), "fedavg"),
    "fedtoga_sam": Reduction(toga("sam"), SAM),
    "fedtoga_dr": Reduction(toga("dynamic_regularisation"), DYN),
    "fedtoga_sam_dr": Reduction(toga("sam", "dynamic_regularisation"), SPEED),
    "fedtoga_sam_correction_needs_sam": Reduction(toga("sam_correction"), "fedavg"),
    "fedtoga_uncorrected": Reduction({**TOGA, "kappa": 0, "beta": 0, "perturbation": "global"}, SPEED),
    "fedtoga_round0": Reduction(
        {**TOGA, "kappa": 2, "beta": 0.8, "perturbation": "global"}, SPEED, options={"rounds": 1}
    ),
    "fedtoga_divisors_agree_with_everyone": Reduction({**TOGA, "dual_divisor": "cohort"}, TOGA, options=EVERYONE),
    "fedtoga_scales": Reduction(
        {**TOGA, "delta_scale": "gradient", "kappa": 0.1, "beta": 0.09}, TOGA, 1e-6, options={"lr_decay": 1.0}
    ),
    **{
        f"fedrobust_{affine}_still": Reduction({"name": "fedrobust", "ascent_lr": 0, "affine": affine}, "fedavg")
        for affine in ("channel", "diagonal", "full")
    },
    "fedrobust_first_step": Reduction({"name": "fedrobust"}, "fedavg", options={**ONE_STEP, "rounds": 1}),
    "fedntd_beta0": Reduction({"name": "fedntd", "beta": 0}, "fedavg"),
    "fedntd_one_step": Reduction({"name": "fedntd", "tau": 2.0}, "fedavg", options=ONE_STEP),
    "fedavg_kl_weight0": Reduction({"name": "fedavg-kl", "weight": 0}, "fedavg"),
    "fedavg_kl_one_step": Reduction({"name": "fedavg-kl"}, "fedavg", options=ONE_STEP),
    "moon_mu0": Reduction({"name": "moon", "mu": 0}, "fedavg"),
    "moon_round0": Reduction({"name": "moon"}, "fedavg", options={"rounds": 1}),
    "fedrcl_off": Reduction({"name": "fedrcl", "contrast": 0, "relaxation": 0}, "fedavg"),
    "fedsol_rho0": Reduction({"name": "fedsol", "rho": 0}, "fedavg"),
    "fedsol_a0": Reduction({"name": "fedsol", "strategy": "A0"}, "fedavg"),
    "fedsol_a5": Reduction({"name": "fedsol", "strategy": "A5"}, "fedavg-kl", 1e-6),
    "fedsol_a5_fedprox": Reduction(
        {"name": "fedsol", "strategy": "A5", "proximal": {"name": "fedprox", "mu": 0.4}}, {"name": "fedprox", "mu": 0.4}
    ),
    **{
        f"fedsol_one_step_{radius}": Reduction(
            {"name": "fedsol", "perturb": "all", "radius": radius}, "fedavg", options=ONE_STEP
        )
        for radius in ("adaptive", "fixed")
    },
    "fedsol_fednova_rho0": Reduction({"name": "fedsol", "rho": 0, "proximal": "fednova"}, "fednova"),
    "fedsol_scaffold_rho0": Reduction({"name": "fedsol", "rho": 0, "proximal": "scaffold"}, "fedavg"),
    "fedsol_moon_round0": Reduction({"name": "fedsol", "proximal": "moon"}, "fedavg", options={"rounds": 1}),
    "fedsol_of_the_local_loss": Reduction(
        {"name": "tests.algorithms.test_identities:LocalSOL", "rho": 0.2, "perturb": "all", "radius": "fixed"},
        SAM,
        1e-6,
    ),
    "projection_on_nothing": Reduction({"name": "projection", "proximal": {"name": "kl", "weight": 0}}, "fedavg"),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    case = REDUCTIONS[name]
    left = final(dict(case.left), **case.options).theta
    right = final(case.right, **{**case.options, **case.right_options}).theta
    assert close(left, right, case.tolerance)


DIFFERENT: list[tuple[dict[str, Any], Any]] = [
    ({"name": "fedasam", "rho": 0.1}, "fedavg"),
    ({"name": "fedasam", "rho": 0.1}, {"name": "fedasam", "rho": 0.1, "eta_a": 0.0}),
    ({"name": "fedasam", "rho": 0.1}, {"name": "fedasam", "rho": 0.1, "scaled": "all"}),
    ({"name": "fedgamma", "rho": 0.1}, "scaffold"),
    (SPEED, DYN),
    ({**SPEED, "name": "fedsmoo"}, SPEED),
    ({"name": "fedsmoo"}, {"name": "fedsmoo", "perturbation_dual": "corrected"}),
    ({"name": "fedlesam", "rho": 0.1}, "fedavg"),
    ({"name": "fedlesam", "rho": 0.1, "estimate": "server"}, {"name": "fedlesam", "rho": 0.1}),
    ({"name": "fedlesam-s", "rho": 0.1}, "scaffold"),
    ({"name": "fedlesam-d", "rho": 0.1, "alpha": 0.3}, DYN),
    *[({**TOGA, switch: False}, TOGA) for switch in SWITCHES],
    ({**TOGA, "delta_scale": "gradient"}, TOGA),
    ({**TOGA, "dual_divisor": "cohort"}, TOGA),
    *[({"name": "fedrobust", "affine": affine}, "fedavg") for affine in ("channel", "diagonal", "full")],
    ({"name": "fedrobust", "penalty": 5.0}, "fedrobust"),
    ({"name": "fedntd"}, "fedavg"),
    ({"name": "fedntd", "tau": 2.0}, "fedntd"),
    ({"name": "fedavg-kl"}, "fedavg"),
    ({"name": "moon"}, "fedavg"),
    ({"name": "moon", "tau": 1.0}, "moon"),
    ({"name": "fedrcl", "relaxation": 0.0}, "fedrcl"),
    ({"name": "fedrcl", "contrast": 0.0}, "fedavg"),
    ({"name": "fedrcl", "threshold": 1.0}, "fedrcl"),
    *[({"name": "fedsol", "perturb": part}, "fedavg") for part in ("head", "body", "all")],
    ({"name": "fedsol", "radius": "fixed"}, "fedsol"),
    ({"name": "fedsol", "lambda_norm": "layer"}, "fedsol"),
    *[({"name": "fedsol", "strategy": strategy}, "fedsol") for strategy in ("A2", "A3", "A4", "A5", "A6")],
    *[
        ({"name": "fedsol", "proximal": other}, {"name": "fedsol", "perturb": "all"})
        for other in ("fedprox", "fednova", "scaffold", "feddyn", "moon")
    ],
    ({"name": "projection"}, "fedavg"),
    ({"name": "projection", "proximal": "fedprox"}, "fedavg"),
]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_a_method_switched_on_differs(left: dict[str, Any], right: Any) -> None:
    """Without this a reduction could hold because a hyper-parameter is never read."""
    assert not close(final(left).theta, final(right).theta, 1e-4)


MEANS = [("fedgamma", "c"), ("fedlesam-s", "c"), ("fedspeed", "h"), ("fedsmoo", "h"), ("fedlesam-d", "h")]


@pytest.mark.parametrize(("name", "vector"), MEANS)
def test_server_vector_is_the_mean_over_all_clients(name: str, vector: str) -> None:
    for state in states({"name": name}):
        mean = sum(kept[vector].double() for kept in state.clients.values()) / 6
        assert torch.allclose(state.server[vector].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max()))


def test_fedsol_keeps_the_books_of_what_it_is_combined_with() -> None:
    """SCAFFOLD's c stays the mean of all c_i, FedDyn's h of all H_i, MOON's previous model the client's last one."""
    for combined, vector in (("scaffold", "c"), ("feddyn", "h")):
        state = final({"name": "fedsol", "proximal": combined})
        mean = sum(kept[vector].double() for kept in state.clients.values()) / 6
        assert mean.abs().max() > 0
        assert torch.allclose(state.server[vector].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max()))
    one = final({"name": "fedsol", "proximal": "moon"}, rounds=1, clients={"cohorts": [[3]]})
    assert torch.allclose(one.clients[3]["previous"], one.theta, rtol=0, atol=1e-6)


def test_fedlesam_remembers_the_model_of_its_last_activity() -> None:
    """Client 1 takes part in rounds 0 and 2: its x_old after that is x of round 2, what it received."""
    run = list(states({"name": "fedlesam", "rho": 0.1}, rounds=3, clients={"cohorts": [[0, 1], [0], [1]]}))
    assert torch.equal(run[2].clients[1]["x_old"], run[1].theta)
    assert torch.equal(run[2].clients[0]["x_old"], run[0].theta)


@pytest.mark.parametrize("form", ["whole", "corrected"])
def test_fedsmoo_perturbs_by_rho(form: str) -> None:
    """||s|| = ρ. With ρ = 0 the perturbation's duals stay 0."""
    s = final({"name": "fedsmoo", "rho": 0.2, "perturbation_dual": form}).server["s"]
    assert float(torch.linalg.vector_norm(s)) == pytest.approx(0.2, rel=1e-4)
    off = final({"name": "fedsmoo", "rho": 0.0, "perturbation_dual": form})
    assert not off.server["s"].any()
    assert not any(kept["mu"].any() for kept in off.clients.values())


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    state = final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **ONE_STEP, rounds=1)
    assert not state.server["s"].any()


def test_fedrobust_stays_with_its_inputs_under_a_strong_penalty() -> None:
    """λ η_2 = ½ undoes every ascent in the next step; what is left is η_2 times one gradient."""
    near = final({"name": "fedrobust", "ascent_lr": 1e-6, "penalty": 5e5})
    assert close(near.theta, final("fedavg").theta, 1e-4)
    for kept in near.clients.values():
        assert kept["affine"][0].item() == pytest.approx(1.0, abs=1e-4)
        assert kept["affine"][1].item() == pytest.approx(0.0, abs=1e-4)
