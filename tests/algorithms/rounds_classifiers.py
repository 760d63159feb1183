"""Hand-derived rounds of the methods about classifiers: FedRS, FedLC, LA-only, FedGE, FedGELA, FedRod, FedBABU, FedRep.

As in `rounds_outputs.py`: with logits (a, b, c) ln 2 the probabilities are (2^a, 2^b, 2^c) over their sum, the gradient
of cross-entropy by the logits is p - onehot, and `SOFTMAX` has the clients (x = -1, label 2) and (x = 1 twice, labels 1
and 0) at logits 0. In two classes FedGELA is FedGE: Φ_0 + Φ_1 = 2 and opposite class vectors leave z_0 - z_1 alone."""

from math import exp, sqrt

from tests.algorithms.quadratic import LN2, Case
from tests.algorithms.rounds_outputs import softmax


def miss(margin: float) -> float:
    """1 - p of the true class, of two classes, if its logit is ahead by `margin`."""
    return 1 / (1 + exp(margin))


def fedrs() -> Case:
    """α = ½, η = 12 ln 2. Client 0 has class 2 alone, a = (½, ½, 1): by W -(1/6, 1/6, -2/3), u0 = (2, 2, -8) ln 2.
    Client 1, a = (1, 1, ½): by W (1/3, -2/3, 1/6), y = (-4, 8, -2) ln 2. a y = (-4, 8, -1) ln 2, p = (1, 4096, 8)/4105,
    q = a (p - onehot) = (-4104, 4096, 4)/4105, u1 = y - 12 ln 2 q."""
    u1 = [y - 12 * q / 4105 for y, q in zip((-4, 8, -2), (-4104, 4096, 4), strict=True)]
    twice = [a + b for a, b in zip((2, 2, -8), u1, strict=True)]
    return softmax({"name": "fedrs", "alpha": 0.5}, twice, 2, lr=12)


def fedrs_soft() -> Case:
    """α = ½, one step on the whole shard, η = 1. Client 0 (x = 1; labels 0, 1, 1): a = (½ + ½ ½, 1, ½), p = 1/3:
    p - shares = (0, -1/3, 1/3), q = (0, -1/3, 1/6). Client 1 (x = 1, label 2), a = (½, ½, 1): q = (1/6, 1/6, -2/3).
    Round 2, client 0: W = -(1/12, -1/12, -¼), a W = (-1/16, 1/12, 1/8): p of these, q = a (p - (1/3, 2/3, 0))."""
    a, w = (0.75, 1, 0.5), (-1 / 12, 1 / 12, 1 / 4)
    e = [exp(s * v) for s, v in zip(a, w, strict=True)]
    x = [v - s * (z / sum(e) - f) for v, s, z, f in zip(w, a, e, (1 / 3, 2 / 3, 0), strict=True)]
    return Case(
        {"name": "fedrs", "alpha": 0.5, "soft": True},
        {"theta": w},
        {"theta": x},
        classes=3,
        model={"name": "tests.algorithms.quadratic:Softmax"},
        samples=[[(1,)] * 3, [(1,)]],
        labels=[[0, 1, 1], [2]],
        training={"lr": 1.0, "batch_size": "full"},
        cohorts=[[0, 1], [0]],
    )


def fedlc() -> Case:
    """τ = 2 ln 2, η = 1, one step on the whole shard. Client 0: x = 1 with label 0 once and label 1 sixteen times, so
    τ n^(-1/4) = (2, 1, ∞) ln 2 and p = (¼, ½, 0)/(3/4) = (1/3, 2/3, 0); less the shares (1, 16, 0)/17: (14, -14, 0)/51.
    Client 1: (-1, label 0) and (1, label 2), equal counts: p = (½, 0, ½), by W ½ [-(-½, 0, ½) + (½, 0, -½)] =
    (½, 0, -½). x = -½ of the sum."""
    return Case(
        {"name": "fedlc", "tau": 2 * LN2},
        {"theta": (-(14 / 51 + 0.5) / 2, 7 / 51, 0.25)},
        classes=3,
        model={"name": "tests.algorithms.quadratic:Softmax"},
        samples=[[(1,)] * 17, [(-1,), (1,)]],
        labels=[[0, *[1] * 16], [0, 2]],
        training={"lr": 1.0, "batch_size": "full"},
    )


