"""Hand-derived rounds of FedSOL, its combinations and strategies, and of the projection.

Logits as in `rounds_outputs`, everything else on the quadratic problem, whose parameters are all head.
"""

from math import sqrt
from typing import Any

from tests.algorithms.outputs import LN2, times_ln2
from tests.algorithms.quadratic import Case, derived
from tests.algorithms.rounds_outputs import SOFTMAX


@derived
def fedsol_kl_fixed() -> Case:
    """Λ = 1, ρ = √6 ln 2, η = 3 ln 2. At x ∇L_p = 0 and e = 0: u0 = (1, 1, -2) ln 2; y = (-1, 2, -1) ln 2.
    softmax(y/τ) - 1/3 is along (-1, 2, -1) for every τ, of norm √6: e = (-1, 2, -1) ln 2, y + e = (-2, 4, -2) ln 2,
    q = (-65, 64, 1)/66, u1 = y - η q = ((-22, 44, -22) - (-65, 64, 1)) ln 2/22 = (43, -20, -23) ln 2/22.
    """
    return Case(
        {"name": "fedsol", "rho": sqrt(6) * LN2, "radius": "fixed"},
        [{"theta": times_ln2((65, 2, -67), 44)}],
        training={"lr": 3 * LN2},
        **SOFTMAX,
    )


@derived
def fedsol_kl_adaptive() -> Case:
    """ρ = 6 ln 2, Λ = |y - x| = (1, 2, 1)/√6 (W has one column), otherwise as `fedsol_kl_fixed`: e = 6 ln 2 (1, 2, 1)
    (-1, 2, -1)/6 = (-1, 4, -1) ln 2, y + e = (-2, 6, -2) ln 2, p = (1, 256, 1)/258, q = (-257, 256, 1)/258,
    u1 = ((-86, 172, -86) - (-257, 256, 1)) ln 2/86 = (171, -84, -87) ln 2/86.
    """
    return Case(
        {"name": "fedsol", "rho": 6 * LN2},
        [{"theta": times_ln2((257, 2, -259), 172)}],
        training={"lr": 3 * LN2},
        **SOFTMAX,
    )


@derived
def projection_kl() -> Case:
    """η = 3 ln 2; client 1's labels are 1, 1, 0. y = (-1, 2, -1) ln 2, p = (1, 8, 1)/10, g_p along (-1, 2, -1).
    Label 1: g = (1, -2, 1)/10 points wholly against it, nothing is left, y stays.
    Label 0: g = (-9, 8, 1)/10, <g, g_p> > 0, q = g: u1 = ((-1, 2, -1) + (2.7, -2.4, -0.3)) ln 2.
    x = ((1, 1, -2) + (1.7, -0.4, -1.3)) ln 2/2.
    """
    return Case(
        {"name": "projection"},
        [{"theta": times_ln2((1.35, 0.3, -1.65))}],
        training={"lr": 3 * LN2},
        **{**SOFTMAX, "samples": [[(-1,)], [(1,), (1,), (1,)]], "labels": [[2], [1, 1, 0]]},
    )


FIXED = {"name": "fedsol", "rho": 5.0, "radius": "fixed"}


@derived
def fedsol_with_fedprox() -> Case:
    """ρ = 5 along y - x. First steps as `fedavg`'s. Client 1: y = (2, -1.5), e = 5 unit(y - x) = (4, -3),
    q = g1'(6, -4.5) = (3, -5.5), u1 = (0.5, 1.25).
    """
    return Case({**FIXED, "proximal": {"name": "fedprox", "mu": 0.1}}, [{"theta": (-0.5, 1.625)}])


ADAPTIVE = {"name": "fedsol", "rho": 5.0, "proximal": "fedprox"}
LINE = {"name": "tests.algorithms.quadratic:Line", "start": [0.0, 0.0]}


@derived
def fedsol_adaptive_by_layer() -> Case:
    """As `fedsol_with_fedprox`, where y is the weight and the bias of one layer (equation 7), times Λ = |y - x|/2.5 =
    (0.8, 0.6): e = (3.2, -1.8), q = g1'(5.2, -3.3) = (2.2, -4.3), u1 = (0.9, 0.65).
    """
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "layer"}, [{"theta": (-0.3, 1.325)}], model=LINE)


@derived
def fedsol_adaptive_by_tensor() -> Case:
    """y is one tensor, the weight (1, 2): `fedsol_adaptive_by_layer`'s numbers. (Along the first dimension it has
    columns of one entry: Λ = 1, `fedsol_adaptive_by_column`.)
    """
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "tensor"}, [{"theta": (-0.3, 1.325)}])


@derived
def fedsol_adaptive_by_tensors_of_a_layer() -> Case:
    """Weight and bias, of one entry each, have norm 1 by themselves: Λ = 1, `fedsol_with_fedprox`'s numbers."""
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "tensor"}, [{"theta": (-0.5, 1.625)}], model=LINE)


@derived
def fedsol_adaptive_by_column() -> Case:
    """Λ = 1 where y has moved: `fedsol_with_fedprox`'s numbers."""
    return Case(ADAPTIVE, [{"theta": (-0.5, 1.625)}])


