"""Hand-derived rounds of FedNTD, FedAvg with KL, MOON, FedRCL and FedSOL, its combinations, strategies and projection.

With logits (a, b, c) ln 2 the probabilities are (2^a, 2^b, 2^c) over their sum; the gradient of cross-entropy by the
logits is p - onehot, of KL(softmax(t/τ) || softmax(z/τ)) it is (softmax(z/τ) - softmax(t/τ))/τ.

In `SOFTMAX` clients start from logits 0, p = (1/3, 1/3, 1/3): client 0 has the input -1 with label 2, so its gradient
by W is -(1/3, 1/3, -2/3); client 1 the input 1 twice, first with label 1, then with label 0. The rest of FedSOL is on
the quadratic problem, whose parameters are all head."""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Any

from tests.algorithms.quadratic import LN2, Case, times_ln2

SOFTMAX: dict[str, Any] = {
    "model": "tests.algorithms.quadratic:Softmax",
    "samples": [[(-1,)], [(1,), (1,)]],
    "labels": [[2], [1, 0]],
    "classes": 3,
}


def softmax(
    algorithm: Mapping[str, Any], theta: Sequence[float], divisor: float = 1, *, lr: float, **more: Any
) -> Case:
    """A round of `SOFTMAX` at η = lr ln 2, which takes W to theta ln 2 over the divisor."""
    return Case(algorithm, {"theta": times_ln2(theta, divisor)}, training={"lr": lr * LN2}, **{**SOFTMAX, **more})


def fedntd() -> Case:
    """β = 3, τ = 2, η = 6 ln 2. At x no distillation: u0 = η (1/3, 1/3, -2/3) = (2, 2, -4) ln 2.
    Client 1: y = -η (1/3, -2/3, 1/3) = (-2, 4, -2) ln 2. p = (1, 64, 1)/66, p - onehot = (-65, 64, 1)/66.
    Without class 0: z/τ = (2, -1) ln 2, softmax (8, 1)/9, the target's (1, 1)/2, difference (7, -7)/18; times β τ²/τ =
    6: (154, -154)/66. q = (-65, 218, -153)/66, u1 = y - η q = ((-22, 44, -22) - (-65, 218, -153)) ln 2/11
    = (43, -174, 131) ln 2/11. x = (u0 + u1)/2 = ((22, 22, -44) + (43, -174, 131)) ln 2/22."""
    return softmax({"name": "fedntd", "beta": 3.0, "tau": 2.0}, (65, -152, 87), 22, lr=6)


def fedavg_kl() -> Case:
    """w = 3, τ = 2, η = 6 ln 2: u0 and y = (-2, 4, -2) ln 2 as in `fedntd`. softmax(y/2) = (1, 8, 1)/10, minus 1/3:
    (-7, 14, -7)/30, times w/τ: (-0.35, 0.7, -0.35). q = (-65, 64, 1)/66 + that;
    u1 = ((-2, 4, -2) - (-65, 64, 1)/11 + (2.1, -4.2, 2.1)) ln 2 = (661, -662, 1) ln 2/110.
    x = ((220, 220, -440) + (661, -662, 1)) ln 2/220."""
    return softmax({"name": "fedavg-kl", "weight": 3.0, "tau": 2.0}, (881, -442, -439), 220, lr=6)


def moon() -> Case:
    """μ = 8, τ = 1/ln 3, η = ½; A = (2, 0), so h = (2, 0) x; logits 0, p = ½.
    Client 0, x = 1, label 0; its previous A was (0, 3): cos(h, h_p) - cos(h, h_g) = 0 - 1, softplus' = 1/(1 + 3) = ¼,
    and the difference has the gradient (0, ½) by h: μ ¼ (1/τ) (0, ½) = (0, ln 3). By H: (-½, ½) times h.
    u0 = -½ (0, ln 3; -1, 0; 1, 0).
    Client 1, never active: previous = initial, no contrast. x = -1, label 1, h = (-2, 0): by H (½, -½) h = (-1, 0; 1,
    0), y: A = (2, 0), H = (½, 0; -½, 0). x = 1, label 0, still h = h_g = h_p: logits (1, -1), p = (1 - s, s) with
    s = 1/(1 + e²); by H (-s, s) h = (-2s, 0; 2s, 0), by h H'(-s, s) = (-s, 0).
    u1 = (s/2, 0; ½ + s, 0; -½ - s, 0)."""
    s = 1 / (1 + exp(2))
    a, b = 0.5 * log(3), 0.5 + s
    return Case(
        {"name": "moon", "mu": 8.0, "tau": 1 / log(3)},
        {
            "theta": (2 + s / 4, -a / 2, (0.5 + b) / 2, 0, -(0.5 + b) / 2, 0),
            "0.previous": (2, -a, 0.5, 0, -0.5, 0),
            "1.previous": (2 + s / 2, 0, b, 0, -b, 0),
        },
        clients={0: {"previous": (0, 3, 0, 0, 0, 0)}},
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
        samples=[[(1,)], [(-1,), (1,)]],
        labels=[[0], [1, 0]],
    )


