"""Hand-derived rounds of FedGloSS, FedSWA, FedMoSWA, FedWMSAM and FedNSAM; samples are moved so that norms are 5."""

from math import sqrt

from tests.algorithms.quadratic import Case, derived
from tests.algorithms.rounds_corrections import DUALS

VARIATES = {0: {"c": (4, 0)}, 1: {"c": (0, -4)}}


@derived
def fedgloss() -> Case:
    """ρ = ρ_l = 5, α = ½, x = 0, -U_old = (6, -8): x~ = (3, -4). H_0 = (2, -2), H_1 = (-4, 2), h = (-1, 0).
    Client 0, b = 0: g = (3, -4) = e, q = (6, -8) + ½ H_0 = (7, -9), u0 = (-3.5, 4.5). Client 1, b = (5, -7): g = (-4,
    3) = e, at (-1, -1) 2 (-6) and 6: q = (-12, 6) + ½ H_1 = (-14, 7), u1 = (7, -3.5). U = (1.75, 0.5), h = (-1, 0) + U,
    x = 0 + U + h.
    """
    return Case(
        {"name": "fedgloss", "rho": 5.0, "rho_l": 5.0, "alpha": 0.5},
        [
            {
                "theta": (2.5, 1),
                "server.h": (0.75, 0.5),
                "server.ascent": (-1.75, -0.5),
                "client.0.h": (-1.5, 2.5),
                "client.1.h": (3, -1.5),
            }
        ],
        samples=[[(1, 1, 0, 0)], [(2, 1, 5, -7)]],
        server={"h": (-1, 0), "ascent": (6, -8)},
        clients=DUALS,
    )


@derived
def fedswa() -> Case:
    """ρ = ½. K_0 = 1: u0 = (-1.5, 2). Client 1: (2, -1.5), then at the rate ½ (1 - ½ · ½) on g1' = (-1, -2.5):
    u1 = (2.375, -0.5625). α = 2: x = u0 + u1.
    """
    return Case({"name": "fedswa", "rho": 0.5, "alpha": 2.0}, [{"theta": (0.875, 1.4375)}])


@derived
def fedmoswa() -> Case:
    """ρ = γ = ½, α = 1, m = (2, -2). Client 0: q = (3, -4) + m - c0 = (1, -6), u0 = (-0.5, 3), the round's length is ½:
    c0 = (4, 0) - m - 2 u0 = (3, -4). Client 1: q = (-4, 3) + m - c1 = (-2, 5), y = (1, -2.5); g1' + m - c1 = (0, -1.5)
    at the rate 3/8: u1 = (1, -1.9375); length ½ + 3/8 = 7/8: c1 = (0, -4) - m - 8/7 u1 = (-22, 1.5)/7.
    c - m: (1, -2) and (-36, 15.5)/7, mean (-29, 1.5)/14; m moves by half of it.
    """
    return Case(
        {"name": "fedmoswa", "rho": 0.5, "alpha": 1.0, "gamma": 0.5},
        [
            {
                "theta": (0.25, 0.53125),
                "client.0.c": (3, -4),
                "client.1.c": (-22 / 7, 1.5 / 7),
                "server.m": (2 - 29 / 28, -2 + 1.5 / 28),
            }
        ],
        server={"m": (2, -2)},
        clients=VARIATES,
    )


@derived
def fedwmsam() -> Case:
    """ρ = 5, α = ½, Δ = (2, -2), c = (1, 0) = c1, c0 = 0. Client 0, its only step: q = ½ ((3, -4) + c) + ½ Δ = (3, -3),
    u0 = (-1.5, 1.5) = -¾ Δ, cosine -1; c0 = -c - 2 u0 = (2, -3).
    Client 1, first b = (2, -2): q = ½ (-4, 2) + ½ Δ = (-1, 0), y = (½, 0); Δ_1 = Δ, d = (1.5, -2), e = (3, -4),
    g1'(3.5, -4) = (0.5, -5), q = (1.25, -3.5), u1 = (-0.125, 1.75); c1 = c1 - c - u1; cosine -3.75/√24.625.
    Δ = -½ (2 u0 + u1), c = (1, 0) + ½ ((2, -3) + (-0.875, -1.75)), α = 0.495 + 0.01 · ½ (0 + 1 - 3.75/√24.625).
    """
    return Case(
        {"name": "fedwmsam", "rho": 5.0, "alpha": 0.5},
        [
            {
                "theta": (-0.8125, 1.625),
                "server.delta": (1.5625, -2.375),
                "server.c": (1.5625, -2.375),
                "server.alpha": 0.495 + 0.005 * (1 - 3.75 / sqrt(24.625)),
                "client.0.c": (2, -3),
                "client.1.c": (0.125, -1.75),
            }
        ],
        samples=[[(1, 2, -3, 2)], [(2, 1, 2, -2), (1, 1, 3, 1)]],
        server={"delta": (2, -2), "c": (1, 0)},
        clients={1: {"c": (1, 0)}},
    )


@derived
def fedwmsam_along_the_momentum() -> Case:
    """ρ = 0, no variates, α = ½, Δ = (-1.5, 2). Both clients: g = (3, -4), q = ½ g + ½ Δ = (0.75, -1), u = -½ q = ¼ Δ,
    cosine 1: α = 0.495 + 0.01 · 0.9, for 2 is clipped to 0.9. Δ = q.
    """
    return Case(
        {"name": "fedwmsam", "rho": 0.0, "alpha": 0.5, "variates": False},
        [{"theta": (-0.375, 0.5), "server.delta": (0.75, -1), "server.alpha": 0.504}],
        samples=[[(1, 1, -3, 4)], [(1, 1, -3, 4)]],
        server={"delta": (-1.5, 2)},
    )


NESTEROV = {"samples": [[(1, 1, -2, 2)], [(2, 1, 3, -5)]]}


@derived
def fednsam() -> Case:
    """γ = ½, ρ = 5, m = (2, -4), s = (1, -2). Client 0: g = (3, -4) = e, (6, -8), u0 = (-3, 4). Client 1: g = (-4, 3)
    = e, (-12, 6), u1 = (6, -3). m = (1, -2) + (1.5, 0.5), x = 0 + m.
    """
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0},
        [{"theta": (2.5, -1.5), "server.m": (2.5, -1.5)}],
        server={"m": (2, -4)},
        **NESTEROV,
    )


@derived
def fednsam_of_the_momentum() -> Case:
    """γ = ½, ρ = 5, m = (6, -8), s = (3, -4), e = -5 (0.6, -0.8) takes it to 0: g = (2, -2) and (-6, 5), U = (1,
    -0.75); m = (3, -4) + U.
    """
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0, "perturbation": "momentum"},
        [{"theta": (4, -4.75), "server.m": (4, -4.75)}],
        server={"m": (6, -8)},
        **NESTEROV,
    )


@derived
def fednsam_of_one_round() -> Case:
    """γ = ½, ρ = 5. First round, m = 0: g = (2, -2) and (-6, 5), U = (1, -0.75) = m = x. Second: e = -5 (0.8, -0.6)
    takes s = 1.5 x to (-2.5, 1.875), g = (-0.5, -0.125) and (-11, 6.875), U = (2.875, -1.6875); m = 1.5 U, x + m.
    """
    return Case(
        {"name": "fednsam", "gamma": 0.5, "rho": 5.0, "perturbation": "momentum", "memory": "last"},
        [{"theta": (1, -0.75), "server.m": (1, -0.75)}, {"theta": (5.3125, -3.28125), "server.m": (4.3125, -2.53125)}],
        **NESTEROV,
    )