@derived
def fedsol_with_fednova() -> Case:
    """u0 = (-1.5, 2), K_0 = 1, u1 = (0.5, 1.25) of `fedsol_with_fedprox`, K_1 = 2: τ = 1.5, x = τ (u0 + u1/2)/2."""
    return Case({**FIXED, "proximal": "fednova"}, [{"theta": (-0.9375, 1.96875)}])


@derived
def fedsol_with_feddyn() -> Case:
    """ρ = 5 along y - x + H_i, which stays out of q. Client 0, H = (4, -3) = e: q = g0(4, -3) = (7, -10), u0 = (-3.5,
    5). Client 1, H = (-2.625, 3.5): e = (-3, 4), q = g1(-3, 4) = (-10, 7), y = (5, -3.5), y + H = (2.375, 0), e = (5,
    0), q = g1'(10, -3.5) = (7, -4.5), u1 = (1.5, -1.25). H_i = H_i + u_i, h = (0.6875, 0.25) + (u0 + u1)/2, x = U + h.
    """
    return Case(
        {**FIXED, "proximal": {"name": "feddyn", "alpha": 0.5}},
        [{"theta": (-1.3125, 4), "server.h": (-0.3125, 2.125), "client.0.h": (0.5, 2), "client.1.h": (-1.125, 2.25)}],
        server={"h": (0.6875, 0.25)},
        clients={0: {"h": (4, -3)}, 1: {"h": (-2.625, 3.5)}},
    )


@derived
def fedsol_with_scaffold() -> Case:
    """ρ = 5 along c - c_i = (3, -4) and (-3, 4). Client 0: q = g0(3, -4) = (6, -12), u0 = (-3, 6),
    c0 = (-3, 4) - 0 + (6, -12). Client 1: q = g1(-3, 4) = (-10, 7), y = (5, -3.5), q = g1'(2, 0.5) = (-1, -0.5),
    u1 = (5.5, -3.25), c1 = (3, -4) - u1. c = ½ ((6, -12) - u1).
    """
    return Case(
        {**FIXED, "proximal": "scaffold"},
        [{"theta": (1.25, 1.375), "client.0.c": (3, -8), "client.1.c": (-2.5, -0.75), "server.c": (0.25, -4.375)}],
        server={"c": (0, 0)},
        clients={0: {"c": (-3, 4)}, 1: {"c": (3, -4)}},
    )


def strategy(name: str, theta: tuple[float, float], **changes: Any) -> Case:
    """FedSOL's strategies with μ = 2, so that A2 and A6 differ; u0 = (-1.5, 2) wherever e = 0 at x.

    Client 1 at y = (2, -1.5): e = (4, -3), ∇L(y) = (-1, -2.5), ∇L(y + e) = (3, -5.5), ∇L_p(y) = (4, -3),
    ∇L_p(y + e) = (12, -9).
    """
    return Case({**FIXED, "proximal": {"name": "fedprox", "mu": 2.0}, "strategy": name}, [{"theta": theta}], **changes)


@derived
def fedsol_a0() -> Case:
    """`fedavg`."""
    return strategy("A0", (0.5, 0.875))


@derived
def fedsol_a2() -> Case:
    """q = (-1, -2.5) + (12, -9) = (11, -11.5), u1 = (-3.5, 4.25)."""
    return strategy("A2", (-2.5, 3.125))


@derived
def fedsol_a3() -> Case:
    """q = (3, -5.5) + (12, -9) = (15, -14.5), u1 = (-5.5, 5.75)."""
    return strategy("A3", (-3.5, 3.875))


@derived
def fedsol_a4() -> Case:
    """e along ∇L + ∇L_p, at x along ∇L. Client 0: e = (3, -4), q = (6, -12) + 2 e = (12, -20), u0 = (-6, 10).
    Client 1: e = (-4, 3), q = (-12, 6) + 2 e, y = (10, -6). Second sample b = (27, -14): ∇L + ∇L_p = (-17, 8) + (20,
    -12) = (3, -4) = e; at y + e = (13, -10): (-14, 4) + (26, -20) = (12, -16), u1 = (4, 2).
    """
    return strategy("A4", (-1, 6), samples=[[(1, 2, -3, 2)], [(2, 1, 2, -3), (1, 1, 27, -14)]])


@derived
def fedsol_a5() -> Case:
    """q = (-1, -2.5) + (4, -3) = (3, -5.5), u1 = (0.5, 1.25): FedProx."""
    return strategy("A5", (-0.5, 1.625))


@derived
def fedsol_a6() -> Case:
    """q = (3, -5.5) + (4, -3) = (7, -8.5), u1 = (-1.5, 2.75)."""
    return strategy("A6", (-1.5, 2.375))


@derived
def projection_l2() -> Case:
    """Client 0: g_p = 0, q = g. Client 1, y = (2, -1.5) after its first step, moved samples b = (5, -2.5), (1.3, -2.1):
    g = (-3, 1), <g, y - x> = -7.5, ||y - x||² = 6.25, q = (-3, 1) + 1.2 (2, -1.5) = (-0.6, -0.8), y = (2.3, -1.1);
    g = (1, 1), <g, y - x> = 1.2 > 0, q = g, u1 = (1.8, -1.6).
    """
    return Case(
        {"name": "projection", "proximal": "fedprox"},
        [{"theta": (0.15, 0.2)}],
        samples=[[(1, 2, -3, 2)], [(2, 1, 2, -3), (1, 1, 5, -2.5), (1, 1, 1.3, -2.1)]],
    )
