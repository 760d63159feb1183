"""FedGloSS, FedSWA, FedMoSWA, FedWMSAM, FedNSAM: with their novelty off they are others, bit for bit where they can."""

from typing import Any

import pytest
import torch

from fedray.algorithms.fedgloss import FedGloSS
from fedray.common.errors import UserError
from fedray.engine.backend import InlineBackend
from fedray.engine.simulation import Simulation
from tests.algorithms.digits import final, problem, states

WMSAM = {"name": "fedwmsam", "rho": 0, "adaptive": False}
EXACT: list[tuple[dict[str, Any], dict[str, Any] | str, dict[str, Any]]] = [
    ({"name": "fedgloss", "rho": 0, "alpha": 0.3, "rho_l": 0.2}, {"name": "fedspeed", "alpha": 0.3, "rho": 0.2}, {}),
    ({"name": "fedgloss", "rho": 0, "rho_l": 0, "alpha": 0.3}, {"name": "feddyn", "alpha": 0.3}, {}),
    (
        {"name": "fedgloss", "rho": 0, "alpha": 0.3, "rho_l": 0.2, "start_rho": 0.2, "warmup": 4},
        {"name": "fedspeed", "alpha": 0.3, "rho": 0.2},
        {},
    ),
    ({"name": "fedgloss", "alpha": 0.3, "rho_l": 0.2}, {"name": "fedspeed", "alpha": 0.3, "rho": 0.2}, {"rounds": 1}),
    ({"name": "fedswa", "rho": 1, "alpha": 1}, "fedavg", {}),
    ({"name": "fedmoswa"}, "fedswa", {"rounds": 1}),
    ({**WMSAM, "variates": False, "alpha": 0.3}, {"name": "fedcm", "alpha": 0.3}, {}),
    ({"name": "fednsam", "rho": 0, "gamma": 0.8}, {"name": "fedacg", "lam": 0.8, "beta": 0}, {}),
    ({"name": "fednsam", "rho": 0.2, "gamma": 0}, {"name": "fedsam", "rho": 0.2}, {}),
    ({"name": "fednsam", "rho": 0.2}, {"name": "fedsam", "rho": 0.2}, {"rounds": 1}),
]


@pytest.mark.parametrize(("left", "right", "options"), EXACT)
def test_bit_for_bit(left: dict[str, Any], right: dict[str, Any] | str, options: dict[str, Any]) -> None:
    assert torch.equal(final(left, **options).theta, final(right, **options).theta)


CLOSE: list[tuple[dict[str, Any], dict[str, Any] | str, dict[str, Any], dict[str, Any]]] = [
    ({**WMSAM, "alpha": 1}, "scaffold", {}, {}),
    ({"name": "fedmoswa", "rho": 1, "alpha": 1, "gamma": 1}, "scaffold", {"per_round": 6, "momentum": 0}, {}),
    (
        {**WMSAM, "alpha": 0.5},
        "fedavg",
        {"rounds": 1, "weight_decay": 0, "clip_norm": None, "lr": 0.1},
        {"lr": 0.05},
    ),
    ({"name": "fedswa", "rho": 1, "alpha": 1.5}, "fedavg", {}, {"server_lr": 1.5}),
]


@pytest.mark.parametrize(("left", "right", "options", "other"), CLOSE)
def test_up_to_rounding(
    left: dict[str, Any], right: dict[str, Any] | str, options: dict[str, Any], other: dict[str, Any]
) -> None:
    assert torch.allclose(final(left, **options).theta, final(right, **{**options, **other}).theta, rtol=0, atol=1e-5)


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any] | str]] = [
    ({"name": "fedmoswa", "rho": 1, "alpha": 1, "gamma": 1}, "scaffold"),  # not with half of the clients
    ({"name": "fedmoswa", "rho": 1, "alpha": 1, "gamma": 0}, "fedavg"),  # c_i stays
    ({"name": "fedgloss", "alpha": 0.3, "rho": 0.5}, {"name": "fedgloss", "alpha": 0.3, "rho": 0}),
    ({"name": "fedwmsam", "rho": 0.5}, {"name": "fedwmsam", "rho": 0}),
    ({"name": "fedwmsam", "rho": 0.5}, {"name": "fedwmsam", "rho": 0.5, "sign": "code"}),
]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_otherwise_they_differ(left: dict[str, Any], right: dict[str, Any] | str) -> None:
    assert (final(left).theta - final(right).theta).abs().max() > 1e-4


def test_fedgloss_broadcasts_at_its_radius() -> None:
    """||x~ - x|| = ρ from the second round on; h is the mean of all N clients' H_i."""
    running = Simulation(problem({"name": "fedgloss", "rho": 0.4}), InlineBackend())
    method = running.problem.config.algorithm
    assert torch.equal(method.broadcast(running._server(0, 3)), running.state().theta)
    for _ in range(3):
        running.step()
    server = running._server(3, 3)
    assert float((method.broadcast(server) - server.theta).norm()) == pytest.approx(0.4, rel=1e-4)
    mean = sum((kept.h for kept in running.state().clients.values()), torch.zeros(())) / 6
    assert torch.allclose(server.state.h, mean, atol=1e-6)


def test_fedgloss_grows_its_radii() -> None:
    """From 0.01 to 0.21 in four rounds: 0.01, 0.06, 0.11, 0.16, then 0.21."""
    method = FedGloSS(start_rho=0.01, warmup=4)
    assert [method.radius(0.21, t) for t in range(6)] == pytest.approx([0.01, 0.06, 0.11, 0.16, 0.21, 0.21])
    assert not any(method.radius(0.0, t) for t in range(6))


def test_fednsam_goes_where_its_clients_are() -> None:
    """x is x + γ m + U, and m the last change of x."""
    thetas = [problem("fednsam").network("cpu").initial]
    for state in states({"name": "fednsam", "gamma": 0.6}):
        thetas.append(state.theta)
        assert torch.allclose(state.server.m, thetas[-1] - thetas[-2], atol=1e-6)


def test_fedwmsam_keeps_the_mean_of_the_variates() -> None:
    state = final("fedwmsam")
    mean = sum((kept.c for kept in state.clients.values()), torch.zeros(())) / 6
    assert torch.allclose(state.server.c, mean, atol=1e-5)
    assert 0.09 < float(state.server.alpha) < 0.2


def test_fedwmsam_cannot_perturb_without_momentum() -> None:
    with pytest.raises(UserError, match=r"algorithm\.alpha: found 1 with rho above 0"):
        problem({"name": "fedwmsam", "alpha": 1})
