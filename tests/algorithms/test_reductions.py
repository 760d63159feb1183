"""What methods have in common: a method with its novelty switched off is another one, bit for bit where it can be.

Run through the whole engine on real digits, with weight decay, clipping, momentum, learning-rate decay, unequal clients
and partial participation on. Not asserted, because untrue: dual methods with α = 0 against FedAvg (the server still
adds the mean of all H_i).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from fedray.algorithms.fednova import effective_steps
from tests.algorithms.digits import final, states


@dataclass
class Reduction:
    """`left` run with `options` ends at `right`'s theta: exactly, or within `tolerance` of the largest entry."""

    left: Mapping[str, Any]
    right: str | Mapping[str, Any]
    tolerance: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    right_options: Mapping[str, Any] = field(default_factory=dict)


TOGA_OFF = {"name": "fedtoga", "alpha": 0.3, "beta": 0, "kappa": 0}

REDUCTIONS = {
    "fedprox_mu0": Reduction({"name": "fedprox", "mu": 0}, "fedavg"),
    "fedprox_one_step": Reduction(
        {"name": "fedprox", "mu": 3.0}, "fedavg", options={"batch_size": "full", "local_epochs": 1}
    ),
    "fedsam_rho0": Reduction({"name": "fedsam", "rho": 0}, "fedavg"),
    "fedcm_alpha1": Reduction({"name": "fedcm", "alpha": 1}, "fedavg"),
    "mofedsam_beta1": Reduction({"name": "mofedsam", "beta": 1, "rho": 0.2}, {"name": "fedsam", "rho": 0.2}),
    "mofedsam_rho0": Reduction({"name": "mofedsam", "beta": 0.3, "rho": 0}, {"name": "fedcm", "alpha": 0.3}),
    "mofedsam_round0": Reduction(
        {"name": "mofedsam", "beta": 0.5, "rho": 0.2},
        {"name": "fedsam", "rho": 0.2},
        options={"rounds": 1, "weight_decay": 0, "clip_norm": None, "lr": 0.1},
        right_options={"lr": 0.05},
    ),
    "scaffold_round0": Reduction({"name": "scaffold"}, "fedavg", options={"rounds": 1}),
    "scaffold_one_client": Reduction(
        {"name": "scaffold"}, "fedavg", 1e-6, options={"sizes": (60,), "per_round": 1, "momentum": 0}
    ),
    **{
        f"fedtoga_off_{kind}": Reduction({**TOGA_OFF, "rho": 0, "perturbation": kind}, {"name": "feddyn", "alpha": 0.3})
        for kind in ("fusion", "global", "neighbour")
    },
    "fedavgm_beta0": Reduction({"name": "fedavgm", "beta": 0}, "fedavg"),
    "fedavgm_round0": Reduction({"name": "fedavgm", "beta": 0.7}, "fedavg", options={"rounds": 1}),
    "fedacg_off": Reduction({"name": "fedacg", "lam": 0, "beta": 0}, "fedavg"),
    "fedacg_lambda0": Reduction({"name": "fedacg", "lam": 0, "beta": 0.5}, {"name": "fedprox", "mu": 0.5}),
    "fedacg_round0": Reduction(
        {"name": "fedacg", "lam": 0.8, "beta": 0.5}, {"name": "fedprox", "mu": 0.5}, options={"rounds": 1}
    ),
    "fednova_equal_steps": Reduction(
        {"name": "fednova"}, "fedavg", 1e-6, options={"local_epochs": None, "local_steps": 5}
    ),
    "fednova_proximal_equal_steps": Reduction(
        {"name": "fednova", "mu": 0.5},
        {"name": "fedprox", "mu": 0.5},
        1e-6,
        options={"local_epochs": None, "local_steps": 5},
    ),
    "fednova_one_client": Reduction({"name": "fednova"}, "fedavg", 1e-6, options={"per_round": 1}),
    "mimelite_beta0": Reduction({"name": "mimelite", "beta": 0}, "fedavg"),
    "mimelite_round0": Reduction({"name": "mimelite"}, "fedavg", options={"rounds": 1}),
    "feddc_round0": Reduction({"name": "feddc", "alpha": 0.3}, {"name": "feddyn", "alpha": 0.3}, options={"rounds": 1}),
    "feddyn_scaling_equal_clients": Reduction(
        {"name": "feddyn", "alpha": 0.3, "scaling": "samples"},
        {"name": "feddyn", "alpha": 0.3},
        options={"sizes": (32, 32, 32, 32)},
    ),
    "feddc_scaling_equal_clients": Reduction(
        {"name": "feddc", "alpha": 0.3, "scaling": "samples"},
        {"name": "feddc", "alpha": 0.3},
        options={"sizes": (32, 32, 32, 32)},
    ),
    "scaffold_divisor_without_momentum": Reduction(
        {"name": "scaffold", "divisor": "effective"}, "scaffold", options={"momentum": 0}
    ),
    "adam_and_yogi_agree_on_the_first_round_from_zero": Reduction(
        {"name": "fedadam", "start": "zero"}, {"name": "fedyogi", "start": "zero"}, 1e-6, options={"rounds": 1}
    ),
    "fedtoga_kappa_without_rho": Reduction({"name": "fedtoga", "rho": 0, "kappa": 4.0}, {"name": "fedtoga", "rho": 0}),
    "uniform_is_samples_for_equal_sizes": Reduction(
        {"name": "fedavg"},
        "fedavg",
        options={"sizes": (32, 32, 32, 32), "aggregation": "uniform"},
        right_options={"aggregation": "samples"},
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    case = REDUCTIONS[name]
    left = final(dict(case.left), **case.options).theta
    right = final(case.right, **{**case.options, **case.right_options}).theta
    assert close(left, right, case.tolerance)


def close(left: Tensor, right: Tensor, tolerance: float) -> bool:
    """Equal bits for tolerance 0, else within tolerance x the largest entry."""
    if tolerance == 0:
        return torch.equal(left, right)
    return bool((left - right).abs().max() <= tolerance * right.abs().max())


DIFFERENT = [
    ({"name": "fedprox", "mu": 0.5}, "fedavg", {}),
    ({"name": "fedsam", "rho": 0.1}, "fedavg", {}),
    ({"name": "fedcm", "alpha": 0.5}, "fedavg", {}),
    ({"name": "scaffold"}, "fedavg", {}),
    ({"name": "feddyn", "alpha": 0.1}, "fedavg", {}),
    ({"name": "fedtoga", "perturbation": "fusion"}, {"name": "fedtoga", "perturbation": "global"}, {}),
    ({"name": "fedtoga", "perturbation": "neighbour"}, {"name": "fedtoga", "perturbation": "global"}, {}),
    ({"name": "fedtoga", "kappa": 0.0}, {"name": "fedtoga", "kappa": 5.0}, {}),
    ({"name": "fedavg"}, "fedavg", {"aggregation": "uniform"}),
    ({"name": "fedavgm"}, "fedavg", {}),
    ({"name": "fedadam"}, "fedyogi", {}),
    ({"name": "fedadam"}, {"name": "fedadam", "start": "zero"}, {}),
    ({"name": "fedacg"}, {"name": "fedprox", "mu": 0.01}, {}),
    ({"name": "fedacg", "beta": 0}, {"name": "fedacg", "beta": 0.5}, {}),
    ({"name": "fednova"}, "fedavg", {}),
    ({"name": "mimelite"}, "fedavg", {}),
    ({"name": "feddc", "alpha": 0.1}, {"name": "feddyn", "alpha": 0.1}, {}),
    ({"name": "feddyn", "scaling": "samples"}, "feddyn", {}),
    ({"name": "feddc", "scaling": "samples"}, "feddc", {}),
    ({"name": "scaffold", "divisor": "effective"}, "scaffold", {}),
]


@pytest.mark.parametrize(("left", "right", "options"), DIFFERENT)
def test_a_method_switched_on_differs(left: dict[str, Any], right: Any, options: dict[str, Any]) -> None:
    """Without this a reduction could hold because a hyper-parameter is never read."""
    assert not close(final(left, **options).theta, final(right).theta, 1e-4)


MEANS = [("scaffold", "c"), ("feddyn", "h"), ("fedtoga", "h"), ("feddc", "h"), ("feddc", "c")]


@pytest.mark.parametrize(("name", "vector"), MEANS)
def test_server_vector_is_the_mean_over_all_clients(name: str, vector: str) -> None:
    """After every round server.v = (1/N) Σ_i v_i over all N = 6 clients; v_i = 0 for those who never took part."""
    for state in states({"name": name}):
        mean = sum(kept[vector].double() for kept in state.clients.values()) / 6
        assert state.round > 1 or len(state.clients) == 3
        assert torch.allclose(state.server[vector].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max()))


def test_scaffold_variate_is_the_gradient() -> None:
    """K = 1, full batch, no weight decay, clip or momentum: c_i = -u_i/η is client i's gradient at the x it received.

    FedAvg with this client alone moves by u_i = -η c_i; a round with a learning rate of nothing shows where x was.
    """
    plain = {
        "batch_size": "full",
        "local_epochs": 1,
        "weight_decay": 0,
        "clip_norm": None,
        "momentum": 0,
        "lr": 0.1,
        "lr_decay": 1.0,
        "rounds": 1,
        "clients": {"cohorts": [[2]]},
    }
    alone = final("fedavg", **plain)
    start = final("fedavg", **{**plain, "lr": 1e-30}).theta
    variate = final("scaffold", **plain).clients[2]["c"]
    assert torch.allclose(0.1 * variate, start - alone.theta, rtol=1e-5, atol=1e-8)


def test_feddyn_round0_adds_the_mean_of_all_updates() -> None:
    """K = 1: H_i = 0 leaves the first step FedAvg's, but the server adds h = (M/N) U: x + (1 + 3/6) U (uniform)."""
    one = {"batch_size": "full", "local_epochs": 1, "rounds": 1, "aggregation": "uniform"}
    start = final("fedavg", **{**one, "lr": 1e-30}).theta
    update = final("fedavg", **one).theta - start
    assert torch.allclose(final("feddyn", **one).theta, start + 1.5 * update, rtol=0, atol=1e-6)


def test_fedcm_is_momentum_sgd() -> None:
    """K = 1, all clients, full batch: Δ' = α ∇F + (1 - α) Δ, an exponential average of the pooled gradients.

    Checked through x: x_{t+1} - x_t = -η Δ_{t+1} because U = -η (α g + (1 - α) Δ) averaged.
    """
    options = {
        "batch_size": "full",
        "local_epochs": 1,
        "per_round": 6,
        "weight_decay": 0,
        "clip_norm": None,
        "momentum": 0,
        "lr_decay": 1.0,
    }
    before = None
    for state in states({"name": "fedcm", "alpha": 0.3}, **options):
        if before is not None:
            moved = state.theta - before
            assert torch.allclose(moved, -0.1 * state.server["delta"], rtol=1e-4, atol=1e-7)
        before = state.theta


def test_one_client_is_its_own_average() -> None:
    """One client a round: x is that client's y_K, so two rounds of one epoch without momentum are one of two epochs."""
    options = {"clients": {"cohorts": [[1], [1]]}, "momentum": 0, "lr_decay": 1.0, "batch_size": "full"}
    once = final("fedavg", **options, rounds=1, local_epochs=2).theta
    twice = final("fedavg", **options, rounds=2, local_epochs=1).theta
    assert close(once, twice, 1e-6)


def test_fedacg_momentum_is_the_last_change_of_x() -> None:
    """b = x^{t+1} - x^t after every round, and x^{t+1} is the mean of the local models (η_g = 1)."""
    before = None
    for state in states({"name": "fedacg"}):
        if before is not None:
            assert torch.allclose(state.server["b"], state.theta - before, rtol=0, atol=1e-6)
        before = state.theta


def test_mimelite_is_centralised_momentum_sgd() -> None:
    """One full batch, all clients, by samples: U = -η (∇F(x) + β m) and m' = ∇F(x) + β m, so x_{t+1} = x_t - η m'."""
    options = {
        "batch_size": "full",
        "local_epochs": 1,
        "per_round": 6,
        "weight_decay": 0,
        "clip_norm": None,
        "momentum": 0,
        "lr_decay": 1.0,
    }
    before = None
    for state in states({"name": "mimelite", "beta": 0.8}, **options):
        if before is not None:
            assert torch.allclose(state.theta - before, -0.1 * state.server["m"], rtol=1e-4, atol=1e-7)
        before = state.theta


def test_adaptive_servers_without_memory() -> None:
    """β1 = β2 = 0: x <- x + lr U/(|U| + τ), for Adam whatever v was."""
    one = {"rounds": 1}
    start = final("fedavg", **one, lr=1e-30).theta
    update = (final("fedavg", **one).theta - start).double()
    moved = final({"name": "fedadam", "beta1": 0, "beta2": 0, "tau": 0.01, "lr": 0.1}, **one).theta - start
    assert torch.allclose(moved.double(), 0.1 * update / (update.abs() + 0.01), rtol=0, atol=1e-6)


def test_effective_steps() -> None:
    """A constant gradient G moves y by -η a_i G: a_i against closed forms, K, with momentum m alone
    (K - m(1 - m^K)/(1 - m))/(1 - m), with a proximal pull s alone (1 - (1 - s)^K)/s.
    """
    for steps in (1, 2, 7):
        assert effective_steps(steps, 0.0) == steps
        m, s = 0.9, 0.05
        assert effective_steps(steps, m) == pytest.approx((steps - m * (1 - m**steps) / (1 - m)) / (1 - m), rel=1e-12)
        assert effective_steps(steps, 0.0, s) == pytest.approx((1 - (1 - s) ** steps) / s, rel=1e-12)
