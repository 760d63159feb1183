"""Hand-derived rounds of the server optimisers, FedExP, FedDisco, FedNova, FedDC, MimeLite and the options of
FedDyn and SCAFFOLD.

FedAvg's updates (`rounds_corrections.fedavg`): u0 = (-1.5, 2), u1 = (2.5, -0.25), U = (0.5, 0.875)."""

from tests.algorithms.quadratic import Case
from tests.algorithms.rounds_corrections import DUALS


def fedavgm() -> Case:
    """β = ½, η_g = ½, from b = (2, -4): b = ½ (2, -4) + ½ (0.5, 0.875) = (1.25, -1.5625) = x."""
    return Case(
        {"name": "fedavgm", "beta": 0.5},
        {"theta": (1.25, -1.5625), "b": (1.25, -1.5625)},
        server={"b": (2, -4)},
        training={"server_lr": 0.5},
    )


ADAPTIVE = {"beta1": 0.5, "beta2": 0.75, "tau": 0.5, "lr": 0.5}


def fedadam() -> Case:
    """β1 = ½, β2 = ¾, τ = lr = ½, from m = (2, -4), v = (1.25, 5.078125).

    U² = (0.25, 0.765625); v = ¾ v + ¼ U² = (0.9375 + 0.0625, 3.80859375 + 0.19140625) = (1, 4);
    m = ½ (2, -4) + ½ (0.5, 0.875) = (1.25, -1.5625); x = ½ m/(√v + ½) = (0.625/1.5, -0.78125/2.5)."""
    return Case(
        {"name": "fedadam", **ADAPTIVE},
        {"theta": (0.625 / 1.5, -0.3125), "m": (1.25, -1.5625), "v": (1, 4)},
        server={"m": (2, -4), "v": (1.25, 5.078125)},
    )


def fedadam_start() -> Case:
    """β1 = 0, β2 = ½, lr = 1, τ = ½: v starts at τ² = ¼: v = (0.25, 0.5078125), x = U/(√v + ½)
    = (0.5/1, 0.875/1.2126096)."""
    return Case(
        {"name": "fedadam", "beta1": 0, "beta2": 0.5, "tau": 0.5, "lr": 1},
        {"theta": (0.5, 0.7215843), "v": (0.25, 0.5078125)},
    )


def fedadam_start_zero() -> Case:
    """The same from v = 0: v = (0.125, 0.3828125), x = (0.5/0.8535534, 0.875/1.1187184)."""
    return Case(
        {"name": "fedadam", "beta1": 0, "beta2": 0.5, "tau": 0.5, "lr": 1, "start": "zero"},
        {"theta": (0.5857864, 0.7821450), "v": (0.125, 0.3828125)},
    )


def fedyogi() -> Case:
    """As `fedadam`, from v = (1.0625, 0.05859375): the first entry is above U² and falls by ¼ U², the second, below,
    rises by it: v = (1.0625 - 0.0625, 0.05859375 + 0.19140625) = (1, 0.25). x = ½ m/(√v + ½) = (0.625/1.5, -0.78125/1).
    """
    return Case(
        {"name": "fedyogi", **ADAPTIVE},
        {"theta": (0.625 / 1.5, -0.78125), "m": (1.25, -1.5625), "v": (1, 0.25)},
        server={"m": (2, -4), "v": (1.0625, 0.05859375)},
    )


def fedacg() -> Case:
    """λ = ½, β = 1, from b = (2, -4): all start at x~ = (1, -2). Client 0: q = g0(x~) = (4, -8), u0 = (-2, 4).
    Client 1: g1(x~) = (-2, 1), y = (2, -2.5); q = (-1, -3.5) + (y - x~) = (0, -4), y = (2, -0.5), u1 = (1, 1.5).
    b = ½ (2, -4) + (-0.5, 2.75) = (0.5, 0.75); x = b, which is the mean of y_0 = (-1, 2) and y_1."""
    return Case(
        {"name": "fedacg", "lam": 0.5, "beta": 1.0}, {"theta": (0.5, 0.75), "b": (0.5, 0.75)}, server={"b": (2, -4)}
    )


