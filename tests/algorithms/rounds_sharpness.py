"""Hand-derived rounds of FedASAM, FedGAMMA, FedSpeed, FedSMOO, FedLESAM(-S, -D), FedTOGA's options and FedRobust, and
of FedGloSS, FedSWA, FedMoSWA, FedWMSAM and FedNSAM, whose samples are moved so that norms are 5."""

from math import sqrt

from tests.algorithms.quadratic import Case
from tests.algorithms.rounds_corrections import DUALS, FEDTOGA

FEDTOGA_FORMS = {**FEDTOGA, "name": "fedtoga@forms"}
VARIATES = {0: {"c": (4, 0)}, 1: {"c": (0, -4)}}
CLIENT_0 = [(1, 2, -3, 2)]
FIRST_OF_1 = (2, 1, 2, -3)


def fedasam() -> Case:
    """ρ = 5, η_a = 1, x = (2, -1), so T = |y| + 1 = (3, 2) in both first steps (the parameter is named weight).
    Client 0, b = (1, 0): g = (1, -2), T g = (3, -4), e = ρ T (3, -4)/5 = (9, -8), q = g0(11, -9) = (10, -18),
    u0 = (-5, 9).
    Client 1, b = (4, -9): g = (-4, 8), T g = (-12, 16), e = 5 T (-12, 16)/20 = (-9, 8), q = g1(-7, 7) = (-22, 16),
    y = (13, -9). Now T = (14, 10); b = (10, -3.4): g = (3, -5.6), T g = (42, -56), e = 5 T (42, -56)/70 = (42, -40),
    q = g1'(55, -49) = (45, -45.6), y = (-9.5, 13.8), u1 = (-11.5, 14.8)."""
    return Case(
        {"name": "fedasam", "rho": 5.0, "eta_a": 1.0},
        {"theta": (-6.25, 10.9)},
        start=(2, -1),
        samples=[[(1, 2, 1, 0)], [(2, 1, 4, -9), (1, 1, 10, -3.4)]],
    )


def fedgamma() -> Case:
    """ρ = 5; from c = (2, -2), c0 = (4, 0), c1 = (0, -4). Client 0: e = (3, -4), q = g0(e) + c - c0
    = (6, -12) + (-2, -2), u0 = (-2, 7). K_0 = 1: c0 becomes the perturbed gradient, (6, -12).
    Client 1: e = (-4, 3), q = (-12, 6) + (2, 2), y = (5, -4). Its second sample is moved to b = (2, 0): g1'(y) = (3,
    -4) = e, q = g1'(8, -8) + (2, 2) = (8, -6), u1 = (1, -1). c1 = (0, -4) - (2, -2) - u1/(2 η), the mean of (-12, 6)
    and (6, -8). c = (2, -2) + ½ ((2, -12) + (-3, 3))."""
    return Case(
        {"name": "fedgamma", "rho": 5.0},
        {"theta": (-0.5, 3), "0.c": (6, -12), "1.c": (-3, -1), "c": (1.5, -6.5)},
        samples=[CLIENT_0, [FIRST_OF_1, (1, 1, 2, 0)]],
        server={"c": (2, -2)},
        clients=VARIATES,
    )


def fedspeed() -> Case:
    """ρ = 5, α = ½; H_0 = (2, -2), H_1 = (-4, 2), h = (-1, 0). Client 0: q = g0(3, -4) + ½ H_0 = (7, -13),
    u0 = (-3.5, 6.5). Client 1: q = g1(-4, 3) + ½ H_1 = (-14, 7), y = (7, -3.5). Second sample b = (4, 0.5):
    g1'(y) = (3, -4) = e, q = (6, -8) + ½ ((7, -3.5) + (-4, 2)) = (7.5, -8.75), u1 = (3.25, 0.875).
    H_i = H_i + u_i, h = (-1, 0) + (u0 + u1)/2, x = (u0 + u1)/2 + h."""
    return Case(
        {"name": "fedspeed", "rho": 5.0, "alpha": 0.5},
        {"theta": (-1.25, 7.375), "h": (-1.125, 3.6875), "0.h": (-1.5, 4.5), "1.h": (-0.75, 2.875)},
        samples=[CLIENT_0, [FIRST_OF_1, (1, 1, 4, 0.5)]],
        server={"h": (-1, 0)},
        clients=DUALS,
    )


