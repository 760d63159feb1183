"""Hand-derived rounds of Local-only, PerFedAvg, kNN-Per, FedProto, FedGen, and of the methods whose clients keep a part
or a model: FedPer, LG-FedAvg, FedBN, Ditto, APFL, pFedMe, FedALA, FedAS.

PerFedAvg's clients have one sample each, so that every batch drawn is that sample. kNN-Per, FedProto and FedGen need
features: h = A x, logits H h with H = 0 at first (`TwoLayers`), so that p = ½ and cross-entropy does not move A in a
first step. FedPer and LG-FedAvg have the same model and the samples of `FEATURES`, one step on both. s = ln 2."""

from math import exp
from typing import Any

from tests.algorithms.quadratic import LN2, Case
from tests.algorithms.rounds_outputs import softmax

ONE_EACH = [((1, 2, -3, 2),), ((2, 1, 2, -3),)]

FEATURES: dict[str, Any] = {
    "model": {"name": "tests.algorithms.quadratic:TwoLayers", "body": [[2], [0]]},
    "training": {"batch_size": "full"},
    "samples": [[(1,), (1,)], [(-1,), (1,)]],
    "labels": [[0, 0], [1, 0]],
}
"""Client 0: x = 1 with label 0, twice; client 1: x = -1 with label 1, x = 1 with label 0; one step each.

h = (2, 0), (2, 0) and (-2, 0), (2, 0). For both clients the mean of (p - onehot) h^T is (-½, ½)^T (2, 0) = (-1, 0; 1,
0): η = ½ takes H to (½, 0; -½, 0)."""


def local_only() -> Case:
    """Nothing is averaged: x stays 0. Client 0: -½ (3, -4) = (-1.5, 2); g0 there is (1.5, 0), so (-2.25, 2).
    Client 1: (2, -1.5), then g1' = (-1, -2.5): (2.5, -0.25). Its second round: g1 = (1, 2.75): (2, -1.625); g1' = (-1,
    -2.625): (2.5, -0.3125)."""
    return Case(
        {"name": "local-only"},
        {"theta": (0, 0), "0.own": (-1.5, 2), "1.own": (2.5, -0.25)},
        {"theta": (0, 0), "0.own": (-2.25, 2), "1.own": (2.5, -0.3125)},
    )


def perfedavg() -> Case:
    """a = ¼. Client 0: y' = -¼ (3, -4) = (-0.75, 1), g0(y') = (2.25, -2), u0 = (-1.125, 1).
    Client 1: y' = -¼ (-4, 3) = (1, -0.75), g1(y') = (-2, 2.25), u1 = (1, -1.125)."""
    return Case({"name": "perfedavg", "inner_lr": 0.25}, {"theta": (-0.0625, -0.0625)}, samples=ONE_EACH)


def perfedavg_hessian_free() -> Case:
    """v as in `perfedavg`; on a quadratic the difference is exact, q = (1 - a A) v with the curvatures A.
    Client 0, A = (1, 2): (0.75 · 2.25, 0.5 · -2) = (1.6875, -1); client 1, A = (2, 1): (-1, 1.6875).
    x = -½ (0.6875, 0.6875)/2."""
    return Case(
        {"name": "perfedavg", "inner_lr": 0.25, "hessian_free": True, "delta": 0.5},
        {"theta": (-0.171875, -0.171875)},
        samples=ONE_EACH,
    )


def knnper() -> Case:
    """Trained as FedAvg is: H = (½, 0; -½, 0)."""
    return Case({"name": "knnper"}, {"theta": (2, 0, 0.5, 0, -0.5, 0)}, **FEATURES)


PROTOTYPES = {"prototypes": [(0, 1), (7, 7)], "known": (1, 0)}
"""P_0 = (0, 1); of class 1 none is known yet."""


def fedproto() -> Case:
    """λ = 3, n = d = 2: by each h of class 0 it is 2 · ¾ (h - P) = 1.5 (2, -1) = (3, -1.5), by A that times x = 1.
    Client 0 has two such samples: A = (2, 0) - ½ (6, -3) = (-1, 1.5). Client 1 has one, and nothing for x = -1, whose
    class has no prototype: A = (0.5, 0.75). Its means: class 0 (0.5, 0.75), class 1 (-0.5, -0.75).
    P_0 = ((-1, 1.5) + (0.5, 0.75))/2, P_1 = client 1's."""
    return Case(
        {"name": "fedproto", "lam": 3.0},
        {
            "theta": (2, 0, 0, 0, 0, 0),
            "0.own": (-1, 1.5, 0.5, 0, -0.5, 0),
            "1.own": (0.5, 0.75, 0.5, 0, -0.5, 0),
            "prototypes": [(-0.25, 1.125), (-0.5, -0.75)],
            "known": (1, 1),
        },
        server=PROTOTYPES,
        **FEATURES,
    )


