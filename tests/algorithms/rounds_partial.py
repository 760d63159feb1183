"""Hand-derived rounds of the methods whose clients keep a part or a model: FedPer, LG-FedAvg, FedBN, Ditto, APFL,
pFedMe, FedALA, FedAS.

The first two need a body: h = A x, logits H h (`outputs.TwoLayers`), with the samples of `rounds_personal.FEATURES`,
one step on both. s = ln 2.
"""

from math import exp

from tests.algorithms.outputs import LN2
from tests.algorithms.quadratic import Case, derived
from tests.algorithms.rounds_personal import FEATURES, ONE_EACH

A = LN2 / 4


@derived
def fedper() -> Case:
    """Client 0's head is (a, 0; -a, 0), a = s/4: at h = (2, 0) the logits differ by 4 a = s, p = (2/3, 1/3). Of both
    its samples p - onehot = (-1/3, 1/3): by A it is H^T of that, (-2a/3, 0), by H ∓(2/3, 0). A = (2 + a/3, 0), H =
    ±(a + 1/3). Client 1's head is x⁰'s, 0: A gets no gradient, H = (½, 0; -½, 0). The body's mean is 2 + a/6; x's head
    stays 0.
    """
    return Case(
        {"name": "fedper"},
        [
            {
                "theta": (2 + A / 6, 0, 0, 0, 0, 0),
                "client.0.own": (A + 1 / 3, 0, -A - 1 / 3, 0),
                "client.1.own": (0.5, 0, -0.5, 0),
            }
        ],
        clients={0: {"own": (A, 0, -A, 0)}},
        **FEATURES,
    )


@derived
def lg_fedavg() -> Case:
    """x has H = (a, 0; -a, 0), a = s/4. Client 0's own body (4, 0): logits differ by 8 a = 2 s, p = (4/5, 1/5),
    A = 4 + ½ · 2a/5, H = ±(a + ½ · 4/5). Client 1's is x⁰'s, (2, 0): p of the true class 2/3 for both samples, which
    push alike: A = 2 + ½ · 2a/3, H = ±(a + ½ · 2/3). The head's mean is a + (2/5 + 1/3)/2; x's body stays.
    """
    return Case(
        {"name": "lg-fedavg"},
        [
            {
                "theta": (2, 0, A + 11 / 30, 0, -A - 11 / 30, 0),
                "client.0.own": (4 + A / 5, 0),
                "client.1.own": (2 + A / 3, 0),
            }
        ],
        clients={0: {"own": (4, 0)}},
        theta=(2, 0, A, 0, -A, 0),
        **FEATURES,
    )


@derived
def fedbn() -> Case:
    """H = (a, -a), a = s/2, γ = 1, β = 0; n(x) = ±1 in both clients, so logits differ by ±s.

    Client 0, x = 1, -1, labels 0, 1: p - onehot = ±(-1/3, 1/3), by h ∓2a/3: γ = 1 + a/3, β = 0, H = ±(a + 1/6).
    Client 1, x = 3, 1, both of label 0: p - onehot = (-1/3, 1/3), (-2/3, 2/3), by h -2a/3, -4a/3: by γ a/3, by β -a:
    γ = 1 - a/6, β = a/2; by H ±(-1/3 + 2/3)/2: H = ±(a - 1/12). The mean of H is a + 1/24; x's γ and β stay.
    Running means 0.1 · 0 and 0.1 · 2; running variances 0.9 + 0.1 · 2 (unbiased) in both.
    """
    a = LN2 / 2
    return Case(
        {"name": "fedbn"},
        [
            {
                "theta": (1, 0, a + 1 / 24, -a - 1 / 24),
                "client.0.own": (1 + a / 3, 0),
                "client.0.own_buffers": (0, 1.1),
                "client.1.own": (1 - a / 6, a / 2),
                "client.1.own_buffers": (0.2, 1.1),
            }
        ],
        model={"name": "tests.algorithms.outputs:Normed", "weights": [a, -a]},
        samples=[[(1,), (-1,)], [(3,), (1,)]],
        labels=[[0, 1], [0, 0]],
        training={"batch_size": "full"},
    )


@derived
def ditto() -> Case:
    """x is FedAvg's, the mean of (-1.5, 2) and (2.5, -0.25). λ = 1, received x = 0. Client 0, v = (2, 2): g0 + v
    = (5, 0) + (2, 2), v = (2, 2) - ½ (7, 2). Client 1, v = 0: v = -½ (-4, 3) = (2, -1.5); g1' + v = (-1, -2.5)
    + (2, -1.5), v = (2, -1.5) - ½ (1, -4).
    """
    return Case(
        {"name": "ditto", "lam": 1.0},
        [{"theta": (0.5, 0.875), "client.0.v": (-1.5, 1), "client.1.v": (1.5, 0.5)}],
        clients={0: {"v": (2, 2)}},
    )