def fedsmoo() -> Case:
    """ρ = 5, α = ½; duals as in `fedspeed`, s = (1, -1), μ_0 = (-6, -3), μ_1 = (-1, 1).
    Client 0: v = (3, -4) - μ_0 - s = (8, 0), e = (5, 0), μ_0 = μ_0 + e - s = (-2, -2); q = g0(5, 0) + ½ H_0
    = (8, -4) + (1, -1), u0 = (-4.5, 2.5).
    Client 1: v = (-4, 3) - (-1, 1) - s = (-4, 3) = e, μ_1 = (-6, 5); q = (-12, 6) + ½ H_1 = (-14, 7), y = (7, -3.5).
    Second sample b = (6, -15.5): g1'(y) = (1, 12), v = (1, 12) - (-6, 5) - s = (6, 8), e = (3, 4), μ_1 = (-4, 10);
    q = g1'(10, 0.5) + ½ ((7, -3.5) + H_1) = (4, 16) + (1.5, -0.75) = (5.5, 15.25), u1 = (4.25, -11.125).
    s = 5 unit((-2, -2)/2 + (-4, 10)/2) = 5 unit(-3, 4). U = (-0.125, -4.3125), h = (-1, 0) + U, x = U + h."""
    return Case(
        {"name": "fedsmoo", "rho": 5.0, "alpha": 0.5},
        {
            "theta": (-1.25, -8.625),
            "h": (-1.125, -4.3125),
            "s": (-3, 4),
            "0.h": (-2.5, 0.5),
            "1.h": (0.25, -9.125),
            "0.mu": (-2, -2),
            "1.mu": (-4, 10),
        },
        **SMOO,
    )


SMOO = {
    "samples": [CLIENT_0, [FIRST_OF_1, (1, 1, 6, -15.5)]],
    "server": {"h": (-1, 0), "s": (1, -1)},
    "clients": {0: {"h": (2, -2), "mu": (-6, -3)}, 1: {"h": (-4, 2), "mu": (-1, 1)}},
}


def fedsmoo_corrected() -> Case:
    """As `fedsmoo`, but s from μ_i - e_K: ((-2, -2) - (5, 0) + (-4, 10) - (3, 4))/2 = (-7, 2), of norm √53."""
    return Case(
        {"name": "fedsmoo", "rho": 5.0, "alpha": 0.5, "perturbation_dual": "corrected"},
        {"theta": (-1.25, -8.625), "s": (-35 / sqrt(53), 10 / sqrt(53)), "0.mu": (-2, -2)},
        **SMOO,
    )


def fedlesam() -> Case:
    """ρ = 5. Round 0, only client 0, active before at x_old = (6, -8): e = 5 unit(x_old - x) = (3, -4). Its b is
    (-9, 4): q = g0(3, -4) = (12, -16), x = (-6, 8).
    Round 1. Client 0: x_old = (0, 0), e = 5 unit(6, -8) = (3, -4), q = g0(-3, 4) = (6, 0), u0 = (-3, 0).
    Client 1 for the first time, so e = 0: q = g1(-6, 8) = (-16, 11), y = (2, 2.5), q = (-1, 1.5), y = (2.5, 1.75),
    u1 = (8.5, -6.25). x = (-6, 8) + (5.5, -6.25)/2."""
    return Case(
        {"name": "fedlesam", "rho": 5.0},
        {"theta": (-6, 8), "0.x_old": (0, 0)},
        {"theta": (-3.25, 4.875), "0.x_old": (-6, 8), "1.x_old": (-6, 8)},
        samples=[[(1, 2, -9, 4)], [FIRST_OF_1, (1, 1, 3, 1)]],
        cohorts=[[0], [0, 1]],
        clients={0: {"x_old": (6, -8)}},
    )


def fedlesam_server() -> Case:
    """ρ = 5, the server's last change (-6, 8): e = -5 unit(-6, 8) = (3, -4) for all. Client 0: q = g0(e) = (6, -12),
    u0 = (-3, 6). Client 1: q = g1(e) = (2, -1), y = (-1, 0.5); q = g1'(y + e) = (-1, -4.5), u1 = (-0.5, 2.75).
    The change is now (u0 + u1)/2."""
    return Case(
        {"name": "fedlesam@forms", "rho": 5.0, "estimate": "server"},
        {"theta": (-1.75, 4.375), "change": (-1.75, 4.375)},
        server={"change": (-6, 8)},
    )