def fedproto_by_samples() -> Case:
    """As `fedproto`, but P_0 = (2 (-1, 1.5) + (0.5, 0.75))/3."""
    return Case(
        {"name": "fedproto", "lam": 3.0, "average": "samples"},
        {"prototypes": [(-0.5, 1.25), (-0.5, -0.75)]},
        server=PROTOTYPES,
        **FEATURES,
    )


def fedproto_of_running_features() -> Case:
    """As `fedproto`, but the features are those of the only epoch, before its step: (2, 0) for class 0, (-2, 0) for 1.
    The second round's client 0 alone: class 1 keeps its prototype. P_0 = (2, 0) pulls its h = (-1, 1.5) back, and the
    features met are (-1, 1.5)."""
    return Case(
        {"name": "fedproto", "lam": 3.0, "prototypes": "running"},
        {"prototypes": [(2, 0), (-2, 0)], "known": (1, 1)},
        {"prototypes": [(-1, 1.5), (-2, 0)], "known": (1, 1)},
        server=PROTOTYPES,
        cohorts=[[0, 1], [0]],
        **FEATURES,
    )


def generator(inner: tuple[float, ...], outer: tuple[float, ...], bias: tuple[float, ...]) -> dict[str, Any]:
    """A state of the server whose G has one hidden unit: weights (0 for the noise, then per class), outer weights."""
    flat = (0, *inner, 0, 1, 0, *outer, *bias)
    return {"generator": flat, "m": [0.0] * len(flat), "v": [0.0] * len(flat), "mean": [0.0], "var": [1 - 1e-5]}


SMALL = {"name": "fedgen", "hidden": 1, "noise": 1, "batch": 2, "steps": 1}


def fedgen() -> Case:
    """a = 4, b = 0; hidden unit 0 and 2 for the two classes: G(0) = (1, -1), G(1) = (1, -1) + 2 (-1, 1) = -G(0).
    At H = 0 (p - onehot) G^T is (-½, ½)^T (1, -1) for either label. n_G/n = 1, a = 4: (-2, 2; 2, -2), with the real
    samples' (-1, 0; 1, 0) q = (-3, 2; 3, -2), for both clients."""
    return Case(
        {**SMALL, "alpha": 4.0, "beta": 0.0},
        {"theta": (2, 0, 1.5, -1, -1.5, 1)},
        server=generator((0, 2), (-1, 1), (1, -1)),
        **FEATURES,
    )


def fedgen_distillation() -> Case:
    """a = 0, b = 17, η = 6 ln 2, the features are the inputs; G(0) = -½, G(1) = G(2) = 0. At logits 0 the target equals
    p: u0 = (2, 2, -4) ln 2, client 1's first step y = (-2, 4, -2) ln 2, as in `fedntd`. Then p = (1, 64, 1)/66; target
    softmax(-½ y) = (2, ¼, 2)/4.25 = (8, 1, 8)/17; 17 (p - target) = (-511, 1022, -511)/66; with p - onehot = (-65, 64,
    1)/66: q = (-576, 1086, -510)/66. u1 = ((-22, 44, -22) - (-576, 1086, -510)) ln 2/11 = (554, -1042, 488) ln 2/11.
    x = ((22, 22, -44) + (554, -1042, 488)) ln 2/22."""
    state = generator((1, 0, 0), (-0.5,), (0,))
    return softmax({**SMALL, "alpha": 0.0, "beta": 17.0}, (576, -1020, 444), 22, lr=6, server=state)


A = LN2 / 4


def fedper() -> Case:
    """Client 0's head is (a, 0; -a, 0), a = s/4: at h = (2, 0) the logits differ by 4 a = s, p = (2/3, 1/3). Of both
    its samples p - onehot = (-1/3, 1/3): by A it is H^T of that, (-2a/3, 0), by H ∓(2/3, 0). A = (2 + a/3, 0), H =
    ±(a + 1/3). Client 1's head is x⁰'s, 0: A gets no gradient, H = (½, 0; -½, 0). The body's mean is 2 + a/6; x's head
    stays 0."""
    return Case(
        {"name": "fedper"},
        {"theta": (2 + A / 6, 0, 0, 0, 0, 0), "0.own": (A + 1 / 3, 0, -A - 1 / 3, 0), "1.own": (0.5, 0, -0.5, 0)},
        clients={0: {"own": (A, 0, -A, 0)}},
        **FEATURES,
    )