def fednova() -> Case:
    """a = K = (1, 2), τ = 1.5; mean of u_i/a_i = ½ ((-1.5, 2) + (1.25, -0.125)) = (-0.125, 0.9375)."""
    return Case({"name": "fednova"}, {"theta": (-0.1875, 1.40625)})


def fednova_by_samples() -> Case:
    """π = (1, 2)/3: τ = 5/3, Σ π u_i/a_i = ((-1.5, 2) + 2 (1.25, -0.125))/3 = (1, 1.75)/3; η_g = ½."""
    return Case(
        {"name": "fednova"}, {"theta": (2.5 / 9, 4.375 / 9)}, training={"aggregation": "samples", "server_lr": 0.5}
    )


def fednova_momentum() -> Case:
    """m = ½. Client 1: v = (-4, 3), y = (2, -1.5); v = ½ (-4, 3) + (-1, -2.5) = (-3, -1), u1 = (3.5, -1).
    a_1 = 1 + (½ + 1) = 2.5, a_0 = 1, τ = 1.75; ½ ((-1.5, 2) + (1.4, -0.4)) = (-0.05, 0.8)."""
    return Case({"name": "fednova"}, {"theta": (-0.0875, 1.4)}, training={"momentum": 0.5})


def fednova_proximal() -> Case:
    """μ = 1, ημ = ½. u1 = (1.5, 0.5) as in `rounds_corrections.fedprox`; a_1 = (1 - ½) 1 + 1 = 1.5, τ = 1.25;
    ½ ((-1.5, 2) + (1, 1/3)) = (-0.25, 3.5/3)."""
    return Case({"name": "fednova", "mu": 1.0}, {"theta": (-0.3125, 4.375 / 3)})


def mimelite() -> Case:
    """β = ½, from m = (2, -4). Client 0: q = (3, -4) + (1, -2), u0 = (-2, 3).
    Client 1: q = (-4, 3) + (1, -2) = (-3, 1), y = (1.5, -0.5);
    q = (-1.5, -1.5) + (1, -2) = (-0.5, -3.5), u1 = (1.75, 1.25).
    Full gradients at x = 0: (3, -4) and ½ ((-4, 3) + (-3, -1)) = (-3.5, 1); m = ½ (2, -4) + (-0.25, -1.5)."""
    return Case({"name": "mimelite", "beta": 0.5}, {"theta": (-0.125, 2.125), "m": (0.75, -3.5)}, server={"m": (2, -4)})


VARIATES = {0: {**DUALS[0], "c": (1, -1)}, 1: {**DUALS[1], "c": (-3, 2)}}
"""h_0 = (2, -2), h_1 = (-4, 2), c_0 = (1, -1), c_1 = (-3, 2); their means are h = (-1, 0) and c = (-1, 0.5)."""


def feddc() -> Case:
    """α = ½, from VARIATES. Client 0: q = (3, -4) + ½ (2, -2) + (-1, 0.5) - (1, -1) = (2, -3.5), u0 = (-1, 1.75);
    c_0 = (1, -1) - (-1, 0.5) - u0/½ = (4, -5). Client 1: c - c_1 = (2, -1.5);
    q = (-4, 3) + ½ (-4, 2) + (2, -1.5) = (-4, 2.5), y = (2, -1.25);
    q = (-1, -2.25) + ½ (-2, 0.75) + (2, -1.5) = (0, -3.375), u1 = (2, 0.4375);
    c_1 = (-3, 2) - (-1, 0.5) - u1/1 = (-4, 1.0625).
    h_i = h_i + u_i, h their mean (-0.5, 1.09375), x = U + h; c = mean c_i = (0, -1.96875)."""
    return Case(
        {"name": "feddc", "alpha": 0.5},
        {
            "theta": (0, 2.1875),
            "h": (-0.5, 1.09375),
            "c": (0, -1.96875),
            "0.h": (1, -0.25),
            "1.h": (-2, 2.4375),
            "0.c": (4, -5),
            "1.c": (-4, 1.0625),
        },
        server={"h": (-1, 0), "c": (-1, 0.5)},
        clients=VARIATES,
    )