def fedlesam_s() -> Case:
    """ρ = 5; e0 = 5 unit(6, -8) = (3, -4), e1 = 5 unit(-8, 6) = (-4, 3); variates as in `fedgamma`.
    Client 0: q = (6, -12) + (-2, -2), u0 = (-2, 7), c0 = (6, -12). Client 1: q = (-12, 6) + (2, 2), y = (5, -4); second
    sample b = (2, 0): q = g1'(1, -1) + (2, 2) = (1, 1), u1 = (4.5, -4.5), c1 = (0, -4) - (2, -2) - u1, the mean of
    (-12, 6) and (-1, -1). c = (2, -2) + ½ ((2, -12) + (-6.5, 6.5))."""
    return Case(
        {"name": "fedlesam-s", "rho": 5.0},
        {"theta": (1.25, 1.25), "0.c": (6, -12), "1.c": (-6.5, 2.5), "c": (-0.25, -4.75), "1.x_old": (0, 0)},
        samples=[CLIENT_0, [FIRST_OF_1, (1, 1, 2, 0)]],
        server={"c": (2, -2)},
        clients={i: {**VARIATES[i], **MEMORIES[i]} for i in (0, 1)},
    )


MEMORIES = {0: {"x_old": (6, -8)}, 1: {"x_old": (-8, 6)}}


def fedlesam_d() -> Case:
    """ρ = 5, α = ½; e_i as in `fedlesam_s`, duals as in `fedspeed`. Client 0: q = (6, -12) + (1, -1), u0 = (-3.5, 6.5).
    Client 1: q = (-12, 6) + (-2, 1), y = (7, -3.5); q = g1'(3, -0.5) + ½ (3, -1.5) = (0, -1.5) + (1.5, -0.75),
    u1 = (6.25, -2.375). U = (1.375, 2.0625), h = (-1, 0) + U, x = U + h."""
    return Case(
        {"name": "fedlesam-d", "rho": 5.0, "alpha": 0.5},
        {"theta": (1.75, 4.125), "h": (0.375, 2.0625), "0.h": (-1.5, 4.5), "1.h": (2.25, -0.375), "0.x_old": (0, 0)},
        server={"h": (-1, 0)},
        clients={i: {**DUALS[i], **MEMORIES[i]} for i in (0, 1)},
    )


def fedtoga_as_printed() -> Case:
    """`fedtoga_global`'s client 0 alone (M = 1 of N = 2), Δ divided by η too and h by M: u0 = (-4.125, -1.375),
    h = (-1, 0) + u0/1, x = u0 + h, Δ = -u0/(1 η)."""
    return Case(
        {**FEDTOGA_FORMS, "perturbation": "global", "delta_scale": "gradient", "dual_divisor": "cohort"},
        {"theta": (-9.25, -2.75), "h": (-5.125, -1.375), "delta": (8.25, 2.75), "0.h": (-2.125, -3.375)},
        server={"delta": (0.5, 3.5), "h": (-1, 0)},
        clients=DUALS,
        cohorts=[[0]],
    )


def fedtoga_dual_correction_alone() -> Case:
    """β = ½, Δ = (2, -4), nothing perturbed, no duals. Client 0: q = (3, -4) + ½ Δ = (4, -6), u0 = (-2, 3).
    Client 1: q = (-4, 3) + (1, -2), y = (1.5, -0.5); q = (-1.5, -1.5) + (1, -2), u1 = (1.75, 1.25).
    Δ = -½ (u0 + u1/2)."""
    return Case(
        {**FEDTOGA_FORMS, "sam": False, "dynamic_regularisation": False},
        {"theta": (-0.125, 2.125), "delta": (0.5625, -1.8125)},
        server={"delta": (2, -4)},
    )