def lg_fedavg() -> Case:
    """x has H = (a, 0; -a, 0), a = s/4. Client 0's own body (4, 0): logits differ by 8 a = 2 s, p = (4/5, 1/5),
    A = 4 + ½ · 2a/5, H = ±(a + ½ · 4/5). Client 1's is x⁰'s, (2, 0): p of the true class 2/3 for both samples, which
    push alike: A = 2 + ½ · 2a/3, H = ±(a + ½ · 2/3). The head's mean is a + (2/5 + 1/3)/2; x's body stays."""
    return Case(
        {"name": "lg-fedavg"},
        {"theta": (2, 0, A + 11 / 30, 0, -A - 11 / 30, 0), "0.own": (4 + A / 5, 0), "1.own": (2 + A / 3, 0)},
        clients={0: {"own": (4, 0)}},
        theta=(2, 0, A, 0, -A, 0),
        **FEATURES,
    )


def fedbn() -> Case:
    """H = (a, -a), a = s/2, γ = 1, β = 0; n(x) = ±1 in both clients, so logits differ by ±s.

    Client 0, x = 1, -1, labels 0, 1: p - onehot = ±(-1/3, 1/3), by h ∓2a/3: γ = 1 + a/3, β = 0, H = ±(a + 1/6).
    Client 1, x = 3, 1, both of label 0: p - onehot = (-1/3, 1/3), (-2/3, 2/3), by h -2a/3, -4a/3: by γ a/3, by β -a:
    γ = 1 - a/6, β = a/2; by H ±(-1/3 + 2/3)/2: H = ±(a - 1/12). The mean of H is a + 1/24; x's γ and β stay.
    Running means 0.1 · 0 and 0.1 · 2; running variances 0.9 + 0.1 · 2 (unbiased) in both."""
    a = LN2 / 2
    return Case(
        {"name": "fedbn"},
        {
            "theta": (1, 0, a + 1 / 24, -a - 1 / 24),
            "0.own": (1 + a / 3, 0),
            "0.own_buffers": (0, 1.1),
            "1.own": (1 - a / 6, a / 2),
            "1.own_buffers": (0.2, 1.1),
        },
        model={"name": "tests.algorithms.quadratic:Normed", "weights": [a, -a]},
        samples=[[(1,), (-1,)], [(3,), (1,)]],
        labels=[[0, 1], [0, 0]],
        training={"batch_size": "full"},
    )


def ditto() -> Case:
    """x is FedAvg's, the mean of (-1.5, 2) and (2.5, -0.25). λ = 1, received x = 0. Client 0, v = (2, 2): g0 + v
    = (5, 0) + (2, 2), v = (2, 2) - ½ (7, 2). Client 1, v = 0: v = -½ (-4, 3) = (2, -1.5); g1' + v = (-1, -2.5)
    + (2, -1.5), v = (2, -1.5) - ½ (1, -4)."""
    return Case(
        {"name": "ditto", "lam": 1.0},
        {"theta": (0.5, 0.875), "0.v": (-1.5, 1), "1.v": (1.5, 0.5)},
        clients={0: {"v": (2, 2)}},
    )


def apfl() -> Case:
    """x as in `ditto`. a = ½. Client 0, v = (1, 2), y = 0: g = g0(½, 1) = (3.5, -2); v = (1, 2) - ½ · ½ g;
    <v - y, g> = 3.5 - 4, a = ½ + ½ · ½. Client 1, v = 0 = y: g1(0) = (-4, 3), v = (1, -0.75), a stays; then y
    = (2, -1.5), the mixture is (1.5, -1.125): g1' = (-1.5, -2.125), v = (1, -0.75) - ¼ g1', <(-1, 0.75), g1'> =
    -0.09375, a = ½ + ½ · 0.09375."""
    return Case(
        {"name": "apfl", "adaptive": True},
        {"theta": (0.5, 0.875), "0.v": (0.125, 2.5), "0.alpha": 0.75, "1.v": (1.375, -0.21875), "1.alpha": 0.546875},
        clients={0: {"v": (1, 2), "alpha": 0.5}},
    )


