"""Hand-derived rounds of FedNTD, FedAvg with KL, MOON and FedRCL.

With logits (a, b, c) ln 2 the probabilities are (2^a, 2^b, 2^c) over their sum; the gradient of cross-entropy by the
logits is p - onehot, of KL(softmax(t/τ) || softmax(z/τ)) it is (softmax(z/τ) - softmax(t/τ))/τ.

In `SOFTMAX` clients start from logits 0, p = (1/3, 1/3, 1/3): client 0 has the input -1 with label 2, so its gradient
by W is -(1/3, 1/3, -2/3); client 1 the input 1 twice, first with label 1, then with label 0.
"""

from math import exp, log
from typing import Any

from tests.algorithms.outputs import LN2, times_ln2
from tests.algorithms.quadratic import Case, derived

SOFTMAX: dict[str, Any] = {
    "model": "tests.algorithms.outputs:Softmax",
    "samples": [[(-1,)], [(1,), (1,)]],
    "labels": [[2], [1, 0]],
    "classes": 3,
}


@derived
def fedntd() -> Case:
    """β = 3, τ = 2, η = 6 ln 2. At x no distillation: u0 = η (1/3, 1/3, -2/3) = (2, 2, -4) ln 2.
    Client 1: y = -η (1/3, -2/3, 1/3) = (-2, 4, -2) ln 2. p = (1, 64, 1)/66, p - onehot = (-65, 64, 1)/66.
    Without class 0: z/τ = (2, -1) ln 2, softmax (8, 1)/9, the target's (1, 1)/2, difference (7, -7)/18; times β τ²/τ =
    6: (154, -154)/66. q = (-65, 218, -153)/66, u1 = y - η q = ((-22, 44, -22) - (-65, 218, -153)) ln 2/11
    = (43, -174, 131) ln 2/11. x = (u0 + u1)/2 = ((22, 22, -44) + (43, -174, 131)) ln 2/22.
    """
    return Case(
        {"name": "fedntd", "beta": 3.0, "tau": 2.0},
        [{"theta": times_ln2((65, -152, 87), 22)}],
        training={"lr": 6 * LN2},
        **SOFTMAX,
    )


@derived
def fedavg_kl() -> Case:
    """w = 3, τ = 2, η = 6 ln 2: u0 and y = (-2, 4, -2) ln 2 as in `fedntd`. softmax(y/2) = (1, 8, 1)/10, minus 1/3:
    (-7, 14, -7)/30, times w/τ: (-0.35, 0.7, -0.35). q = (-65, 64, 1)/66 + that;
    u1 = ((-2, 4, -2) - (-65, 64, 1)/11 + (2.1, -4.2, 2.1)) ln 2 = (661, -662, 1) ln 2/110.
    x = ((220, 220, -440) + (661, -662, 1)) ln 2/220.
    """
    return Case(
        {"name": "fedavg-kl", "weight": 3.0, "tau": 2.0},
        [{"theta": times_ln2((881, -442, -439), 220)}],
        training={"lr": 6 * LN2},
        **SOFTMAX,
    )


@derived
def moon() -> Case:
    """μ = 8, τ = 1/ln 3, η = ½; A = (2, 0), so h = (2, 0) x; logits 0, p = ½.
    Client 0, x = 1, label 0; its previous A was (0, 3): cos(h, h_p) - cos(h, h_g) = 0 - 1, softplus' = 1/(1 + 3) = ¼,
    and the difference has the gradient (0, ½) by h: μ ¼ (1/τ) (0, ½) = (0, ln 3). By H: (-½, ½) times h.
    u0 = -½ (0, ln 3; -1, 0; 1, 0).
    Client 1, never active: previous = initial, no contrast. x = -1, label 1, h = (-2, 0): by H (½, -½) h = (-1, 0; 1,
    0), y: A = (2, 0), H = (½, 0; -½, 0). x = 1, label 0, still h = h_g = h_p: logits (1, -1), p = (1 - s, s) with
    s = 1/(1 + e²); by H (-s, s) h = (-2s, 0; 2s, 0), by h H'(-s, s) = (-s, 0).
    u1 = (s/2, 0; ½ + s, 0; -½ - s, 0).
    """
    s = 1 / (1 + exp(2))
    a, b = 0.5 * log(3), 0.5 + s
    return Case(
        {"name": "moon", "mu": 8.0, "tau": 1 / log(3)},
        [
            {
                "theta": (2 + s / 4, -a / 2, (0.5 + b) / 2, 0, -(0.5 + b) / 2, 0),
                "client.0.previous": (2, -a, 0.5, 0, -0.5, 0),
                "client.1.previous": (2 + s / 2, 0, b, 0, -b, 0),
            }
        ],
        clients={0: {"previous": (0, 3, 0, 0, 0, 0)}},
        model={"name": "tests.algorithms.outputs:TwoLayers", "body": [[2], [0]]},
        samples=[[(1,)], [(-1,), (1,)]],
        labels=[[0], [1, 0]],
    )


@derived
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
    Client 1: one sample, class 1, (2, -1): alone, nothing to compare with; by H ½ (2, -1) and its negative.
    """
    k = 5 * LN2 / 3
    g12, g13, g23 = -17 / 45, 58 / 441, 146 / 147
    y1, x2, y2, x3 = 0.8 * g12 + g13, 0.64 * g12 - 0.48 * g23, -0.48 * g12 + 0.36 * g23, g13 + 0.6 * g23
    by_a = (0.6 * x2, 0.8 * x2 + x3, y1 + 0.6 * y2, 0.8 * y2)
    a = [start - 0.25 * k * d for start, d in zip((1, 0, 0, 1), by_a, strict=True)]
    h = (-0.25 * (-0.8 / 3 + 1), -0.25 * (0.1 / 3 - 0.5))
    return Case(
        {"name": "fedrcl", "tau": 0.2 / LN2, "threshold": 0.5},
        [{"theta": (*a, *h, -h[0], -h[1])}],
        training={"batch_size": "full"},
        model={"name": "tests.algorithms.outputs:TwoLayers", "body": [[1, 0], [0, 1]]},
        samples=[[(1, 0), (0.6, 0.8), (0, 1)], [(2, -1)]],
        labels=[[0, 0, 1], [1]],
    )