def fedrobust() -> Case:
    """η_2 = ½, λ = ¼, a scale and a shift for each of the inputs z = (a, b). By a the loss ½ a (y - b)² has the
    derivative ½ (y - b)², by b -a (y - b); by the shift the same, by the scale z times it. The penalty's, -½ of what
    differs from (1, 0), is 0 in a first step.
    Client 0, z = (1, 2, -3, 2): y - b = (3, -2), by z (4.5, 2, -3, 4): shift ½ of that, scale 1 + ½ (4.5, 4, 9, 8).
    u0 = (-1.5, 2) as in `fedavg`: descent and ascent start from the same point.
    Client 1, z = (2, 1, 2, -3): y - b = (-2, 3), by z (2, 4.5, 4, -3); shift (1, 2.25, 2, -1.5),
    scale 1 + ½ (4, 4.5, 8, 9) = (3, 3.25, 5, 5.5); y = (2, -1.5).
    Second, z = (1, 1, 3, 1) is seen as scale z + shift = (4, 5.5, 17, 4): y - b = (-15, -5.5), q = (-60, -30.25),
    u1 = (32, 13.625); by z (112.5, 15.125, 60, 30.25); shift ¾ (1, 2.25, 2, -1.5) + ½ of that,
    scale 1 + ¾ (2, 2.25, 4, 4.5) + ½ (112.5, 15.125, 180, 30.25).
    Round 1, only client 0, x = (15.25, 7.8125): z is seen as (5.5, 7, -18, 12), y - b = (33.25, -4.1875),
    q = (182.875, -29.3125)."""
    return Case(
        {"name": "fedrobust", "ascent_lr": 0.5, "penalty": 0.25},
        {
            "theta": (15.25, 7.8125),
            "0.affine": ((3.25, 3, 5.5, 5), (2.25, 1, -1.5, 2)),
            "1.affine": ((58.75, 10.25, 94, 19.5), (57, 9.25, 31.5, 14)),
        },
        {"theta": (-76.1875, 22.46875)},
        cohorts=[[0, 1], [0]],
    )


def fedrobust_full() -> Case:
    """Client 0 of `fedrobust` alone, with a whole matrix: by the shift d = (4.5, 2, -3, 4), by Λ its outer product with
    z = (1, 2, -3, 2): row r of [Λ | δ] is that of [I | 0] + ½ d_r (z, 1)."""
    affine = ((3.25, 4.5, -6.75, 4.5, 2.25), (1, 3, -3, 2, 1), (-1.5, -3, 5.5, -3, -1.5), (2, 4, -6, 5, 2))
    return Case(
        {"name": "fedrobust", "ascent_lr": 0.5, "penalty": 0.25, "affine": "full"},
        {"theta": (-1.5, 2), "0.affine": affine},
        cohorts=[[0]],
    )


def fedgloss() -> Case:
    """ρ = ρ_l = 5, α = ½, x = 0, -U_old = (6, -8): x~ = (3, -4). H_0 = (2, -2), H_1 = (-4, 2), h = (-1, 0).
    Client 0, b = 0: g = (3, -4) = e, q = (6, -8) + ½ H_0 = (7, -9), u0 = (-3.5, 4.5). Client 1, b = (5, -7): g = (-4,
    3) = e, at (-1, -1) 2 (-6) and 6: q = (-12, 6) + ½ H_1 = (-14, 7), u1 = (7, -3.5). U = (1.75, 0.5), h = (-1, 0) + U,
    x = 0 + U + h."""
    return Case(
        {"name": "fedgloss", "rho": 5.0, "rho_l": 5.0, "alpha": 0.5},
        {"theta": (2.5, 1), "h": (0.75, 0.5), "ascent": (-1.75, -0.5), "0.h": (-1.5, 2.5), "1.h": (3, -1.5)},
        samples=[[(1, 1, 0, 0)], [(2, 1, 5, -7)]],
        server={"h": (-1, 0), "ascent": (6, -8)},
        clients=DUALS,
    )


def fedswa() -> Case:
    """ρ = ½. K_0 = 1: u0 = (-1.5, 2). Client 1: (2, -1.5), then at the rate ½ (1 - ½ · ½) on g1' = (-1, -2.5):
    u1 = (2.375, -0.5625). α = 2: x = u0 + u1."""
    return Case({"name": "fedswa", "rho": 0.5, "alpha": 2.0}, {"theta": (0.875, 1.4375)})


def fedmoswa() -> Case:
    """ρ = γ = ½, α = 1, m = (2, -2). Client 0: q = (3, -4) + m - c0 = (1, -6), u0 = (-0.5, 3), the round's length is ½:
    c0 = (4, 0) - m - 2 u0 = (3, -4). Client 1: q = (-4, 3) + m - c1 = (-2, 5), y = (1, -2.5); g1' + m - c1 = (0, -1.5)
    at the rate 3/8: u1 = (1, -1.9375); length ½ + 3/8 = 7/8: c1 = (0, -4) - m - 8/7 u1 = (-22, 1.5)/7.
    c - m: (1, -2) and (-36, 15.5)/7, mean (-29, 1.5)/14; m moves by half of it."""
    return Case(
        {"name": "fedmoswa", "rho": 0.5, "alpha": 1.0, "gamma": 0.5},
        {"theta": (0.25, 0.53125), "0.c": (3, -4), "1.c": (-22 / 7, 1.5 / 7), "m": (2 - 29 / 28, -2 + 1.5 / 28)},
        server={"m": (2, -2)},
        clients=VARIATES,
    )