def fedavg_la() -> Case:
    """η = (4/3) ln 2. Client 0, Φ = (0, 0, 3): by W -Φ (1/3, 1/3, -2/3) = (0, 0, 2), u0 = η (0, 0, -2).
    Client 1, Φ = (3/2, 3/2, 0): by W (½, -1, 0), y = η (-½, 1, 0), Φ y = (-1, 2, 0) ln 2, p = (1, 8, 2)/11,
    q = Φ (-10, 8, 2)/11 = (-15, 12, 0)/11; u1 = η (-½ + 15/11, 1 - 12/11, 0) = η (19/22, -1/11, 0)."""
    return softmax({"name": "fedavg-la"}, (19 / 22, -1 / 11, -2), 1.5, lr=4 / 3)


def fedge() -> Case:
    """√E_W = 6, W = (6, 0; -6, 0), η = ½; A = (0, 2), so h = (0, 2) x, of length 2, and z = 0.
    Client 0, x = 1, label 0: by h/||h|| W'(-½, ½) = (-6, 0), by h that less its part along h, over ||h||: (-3, 0).
    y = (1.5, 2). Client 1, x = -1, label 1: by h (3, 0), by A (-3, 0), y = (1.5, 2). x = 1, label 0: ||h|| = 2.5,
    h/||h|| = (0.6, 0.8), z = (3.6, -3.6), s = 1/(1 + e^7.2); by h/||h|| W'(-s, s) = (-12 s, 0); its part along h is
    -7.2 s (0.6, 0.8), the rest over 2.5 (-3.072, 2.304) s. u1 = (1.5 + 1.536 s, -1.152 s). W stays."""
    s = miss(7.2)
    return Case(
        {"name": "fedge", "scale_w": 36.0},
        {"theta": (1.5 + 0.768 * s, 2 - 0.576 * s, 6, 0, -6, 0)},
        theta=(0, 2, 6, 0, -6, 0),
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[0], [2]]},
        samples=[[(1,)], [(-1,), (1,)]],
        labels=[[0], [1, 0]],
    )


def fedgela() -> Case:
    """E_W = 6: the class vectors are (2, -1, -1) and so on. A = (1, 1, 1), so W h = 0 whatever x, and ||h|| = √3; no
    class vector has a part along h. η = √3/4, one step on the whole shard; by A: x W'Φ (p - onehot)/√3.
    Client 0, (1, label 0), Φ = (3, 0, 0): Φ (p - onehot) = (-2, 0, 0), u0 = ¼ · 2 (2, -1, -1) = (1, -½, -½).
    Client 1, (-1, label 1) and (1, label 0), Φ = (3/2, 3/2, 0): the mean of -(½, -1, 0) and (-1, ½, 0) is (-¾, ¾, 0),
    by W' (-9/4, 9/4, 0), u1 = (9/16, -9/16, 0)."""
    w = (2, -1, -1, -1, 2, -1, -1, -1, 2)
    return Case(
        {"name": "fedgela", "scale_w": 6.0},
        {"theta": (1 + 25 / 32, 1 - 17 / 32, 0.75, *w)},
        classes=3,
        theta=(1, 1, 1, *w),
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[1], [1], [1]], "classes": 3},
        samples=[[(1,)], [(-1,), (1,)]],
        labels=[[0], [1, 0]],
        training={"lr": sqrt(3) / 4, "batch_size": "full"},
    )