def fedrcl() -> Case:
    """τ = 0.2/ln 2, so e^{s/τ} = 2^{5s}; w_s = w_p = 1, threshold ½, η = ½, one step on the whole shard; A = 1, H = 0.
    Client 0: h_1 = (1, 0) and h_2 = (0.6, 0.8) of class 0, h_3 = (0, 1) of class 1; s_12 = 0.6, s_13 = 0, s_23 = 0.8,
    their exponentials 8, 1, 16, and 32 for s = 1. Each derivative below is over 3τ (the mean of three anchors):
    anchor 1, softmax (8, 1)/9: -1/9 by s_12, 1/9 by s_13; anchor 2, (8, 16)/24: -2/3 by s_12, 2/3 by s_23; anchor 3,
    alone, (32, 16, 1)/49: 16/49 by s_23, 1/49 by s_13. The penalty of anchors 1 and 2, s_12 >= ½: sigmoid(-0.4/τ) =
    1/(1 + 4) each by s_12. G_12 = -1/9 - 2/3 + 2/5 = -17/45, G_13 = 1/9 + 1/49 = 58/441, G_23 = 2/3 + 16/49 = 146/147.
    By the features (of norm 1), ∂s_jk/∂h_j = h_k - s h_j: by h_1 G_12 (0, 0.8) + G_13 (0, 1); by h_2 G_12 (0.64, -0.48)
    + G_23 (-0.48, 0.36); by h_3 (G_13 + 0.6 G_23, 0). By A: Σ_j of that times x_j = h_j. By H: (1/3) (-½ h_1 - ½ h_2 +
    ½ h_3) = (-0.8, 0.1)/3 and its negative.
    Client 1: one sample, class 1, (2, -1): alone, nothing to compare with; by H ½ (2, -1) and its negative."""
    k = 5 * LN2 / 3
    g12, g13, g23 = -17 / 45, 58 / 441, 146 / 147
    y1, x2, y2, x3 = 0.8 * g12 + g13, 0.64 * g12 - 0.48 * g23, -0.48 * g12 + 0.36 * g23, g13 + 0.6 * g23
    by_a = (0.6 * x2, 0.8 * x2 + x3, y1 + 0.6 * y2, 0.8 * y2)
    a = [start - 0.25 * k * d for start, d in zip((1, 0, 0, 1), by_a, strict=True)]
    h = (-0.25 * (-0.8 / 3 + 1), -0.25 * (0.1 / 3 - 0.5))
    return Case(
        {"name": "fedrcl", "tau": 0.2 / LN2, "threshold": 0.5},
        {"theta": (*a, *h, -h[0], -h[1])},
        training={"batch_size": "full"},
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[1, 0], [0, 1]]},
        samples=[[(1, 0), (0.6, 0.8), (0, 1)], [(2, -1)]],
        labels=[[0, 0, 1], [1]],
    )


def fedsol_kl_fixed() -> Case:
    """Λ = 1, ρ = √6 ln 2, η = 3 ln 2. At x ∇L_p = 0 and e = 0: u0 = (1, 1, -2) ln 2; y = (-1, 2, -1) ln 2.
    softmax(y/τ) - 1/3 is along (-1, 2, -1) for every τ, of norm √6: e = (-1, 2, -1) ln 2, y + e = (-2, 4, -2) ln 2,
    q = (-65, 64, 1)/66, u1 = y - η q = ((-22, 44, -22) - (-65, 64, 1)) ln 2/22 = (43, -20, -23) ln 2/22."""
    return softmax({"name": "fedsol", "rho": sqrt(6) * LN2, "radius": "fixed"}, (65, 2, -67), 44, lr=3)