def apfl_logits() -> Case:
    """The logits differ by 40 + f, so their mixture's loss is 40 + a f(v) + (1 - a) f(y): by v it is a g(v), by a it is
    f(v) - f(y). x as in `ditto`. Client 0, a = ¼, v = (1, 2), y = 0: g0(v) = (4, 0), v = (1, 2) - ½ · ¼ (4, 0); f0 = 8
    and 8.5, a = ¼ + ½ · ½. Client 1, a = ½, v = 0 = y: v = (1, -0.75), a stays; then y = (2, -1.5): g1'(v) =
    (-2, -1.75), v = (1, -0.75) - ¼ g1'; f1' = 3.53125 and 3.625, a = ½ + ½ · 0.09375."""
    return Case(
        {"name": "apfl", "adaptive": True, "mix": "logits"},
        {"theta": (0.5, 0.875), "0.v": (0.5, 2), "0.alpha": 0.5, "1.v": (1.5, -0.3125), "1.alpha": 0.546875},
        clients={0: {"v": (1, 2), "alpha": 0.25}},
    )


def pfedme() -> Case:
    """λ = 2, R = 2, a = ¼. Client 0: θ = -¼ (3, -4) = (-0.75, 1); g0(θ) + 2 θ = (2.25, -2) + (-1.5, 2), θ = (-0.9375,
    1); q = -2 θ, y = θ. Client 1: θ = -¼ (-4, 3) = (1, -0.75); g1(θ) + 2 θ = (-2, 2.25) + (2, -1.5), θ = (1, -0.9375)
    = y. Then on g1' from there: (-2, -1.9375), θ = (1.5, -0.453125); (-1.5, -1.453125) + 2 (0.5, 0.484375), θ =
    (1.625, -0.33203125); η λ = 1, so y = θ."""
    return Case(
        {"name": "pfedme", "lam": 2.0, "inner_steps": 2, "inner_lr": 0.25},
        {"theta": (0.34375, 0.333984375), "0.personal": (-0.9375, 1), "1.personal": (1.625, -0.33203125)},
    )


def fedala() -> Case:
    """a = 1/16, one pass, all samples. Client 0, o = (2, 2), x - o = (-2, -2), W = 1: at x g0 = (3, -4), W - (-6, 8)/16
    = (1.375, ½), clipped to (1, ½); the mix is (0, 1); g0 = (3, -2): y = (-1.5, 2).
    Client 1 has learnt before: o = (4, 4), W = (½, ½), mix (2, 2), g1 = (0, 5), W - (0, -20)/16 = (½, 1.75), clipped to
    (½, 1): mix (2, 0); g1 = (0, 3): y = (2, -1.5). u_i = y_i - 0."""
    return Case(
        {"name": "fedala", "weight_lr": 0.0625, "share": 1.0, "start_epochs": 1},
        {"theta": (0.25, 0.25), "0.old": (-1.5, 2), "0.w": (1, 0.5), "1.old": (2, -1.5), "1.w": (0.5, 1)},
        samples=ONE_EACH,
        clients={0: {"old": (2, 2)}, 1: {"old": (4, 4), "w": (0.5, 0.5)}},
    )


def fedas() -> Case:
    """a = ¼. Client 0's last body is (4, 0), so μ_0 = (4, 0): by A 2/2 (2 - 4, 0), A = 2 + ½. Its head is x⁰'s, 0: no
    class gradient reaches A, by H ∓½ (2.5, 0): H = ±(0.625, 0). Then logits differ by 3.125; with q = 1/(1 + e^3.125)
    by H ∓2.5 q, by A -1.25 q: F_0 = (12.5 + 1.5625) q². Client 1 was never active: its μ are those of A = (2, 0), which
    stays; H = ±(½, 0), logits differ by ±2, q = 1/(1 + e²), by H ∓2 q, by A -q: F_1 = 9 q²."""
    first, second = 14.0625 / (1 + exp(3.125)) ** 2, 9 / (1 + exp(2)) ** 2
    return Case(
        {"name": "fedas", "align_lr": 0.25},
        {
            "theta": ((2.5 * first + 2 * second) / (first + second), 0, 0, 0, 0, 0),
            "0.own": (0.625, 0, -0.625, 0),
            "0.body": (2.5, 0),
            "1.own": (0.5, 0, -0.5, 0),
            "1.body": (2, 0),
        },
        clients={0: {"body": (4, 0)}},
        **FEATURES,
    )