def fedrod() -> Case:
    """η = ½, one step on the whole shard; A = (2, 0), so h = (2, 0) x; H = 0; second heads (weights, bias) at 0.
    Client 0: x = 1 with label 0 three times, x = -1 with label 1: z + log n = (ln 3, 0), p = (¾, ¼); Σ x (p - onehot)/4
    = (3 (-¼) - ¾)/4 = -3/8 for class 0, times (2, 0): H = (3/8, 0; -3/8, 0). Its own loss has p = ½: for class 0
    Σ x (p - onehot)/4 = -½, Σ (p - onehot)/4 = -¼, P = (½, 0, 1/8) and its negative.
    Client 1: (-1, label 1) and (1, label 0): p = ½ in both losses, Σ x (p - onehot)/2 = -½: H = (½, 0; -½, 0), P the
    same with bias 0. At H = 0 no loss moves A. x: H = (7/16, 0; -7/16, 0).
    Round 2, client 1: z_0 - z_1 = 2 · 7/8 x, s = 1/(1 + e^1.75): H += (s, 0) for class 0, by A Σ x H'(p - onehot)/2 =
    -7/8 s, so A = 2 + 7/16 s. Own: 2 (7/8 + 1) x, r = 1/(1 + e^3.75): P += (r, 0, 0), which A does not see."""
    s, r = miss(1.75), miss(3.75)
    h = 7 / 16 + s
    return Case(
        {"name": "fedrod"},
        {
            "theta": (2, 0, 7 / 16, 0, -7 / 16, 0),
            "0.head": ((0.5, 0, 0.125), (-0.5, 0, -0.125)),
            "1.head": ((0.5, 0, 0), (-0.5, 0, 0)),
        },
        {"theta": (2 + 7 / 16 * s, 0, h, 0, -h, 0), "1.head": ((0.5 + r, 0, 0), (-0.5 - r, 0, 0))},
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
        training={"batch_size": "full"},
        samples=[[(1,), (1,), (1,), (-1,)], [(-1,), (1,)]],
        labels=[[0, 0, 0, 1], [1, 0]],
        cohorts=[[0, 1], [1]],
    )


def fedbabu() -> Case:
    """η = ½; A = (2, 0), H = (1, 0; -1, 0) for good. Client 0, x = 1, label 0: z = (2, -2), s = 1/(1 + e^4), by A
    H'(-s, s) = (-2 s, 0), y = 2 + s. Client 1, x = -1, label 1: the same; then x = 1, label 0: r = 1/(1 + e^{4 + 2s}),
    y = 2 + s + r."""
    s = miss(4)
    r = miss(4 + 2 * s)
    return Case(
        {"name": "fedbabu"},
        {"theta": (2 + s + r / 2, 0, 1, 0, -1, 0)},
        theta=(2, 0, 1, 0, -1, 0),
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
        samples=[[(1,)], [(-1,), (1,)]],
        labels=[[0], [1, 0]],
    )


def fedrep() -> Case:
    """η = ½, two epochs: the head's, the body's; A = (2, 0), own heads H = 0. Client 0, x = 1, label 0, h = (2, 0):
    H = (½, 0; -½, 0); then z = (1, -1), s = 1/(1 + e²), by A H'(-s, s) = (-s, 0), A = 2 + s/2.
    Client 1, x = 2, label 0, h = (4, 0): H = (1, 0; -1, 0); z = (4, -4), r = 1/(1 + e^8), by A 2 (-2 r, 0), A = 2 + 2r.
    x: A = a = 2 + s/4 + r, and the head of the start, which nobody uses.
    Round 2, client 0 with its own H: z_0 - z_1 = a, H = (k, 0; -k, 0) with k = ½ + ½ a/(1 + e^a); then z_0 - z_1 =
    2 k a, A = a + k/(1 + e^{2ka})."""
    s, r = miss(2), miss(8)
    a = 2 + s / 4 + r
    k = 0.5 + 0.5 * a * miss(a)
    return Case(
        {"name": "fedrep"},
        {"theta": (a, 0, 0, 0, 0, 0), "0.own": (0.5, 0, -0.5, 0), "1.own": (1, 0, -1, 0)},
        {"theta": (a + k * miss(2 * k * a), 0, 0, 0, 0, 0), "0.own": (k, 0, -k, 0)},
        model={"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
        samples=[[(1,)], [(2,)]],
        labels=[[0], [0]],
        training={"local_epochs": 2},
        cohorts=[[0, 1], [0]],
    )