def fedsol_kl_adaptive() -> Case:
    """ρ = 6 ln 2, Λ = |y - x| = (1, 2, 1)/√6 (W has one column), otherwise as `fedsol_kl_fixed`: e = 6 ln 2 (1, 2, 1)
    (-1, 2, -1)/6 = (-1, 4, -1) ln 2, y + e = (-2, 6, -2) ln 2, p = (1, 256, 1)/258, q = (-257, 256, 1)/258,
    u1 = ((-86, 172, -86) - (-257, 256, 1)) ln 2/86 = (171, -84, -87) ln 2/86."""
    return softmax({"name": "fedsol", "rho": 6 * LN2}, (257, 2, -259), 172, lr=3)


def projection_kl() -> Case:
    """η = 3 ln 2; client 1's labels are 1, 1, 0. y = (-1, 2, -1) ln 2, p = (1, 8, 1)/10, g_p along (-1, 2, -1).
    Label 1: g = (1, -2, 1)/10 points wholly against it, nothing is left, y stays.
    Label 0: g = (-9, 8, 1)/10, <g, g_p> > 0, q = g: u1 = ((-1, 2, -1) + (2.7, -2.4, -0.3)) ln 2.
    x = ((1, 1, -2) + (1.7, -0.4, -1.3)) ln 2/2."""
    shards = {"samples": [[(-1,)], [(1,), (1,), (1,)]], "labels": [[2], [1, 1, 0]]}
    return softmax({"name": "projection"}, (1.35, 0.3, -1.65), lr=3, **shards)


FIXED = {"name": "fedsol", "rho": 5.0, "radius": "fixed"}


def fedsol_with_fedprox() -> Case:
    """ρ = 5 along y - x. First steps as `fedavg`'s. Client 1: y = (2, -1.5), e = 5 unit(y - x) = (4, -3),
    q = g1'(6, -4.5) = (3, -5.5), u1 = (0.5, 1.25)."""
    return Case({**FIXED, "proximal": {"name": "fedprox", "mu": 0.1}}, {"theta": (-0.5, 1.625)})


ADAPTIVE = {"name": "fedsol", "rho": 5.0, "proximal": "fedprox"}
LINE = {"name": "tests.algorithms.quadratic:Line", "start": [0.0, 0.0]}


def fedsol_adaptive_by_layer() -> Case:
    """As `fedsol_with_fedprox`, where y is the weight and the bias of one layer (equation 7), times Λ = |y - x|/2.5 =
    (0.8, 0.6): e = (3.2, -1.8), q = g1'(5.2, -3.3) = (2.2, -4.3), u1 = (0.9, 0.65)."""
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "layer"}, {"theta": (-0.3, 1.325)}, model=LINE)


def fedsol_adaptive_by_tensor() -> Case:
    """y is one tensor, the weight (1, 2): `fedsol_adaptive_by_layer`'s numbers. (Along the first dimension it has
    columns of one entry: Λ = 1, `fedsol_adaptive_by_column`.)"""
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "tensor"}, {"theta": (-0.3, 1.325)})


def fedsol_adaptive_by_tensors_of_a_layer() -> Case:
    """Weight and bias, of one entry each, have norm 1 by themselves: Λ = 1, `fedsol_with_fedprox`'s numbers."""
    return Case({**ADAPTIVE, "name": "fedsol@forms", "lambda_norm": "tensor"}, {"theta": (-0.5, 1.625)}, model=LINE)


def fedsol_adaptive_by_column() -> Case:
    """Λ = 1 where y has moved: `fedsol_with_fedprox`'s numbers."""
    return Case(ADAPTIVE, {"theta": (-0.5, 1.625)})


def fedsol_with_fednova() -> Case:
    """u0 = (-1.5, 2), K_0 = 1, u1 = (0.5, 1.25) of `fedsol_with_fedprox`, K_1 = 2: τ = 1.5, x = τ (u0 + u1/2)/2."""
    return Case({**FIXED, "proximal": "fednova"}, {"theta": (-0.9375, 1.96875)})


def fedsol_with_feddyn() -> Case:
    """ρ = 5 along y - x + H_i, which stays out of q. Client 0, H = (4, -3) = e: q = g0(4, -3) = (7, -10), u0 = (-3.5,
    5). Client 1, H = (-2.625, 3.5): e = (-3, 4), q = g1(-3, 4) = (-10, 7), y = (5, -3.5), y + H = (2.375, 0), e = (5,
    0), q = g1'(10, -3.5) = (7, -4.5), u1 = (1.5, -1.25). H_i = H_i + u_i, h = (0.6875, 0.25) + (u0 + u1)/2, x = U + h.
    """
    return Case(
        {**FIXED, "proximal": {"name": "feddyn", "alpha": 0.5}},
        {"theta": (-1.3125, 4), "h": (-0.3125, 2.125), "0.h": (0.5, 2), "1.h": (-1.125, 2.25)},
        server={"h": (0.6875, 0.25)},
        clients={0: {"h": (4, -3)}, 1: {"h": (-2.625, 3.5)}},
    )


