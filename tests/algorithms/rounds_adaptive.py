"""Hand-derived rounds of methods on local optimisers, signs, features and Adagrad.

`ONE`: a single client with one sample, g(y) = y - (-3, 4), so g(0) = (3, -4) of norm 5; one step a round, η = ½."""

from typing import Any

from fedray.algorithms.local_optimizers import NEWTON_SCHULZ
from tests.algorithms.quadratic import LN2, Case, times_ln2
from tests.algorithms.rounds_outputs import SOFTMAX

ONE: dict[str, Any] = {"samples": [[(1, 1, -3, 4)]]}
SIZE = 1.0
"""Length of the turned matrix (1, 2): its singular value is 1, mapped five times."""
for _ in range(5):
    SIZE = NEWTON_SCHULZ[0] * SIZE + NEWTON_SCHULZ[1] * SIZE**3 + NEWTON_SCHULZ[2] * SIZE**5


def local_adamw() -> Case:
    """The first corrected moments are g and g²: d = (1, -1), x = -½ d."""
    return Case({"name": "local-adamw"}, {"theta": (-0.5, 0.5)}, **ONE)


def local_muon() -> Case:
    """The parameters are a matrix (1, 2): O = SIZE (0.6, -0.8), x = -½ O."""
    return Case({"name": "local-muon"}, {"theta": (-0.3 * SIZE, 0.4 * SIZE)}, **ONE)


def fedadamw() -> Case:
    """α = ½, β = (0, ½), ε = 0. First: v = g²/2, over ½ it is g²: x = (-0.5, 0.5), D = U/η = (-1, 1), v̄ = (4.5 + 8)/2.
    Second: g = (2.5, -3.5), v = (v̄ + g²)/2 = (6.25, 9.25) over 1 - ½² = ¾; d = (2.5/√(25/3), -3.5/√(37/3)) - ½ D."""
    d = (2.5 / (25 / 3) ** 0.5 + 0.5, -3.5 / (37 / 3) ** 0.5 - 0.5)
    return Case(
        {"name": "fedadamw", "beta1": 0.0, "beta2": 0.5, "eps": 0},
        {"theta": (-0.5, 0.5), "v": (6.25,), "delta": (-1, 1), "steps": 1},
        {"theta": (-0.5 - d[0] / 2, 0.5 - d[1] / 2), "v": (7.75,), "steps": 2},
        **ONE,
    )


def fedlada() -> Case:
    """a = ½, β = (0, 0). First: v^ = g², d = ½ (1, -1), x = (-0.25, 0.25), Δ = (0.5, -0.5). Second: g = (2.75, -3.75),
    whose squares are below v̄ = (9, 16): d = ½ (2.75/3, -3.75/4) + ½ Δ."""
    d = (2.75 / 6 + 0.25, -3.75 / 8 - 0.25)
    return Case(
        {"name": "fedlada", "alpha": 0.5, "beta1": 0.0, "beta2": 0.0},
        {"theta": (-0.25, 0.25), "v": (9, 16), "delta": (0.5, -0.5)},
        {"theta": (-0.25 - d[0] / 2, 0.25 - d[1] / 2), "v": (9, 16)},
        **ONE,
    )


def fedmuon() -> Case:
    """γ = ½, β = 0, all along r = SIZE (0.6, -0.8). First: x = -½ · ½ r, D = -½ r. Second: d = ½ r - ½ D = ¾ r,
    x = -(¼ + 3/8) r."""
    return Case(
        {"name": "fedmuon", "momentum": 0.0},
        {"theta": (-0.15 * SIZE, 0.2 * SIZE), "momentum": (3, -4)},
        {"theta": (-0.375 * SIZE, 0.5 * SIZE)},
        **ONE,
    )


def fedgmt() -> Case:
    """γ = ¾, τ = 2: the KL term counts γ τ² = 3 times, e = x⁰ and H = 0, so U is `rounds_outputs.fedavg_kl`'s. All
    clients took part: the mean of H is U, x = 2 U, and with a = ½ e = U."""
    u = times_ln2((881, -442, -439), 220)
    return Case(
        {"name": "fedgmt", "gamma": 0.75, "tau": 2.0, "alpha": 0.5},
        {"theta": [2 * v for v in u], "h": u, "e": u},
        training={"lr": 6 * LN2},
        **SOFTMAX,
    )


ALONE: dict[str, Any] = {
    "model": {"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
    "samples": [[(1,)]],
    "labels": [[0]],
}


def feduv() -> Case:
    """One sample, so no term: h = (2, 0), p = ½, the head moves by ½ (½, -½) times h, the body by H' (..) = 0."""
    return Case({"name": "feduv"}, {"theta": (2, 0, 0.5, 0, -0.5, 0)}, **ALONE)


def feddecorr() -> Case:
    """As `feduv`."""
    return Case({"name": "feddecorr"}, {"theta": (2, 0, 0.5, 0, -0.5, 0)}, **ALONE)


def fedadagrad() -> Case:
    """lr = 1, β1 = τ = ½, from v = 0. First: U = (-1.5, 2), m = ½ U, √v = |U|: x = (-0.75/2, 1/2.5).
    Second: g = (2.625, -3.6), U = (-1.3125, 1.8), m = (-1.03125, 1.4), v = (2.25 + 1.3125², 4 + 1.8²)."""
    v = (2.25 + 1.3125**2, 4 + 1.8**2)
    x = (-0.375 - 1.03125 / (v[0] ** 0.5 + 0.5), 0.4 + 1.4 / (v[1] ** 0.5 + 0.5))
    return Case(
        {"name": "fedadagrad", "lr": 1.0, "beta1": 0.5, "tau": 0.5, "start": "zero"},
        {"theta": (-0.375, 0.4), "v": (2.25, 4)},
        {"theta": x, "v": v},
        **ONE,
    )