def fedwmsam() -> Case:
    """ρ = 5, α = ½, Δ = (2, -2), c = (1, 0) = c1, c0 = 0. Client 0, its only step: q = ½ ((3, -4) + c) + ½ Δ = (3, -3),
    u0 = (-1.5, 1.5) = -¾ Δ, cosine -1; c0 = -c - 2 u0 = (2, -3).
    Client 1, first b = (2, -2): q = ½ (-4, 2) + ½ Δ = (-1, 0), y = (½, 0); Δ_1 = Δ, d = (1.5, -2), e = (3, -4),
    g1'(3.5, -4) = (0.5, -5), q = (1.25, -3.5), u1 = (-0.125, 1.75); c1 = c1 - c - u1; cosine -3.75/√24.625.
    Δ = -½ (2 u0 + u1), c = (1, 0) + ½ ((2, -3) + (-0.875, -1.75)), α = 0.495 + 0.01 · ½ (0 + 1 - 3.75/√24.625)."""
    return Case(
        {"name": "fedwmsam", "rho": 5.0, "alpha": 0.5},
        {
            "theta": (-0.8125, 1.625),
            "delta": (1.5625, -2.375),
            "c": (1.5625, -2.375),
            "alpha": 0.495 + 0.005 * (1 - 3.75 / sqrt(24.625)),
            "0.c": (2, -3),
            "1.c": (0.125, -1.75),
        },
        samples=[[(1, 2, -3, 2)], [(2, 1, 2, -2), (1, 1, 3, 1)]],
        server={"delta": (2, -2), "c": (1, 0)},
        clients={1: {"c": (1, 0)}},
    )


def fedwmsam_along_the_momentum() -> Case:
    """ρ = 0, no variates, α = ½, Δ = (-1.5, 2). Both clients: g = (3, -4), q = ½ g + ½ Δ = (0.75, -1), u = -½ q = ¼ Δ,
    cosine 1: α = 0.495 + 0.01 · 0.9, for 2 is clipped to 0.9. Δ = q."""
    return Case(
        {"name": "fedwmsam", "rho": 0.0, "alpha": 0.5, "variates": False},
        {"theta": (-0.375, 0.5), "delta": (0.75, -1), "alpha": 0.504},
        samples=[[(1, 1, -3, 4)], [(1, 1, -3, 4)]],
        server={"delta": (-1.5, 2)},
    )


NESTEROV = {"samples": [[(1, 1, -2, 2)], [(2, 1, 3, -5)]]}


def fednsam() -> Case:
    """γ = ½, ρ = 5, m = (2, -4), s = (1, -2). Client 0: g = (3, -4) = e, (6, -8), u0 = (-3, 4). Client 1: g = (-4, 3)
    = e, (-12, 6), u1 = (6, -3). m = (1, -2) + (1.5, 0.5), x = 0 + m."""
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0},
        {"theta": (2.5, -1.5), "m": (2.5, -1.5)},
        server={"m": (2, -4)},
        **NESTEROV,
    )


def fednsam_of_the_momentum() -> Case:
    """γ = ½, ρ = 5, m = (6, -8), s = (3, -4), e = -5 (0.6, -0.8) takes it to 0: g = (2, -2) and (-6, 5), U = (1,
    -0.75); m = (3, -4) + U."""
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0, "perturbation": "momentum"},
        {"theta": (4, -4.75), "m": (4, -4.75)},
        server={"m": (6, -8)},
        **NESTEROV,
    )


def fednsam_of_one_round() -> Case:
    """γ = ½, ρ = 5. First round, m = 0: g = (2, -2) and (-6, 5), U = (1, -0.75) = m = x. Second: e = -5 (0.8, -0.6)
    takes s = 1.5 x to (-2.5, 1.875), g = (-0.5, -0.125) and (-11, 6.875), U = (2.875, -1.6875); m = 1.5 U, x + m."""
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0, "perturbation": "momentum", "memory": "last"},
        {"theta": (1, -0.75), "m": (1, -0.75)},
        {"theta": (5.3125, -3.28125), "m": (4.3125, -2.53125)},
        **NESTEROV,
    )