@derived
def apfl() -> Case:
    """x as in `ditto`. a = ½. Client 0, v = (1, 2), y = 0: g = g0(½, 1) = (3.5, -2); v = (1, 2) - ½ · ½ g;
    <v - y, g> = 3.5 - 4, a = ½ + ½ · ½. Client 1, v = 0 = y: g1(0) = (-4, 3), v = (1, -0.75), a stays; then y
    = (2, -1.5), the mixture is (1.5, -1.125): g1' = (-1.5, -2.125), v = (1, -0.75) - ¼ g1', <(-1, 0.75), g1'> =
    -0.09375, a = ½ + ½ · 0.09375.
    """
    return Case(
        {"name": "apfl", "adaptive": True},
        [
            {
                "theta": (0.5, 0.875),
                "client.0.v": (0.125, 2.5),
                "client.0.alpha": 0.75,
                "client.1.v": (1.375, -0.21875),
                "client.1.alpha": 0.546875,
            }
        ],
        clients={0: {"v": (1, 2), "alpha": 0.5}},
    )


@derived
def apfl_logits() -> Case:
    """The logits differ by 40 + f, so their mixture's loss is 40 + a f(v) + (1 - a) f(y): by v it is a g(v), by a it is
    f(v) - f(y). x as in `ditto`. Client 0, a = ¼, v = (1, 2), y = 0: g0(v) = (4, 0), v = (1, 2) - ½ · ¼ (4, 0); f0 = 8
    and 8.5, a = ¼ + ½ · ½. Client 1, a = ½, v = 0 = y: v = (1, -0.75), a stays; then y = (2, -1.5): g1'(v) =
    (-2, -1.75), v = (1, -0.75) - ¼ g1'; f1' = 3.53125 and 3.625, a = ½ + ½ · 0.09375.
    """
    return Case(
        {"name": "apfl", "adaptive": True, "mix": "logits"},
        [
            {
                "theta": (0.5, 0.875),
                "client.0.v": (0.5, 2),
                "client.0.alpha": 0.5,
                "client.1.v": (1.5, -0.3125),
                "client.1.alpha": 0.546875,
            }
        ],
        clients={0: {"v": (1, 2), "alpha": 0.25}},
    )


@derived
def pfedme() -> Case:
    """λ = 2, R = 2, a = ¼. Client 0: θ = -¼ (3, -4) = (-0.75, 1); g0(θ) + 2 θ = (2.25, -2) + (-1.5, 2), θ = (-0.9375,
    1); q = -2 θ, y = θ. Client 1: θ = -¼ (-4, 3) = (1, -0.75); g1(θ) + 2 θ = (-2, 2.25) + (2, -1.5), θ = (1, -0.9375)
    = y. Then on g1' from there: (-2, -1.9375), θ = (1.5, -0.453125); (-1.5, -1.453125) + 2 (0.5, 0.484375), θ =
    (1.625, -0.33203125); η λ = 1, so y = θ.
    """
    return Case(
        {"name": "pfedme", "lam": 2.0, "inner_steps": 2, "inner_lr": 0.25},
        [
            {
                "theta": (0.34375, 0.333984375),
                "client.0.personal": (-0.9375, 1),
                "client.1.personal": (1.625, -0.33203125),
            }
        ],
    )


@derived
def fedala() -> Case:
    """a = 1/16, one pass, all samples. Client 0, o = (2, 2), x - o = (-2, -2), W = 1: at x g0 = (3, -4), W - (-6, 8)/16
    = (1.375, ½), clipped to (1, ½); the mix is (0, 1); g0 = (3, -2): y = (-1.5, 2).
    Client 1 has learnt before: o = (4, 4), W = (½, ½), mix (2, 2), g1 = (0, 5), W - (0, -20)/16 = (½, 1.75), clipped to
    (½, 1): mix (2, 0); g1 = (0, 3): y = (2, -1.5). u_i = y_i - 0.
    """
    return Case(
        {"name": "fedala", "weight_lr": 0.0625, "share": 1.0, "start_epochs": 1},
        [
            {
                "theta": (0.25, 0.25),
                "client.0.old": (-1.5, 2),
                "client.0.w": (1, 0.5),
                "client.1.old": (2, -1.5),
                "client.1.w": (0.5, 1),
            }
        ],
        samples=ONE_EACH,
        clients={0: {"old": (2, 2)}, 1: {"old": (4, 4), "w": (0.5, 0.5)}},
    )


@derived
def fedas() -> Case:
    """a = ¼. Client 0's last body is (4, 0), so μ_0 = (4, 0): by A 2/2 (2 - 4, 0), A = 2 + ½. Its head is x⁰'s, 0: no
    class gradient reaches A, by H ∓½ (2.5, 0): H = ±(0.625, 0). Then logits differ by 3.125; with q = 1/(1 + e^3.125)
    by H ∓2.5 q, by A -1.25 q: F_0 = (12.5 + 1.5625) q². Client 1 was never active: its μ are those of A = (2, 0), which
    stays; H = ±(½, 0), logits differ by ±2, q = 1/(1 + e²), by H ∓2 q, by A -q: F_1 = 9 q².
    """
    first, second = 14.0625 / (1 + exp(3.125)) ** 2, 9 / (1 + exp(2)) ** 2
    return Case(
        {"name": "fedas", "align_lr": 0.25},
        [
            {
                "theta": ((2.5 * first + 2 * second) / (first + second), 0, 0, 0, 0, 0),
                "client.0.own": (0.625, 0, -0.625, 0),
                "client.0.body": (2.5, 0),
                "client.1.own": (0.5, 0, -0.5, 0),
                "client.1.body": (2, 0),
            }
        ],
        clients={0: {"body": (4, 0)}},
        **FEATURES,
    )