def fedsol_with_scaffold() -> Case:
    """ρ = 5 along c - c_i = (3, -4) and (-3, 4). Client 0: q = g0(3, -4) = (6, -12), u0 = (-3, 6),
    c0 = (-3, 4) - 0 + (6, -12). Client 1: q = g1(-3, 4) = (-10, 7), y = (5, -3.5), q = g1'(2, 0.5) = (-1, -0.5),
    u1 = (5.5, -3.25), c1 = (3, -4) - u1. c = ½ ((6, -12) - u1)."""
    return Case(
        {**FIXED, "proximal": "scaffold"},
        {"theta": (1.25, 1.375), "0.c": (3, -8), "1.c": (-2.5, -0.75), "c": (0.25, -4.375)},
        server={"c": (0, 0)},
        clients={0: {"c": (-3, 4)}, 1: {"c": (3, -4)}},
    )


def strategy(name: str, theta: tuple[float, float], **changes: Any) -> Case:
    """FedSOL's strategies with μ = 2, so that A2 and A6 differ; u0 = (-1.5, 2) wherever e = 0 at x.

    Client 1 at y = (2, -1.5): e = (4, -3), ∇L(y) = (-1, -2.5), ∇L(y + e) = (3, -5.5), ∇L_p(y) = (4, -3),
    ∇L_p(y + e) = (12, -9)."""
    return Case({**FIXED, "proximal": {"name": "fedprox", "mu": 2.0}, "strategy": name}, {"theta": theta}, **changes)


def fedsol_a0() -> Case:
    """`fedavg`."""
    return strategy("A0", (0.5, 0.875))


def fedsol_a2() -> Case:
    """q = (-1, -2.5) + (12, -9) = (11, -11.5), u1 = (-3.5, 4.25)."""
    return strategy("A2", (-2.5, 3.125))


def fedsol_a3() -> Case:
    """q = (3, -5.5) + (12, -9) = (15, -14.5), u1 = (-5.5, 5.75)."""
    return strategy("A3", (-3.5, 3.875))


def fedsol_a4() -> Case:
    """e along ∇L + ∇L_p, at x along ∇L. Client 0: e = (3, -4), q = (6, -12) + 2 e = (12, -20), u0 = (-6, 10).
    Client 1: e = (-4, 3), q = (-12, 6) + 2 e, y = (10, -6). Second sample b = (27, -14): ∇L + ∇L_p = (-17, 8) + (20,
    -12) = (3, -4) = e; at y + e = (13, -10): (-14, 4) + (26, -20) = (12, -16), u1 = (4, 2)."""
    return strategy("A4", (-1, 6), samples=[[(1, 2, -3, 2)], [(2, 1, 2, -3), (1, 1, 27, -14)]])


def fedsol_a5() -> Case:
    """q = (-1, -2.5) + (4, -3) = (3, -5.5), u1 = (0.5, 1.25): FedProx."""
    return strategy("A5", (-0.5, 1.625))


def fedsol_a6() -> Case:
    """q = (3, -5.5) + (4, -3) = (7, -8.5), u1 = (-1.5, 2.75)."""
    return strategy("A6", (-1.5, 2.375))


def projection_l2() -> Case:
    """Client 0: g_p = 0, q = g. Client 1, y = (2, -1.5) after its first step, moved samples b = (5, -2.5), (1.3, -2.1):
    g = (-3, 1), <g, y - x> = -7.5, ||y - x||² = 6.25, q = (-3, 1) + 1.2 (2, -1.5) = (-0.6, -0.8), y = (2.3, -1.1);
    g = (1, 1), <g, y - x> = 1.2 > 0, q = g, u1 = (1.8, -1.6)."""
    return Case(
        {"name": "projection", "proximal": "fedprox"},
        {"theta": (0.15, 0.2)},
        samples=[[(1, 2, -3, 2)], [(2, 1, 2, -3), (1, 1, 5, -2.5), (1, 1, 1.3, -2.1)]],
    )