def feddc_by_samples() -> Case:
    """n = (1, 2), N = 2: w = (2/3, 4/3), α_i = α/w_i = (¾, ⅜), c/w_i = (-1.5, 0.75) and (-0.75, 0.375).
    Client 0: q = (3, -4) + ¾ (2, -2) + (-1.5, 0.75) - (1, -1) = (2, -3.75), u0 = (-1, 1.875);
    Δc_0 = -(-1.5, 0.75) - u0/½ = (3.5, -4.5). Client 1: c/w - c_1 = (2.25, -1.625);
    q = (-4, 3) + ⅜ (-4, 2) + (2.25, -1.625) = (-3.25, 2.125), y = (1.625, -1.0625);
    q = (-1.375, -2.0625) + ⅜ (-2.375, 0.9375) + (2.25, -1.625) = (-0.015625, -3.3359375),
    u1 = (1.6328125, 0.60546875), Δc_1 = (0.75, -0.375) - u1 = (-0.8828125, -0.98046875).
    c = (-1, 0.5) + ½ (⅔ Δc_0 + 4/3 Δc_1); h = (-1, 0) + U, U = (0.31640625, 1.240234375) (uniform), x = U + h."""
    return Case(
        {"name": "feddc@forms", "alpha": 0.5, "scaling": "samples"},
        {
            "theta": (-0.3671875, 2.48046875),
            "h": (-0.68359375, 1.240234375),
            "c": (-1 + 1.734375 / 3, 0.5 - 6.4609375 / 3),
            "0.c": (4.5, -5.5),
            "1.c": (-3.8828125, 1.01953125),
        },
        server={"h": (-1, 0), "c": (-1, 0.5)},
        clients=VARIATES,
    )


def feddyn_by_samples() -> Case:
    """α = ½, α_i = (¾, ⅜) as in `feddc_by_samples`, duals as there. u0 = -½ ((3, -4) + ¾ (2, -2)) = (-2.25, 2.75).
    Client 1: q = (-4, 3) + ⅜ (-4, 2) = (-5.5, 3.75), y = (2.75, -1.875);
    q = (-0.25, -2.875) + ⅜ (-1.25, 0.125) = (-0.71875, -2.828125), u1 = (3.109375, -0.4609375)."""
    return Case(
        {"name": "feddyn@forms", "alpha": 0.5, "scaling": "samples"},
        {"theta": (-0.140625, 2.2890625), "h": (-0.5703125, 1.14453125)},
        server={"h": (-1, 0)},
        clients=DUALS,
    )


def scaffold_effective_steps() -> Case:
    """m = ½, so u1 = (3.5, -1) and a_1 = 2.5 as in `fednova_momentum`: c_1 = -u1/(2.5 · ½) = (-2.8, 0.8),
    c_0 = (3, -4). Counting steps it would be -u1/(2 · ½)."""
    return Case(
        {"name": "scaffold@forms", "divisor": "effective"},
        {"theta": (1, 0.5), "0.c": (3, -4), "1.c": (-2.8, 0.8), "c": (0.1, -1.6)},
        training={"momentum": 0.5},
    )


def fedexp() -> Case:
    """U = (0.5, 0.875), ||U||² = 1.015625; the mean of ||u||² is (6.25 + 6.3125)/2 = 6.28125. With ε = 0.484375 the
    factor is 6.28125/(2 · 1.5) = 2.09375, x = 2.09375 U."""
    return Case({"name": "fedexp", "epsilon": 0.484375}, {"theta": (1.046875, 1.83203125)})


def fedexp_over_the_cohort() -> Case:
    """As `fedexp`, M = 2: with ε = 0.2421875 the same."""
    return Case({"name": "fedexp", "epsilon": 0.2421875, "epsilon_scale": "cohort"}, {"theta": (1.046875, 1.83203125)})


def feddisco() -> Case:
    """Both clients hold label 0 alone, of two classes: d = ½ + ½ in l1. p = (1/3, 2/3); with a = 1/6, b = ½
    p - a d + b = (2/3, 1), π = (2/5, 3/5): x = (2 u0 + 3 u1)/5 = (0.9, 0.65)."""
    return Case({"name": "feddisco", "a": 1 / 6, "b": 0.5, "metric": "l1"}, {"theta": (0.9, 0.65)})
