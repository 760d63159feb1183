"""The oracle against itself: the definitions' reductions and first-round equalities, in float64 and without fedray.

Section 6 of the definitions. What is equal on paper is equal here up to the rounding of float64 and the eps of a norm.
"""

from collections.abc import Callable

import numpy as np
import pytest

from .averaging import fedacg, fedadam, fedavg, fedavgm, fedcm, fednova, fedprox, fedyogi, mimelite
from .corrections import feddc, feddyn, feddyn_gradient_units, scaffold
from .fedsol import fedsol, fedsol_with
from .losses import fedntd, fedrcl, moon
from .nets import MLP
from .sharpness import (
    fedasam,
    fedgamma,
    fedlesam,
    fedlesam_d,
    fedlesam_s,
    fedrobust,
    fedsam,
    fedsmoo,
    fedspeed,
    fedtoga,
    mofedsam,
)
from .tensors import Tensors
from .world import World

Method = Callable[[World], Tensors]


def federation(rounds: int = 4, clients: int = 4, epochs: int = 2, batch_size: int = 3, **options: float) -> World:
    """Unequal clients, two of four per round (everyone where there are fewer), a 3-9-3 net."""
    rng = np.random.default_rng(5)
    shapes = {"W1": (9, 3), "b1": (9,), "W2": (3, 9), "b2": (3,)}
    sizes = (4, 7, 5, 9)[:clients]
    cohorts = [[0, 2], [1, 3], [0, 1], [2, 3]] if clients == 4 else [list(range(clients))] * 4
    return World(
        MLP(),
        Tensors({name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}),
        [(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in sizes],
        cohorts[:rounds],
        epochs,
        batch_size,
        lr=0.1,
        lr_decay=0.9,
        weight_decay=0.02,
        **options,
    )  # type: ignore[arg-type]


def distance(left: Method, right: Method, **options: float) -> float:
    """max |left - right| on two equal federations."""
    a, b = left(federation(**options)), right(federation(**options))  # type: ignore[arg-type]
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


EQUAL: dict[str, tuple[Method, Method, dict[str, float]]] = {
    "fedprox": (lambda w: fedprox(w, 0.0), fedavg, {}),
    "fedprox, one step": (lambda w: fedprox(w, 3.0), fedavg, {"epochs": 1, "batch_size": 99}),
    "fednova, equal a_i": (fednova, fedavg, {"epochs": 3, "batch_size": 99, "momentum": 0.5}),
    "fednova, one client": (lambda w: fednova(w, mu=0.3), lambda w: fedprox(w, 0.3), {"clients": 1, "momentum": 0.5}),
    "fedavgm": (lambda w: fedavgm(w, 0.0), fedavg, {}),
    "fedavgm, first round": (lambda w: fedavgm(w, 0.9), fedavg, {"rounds": 1}),
    "fedadam = fedyogi, first round, v0 = 0": (
        lambda w: fedadam(w, 0.1, 0.9, 0.99, 0.1, 0.0),
        lambda w: fedyogi(w, 0.1, 0.9, 0.99, 0.1, 0.0),
        {"rounds": 1},
    ),
    "fedacg": (lambda w: fedacg(w, 0.0, 0.0), fedavg, {}),
    "fedacg, first round": (lambda w: fedacg(w, 0.8, 0.3), lambda w: fedprox(w, 0.3), {"rounds": 1}),
    "fedcm": (lambda w: fedcm(w, 1.0), fedavg, {}),
    "mimelite": (lambda w: mimelite(w, 0.0), fedavg, {}),
    "scaffold, one client": (scaffold, fedavg, {"clients": 1}),
    "scaffold, first round": (scaffold, fedavg, {"rounds": 1}),
    "feddyn a = b": (lambda w: feddyn(w, 0.3), lambda w: feddyn_gradient_units(w, 0.3), {"momentum": 0.5, "clip": 0.5}),
    "feddc, one client": (lambda w: feddc(w, 0.3), lambda w: feddyn(w, 0.3), {"clients": 1}),
    "fedntd": (lambda w: fedntd(w, 0.0, 2.0), fedavg, {}),
    "moon": (lambda w: moon(w, 0.0, 0.5), fedavg, {}),
    "moon, first round": (lambda w: moon(w, 2.0, 0.5), fedavg, {"rounds": 1}),
    "fedrcl": (lambda w: fedrcl(w, 0.0, 0.0), fedavg, {}),
    "fedsam": (lambda w: fedsam(w, 0.0), fedavg, {}),
    "fedasam": (lambda w: fedasam(w, 0.0, 0.2), fedavg, {}),
    "mofedsam = fedsam": (lambda w: mofedsam(w, 0.2, 1.0), lambda w: fedsam(w, 0.2), {}),
    "mofedsam = fedcm": (lambda w: mofedsam(w, 0.0, 0.4), lambda w: fedcm(w, 0.4), {}),
    "fedgamma": (lambda w: fedgamma(w, 0.0), scaffold, {}),
    "fedgamma, one client": (lambda w: fedgamma(w, 0.2), lambda w: fedsam(w, 0.2), {"clients": 1}),
    "fedspeed": (lambda w: fedspeed(w, 0.3, 0.0), lambda w: feddyn(w, 0.3), {}),
    "fedsmoo": (lambda w: fedsmoo(w, 0.3, 0.0), lambda w: feddyn(w, 0.3), {}),
    "fedsmoo, first step": (
        lambda w: fedsmoo(w, 0.3, 0.2),
        lambda w: fedspeed(w, 0.3, 0.2),
        {"rounds": 1, "epochs": 1, "batch_size": 99},
    ),
    "fedlesam": (lambda w: fedlesam(w, 0.0), fedavg, {}),
    "fedlesam, first round": (lambda w: fedlesam(w, 0.2), fedavg, {"rounds": 1}),
    "fedlesam, everyone": (lambda w: fedlesam(w, 0.2), lambda w: fedlesam(w, 0.2, broadcast=True), {"clients": 3}),
    "fedlesam-s": (lambda w: fedlesam_s(w, 0.0), scaffold, {}),
    "fedlesam-d": (lambda w: fedlesam_d(w, 0.3, 0.0), lambda w: feddyn(w, 0.3), {}),
    "fedtoga = fedspeed": (lambda w: fedtoga(w, 0.3, 0.2, 0.0, 0.0, "global"), lambda w: fedspeed(w, 0.3, 0.2), {}),
    "fedtoga = feddyn": (lambda w: fedtoga(w, 0.3, 0.0, 2.0, 0.0), lambda w: feddyn(w, 0.3), {}),
    "fedtoga, first round": (
        lambda w: fedtoga(w, 0.3, 0.2, 2.0, 0.8, "global"),
        lambda w: fedspeed(w, 0.3, 0.2),
        {"rounds": 1},
    ),
    "fedrobust": (lambda w: fedrobust(w, 0.0, 1.0, "full"), fedavg, {}),
    "fedsol": (lambda w: fedsol(w, 0.0, 3.0, "all", "dim0"), fedavg, {}),
    "fedsol, one step": (lambda w: fedsol(w, 2.0, 3.0, "all", "fixed"), fedavg, {"epochs": 1, "batch_size": 99}),
    "fedsol A0": (lambda w: fedsol(w, 2.0, 3.0, "all", "fixed", "A0"), fedavg, {}),
    "fedsol with scaffold, first round": (
        lambda w: fedsol_with(w, "scaffold", 2.0, "all", "fixed"),
        fedavg,
        {"rounds": 1},
    ),
    "fedsol with fednova": (lambda w: fedsol_with(w, "fednova", 0.0, "all", "fixed"), fednova, {"momentum": 0.5}),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_reduction(name: str) -> None:
    left, right, options = EQUAL[name]
    assert distance(left, right, **options) < 1e-7


def test_fedtoga_without_a_perturbation_forgets_kappa() -> None:
    """rho = 0 and beta > 0: q = g + lam (y - x + H) + beta Delta whatever kappa."""
    assert distance(lambda w: fedtoga(w, 0.3, 0.0, 1.0, 0.8), lambda w: fedtoga(w, 0.3, 0.0, 3.0, 0.8)) == 0


def test_methods_that_differ() -> None:
    """D-14: FedDyn without its coefficient is not FedAvg. FedSMOO is FedSpeed for one step only."""
    assert distance(lambda w: feddyn(w, 0.0), fedavg) > 1e-3
    assert distance(lambda w: fedsmoo(w, 0.3, 0.2), lambda w: fedspeed(w, 0.3, 0.2)) > 1e-4
    assert distance(lambda w: fedsol(w, 2.0, 3.0, "all", "dim0"), lambda w: fedsol(w, 2.0, 3.0, "all", "layer")) > 1e-4
