"""Sharpness-aware methods of 2025 and 2026: FedGloSS, FedSWA, FedMoSWA, FedWMSAM, FedNSAM."""

from .sharpness import towards
from .tensors import Tensors, dot, mean, norm, total, unit, zeros
from .world import World


def fedgloss(
    w: World,
    alpha: float,
    rho: float,
    rho_l: float,
    start_rho: float = 1e-3,
    warmup: int = 0,
    dual_divisor: str = "clients",
) -> Tensors:
    """Caldarola et al., CVPR 2025, in the form of its duals s_i and sigma; alpha = 1/beta."""
    beta, x, s, sigma, ascent = 1 / alpha, w.x0, w.each(w.x0), zeros(w.x0), zeros(w.x0)
    for t in range(w.rounds):
        share = min(1.0, t / warmup) if warmup else 1.0
        server, client = (start_rho + (r - start_rho) * share for r in (rho, rho_l))
        ahead = x + server * unit(ascent)
        u = {}
        for c in w.participants(t, ahead):
            for batch in c.batches:
                e = client * unit(w.grad(c.y, batch))
                c.step(w.grad(c.y + e, batch) - s[c.i] + (c.y - ahead) / beta, pull=alpha)
            s[c.i] = s[c.i] - c.u / beta
            u[c.i] = c.u
        sigma = sigma - total(list(u.values())) / (beta * w.N * (len(u) if dual_divisor == "product" else 1))
        U = w.average(u)
        x, ascent = x + w.server_lr * U - beta * sigma, -U
    return x


def fedswa(w: World, rho: float, alpha: float) -> Tensors:
    """Liu et al., ICML 2025: eta_k = eta (1 - (1 - rho) k / K); x += alpha U."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            eta = c.eta
            for k, batch in enumerate(c.batches):
                c.eta = eta * (1 - (1 - rho) * k / c.K)
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        x = x + w.server_lr * alpha * w.average(u)
    return x


def fedmoswa(
    w: World, rho: float, alpha: float, gamma: float, first_round: str = "usual", variate_divisor: str = "rates"
) -> Tensors:
    """The same with variates, option II; m moves to the mean of the cohort's new variates.

    first_round `plain`: at once, in the first round (D-96); variate_divisor `nominal`: K eta (1 + rho) / 2 (D-126).
    """
    x, m, own = w.x0, zeros(w.x0), w.each(w.x0)
    for t in range(w.rounds):
        u, apart = {}, []
        for c in w.participants(t, x):
            eta, length = c.eta, 0.0
            for k, batch in enumerate(c.batches):
                c.eta = eta * (1 - (1 - rho) * k / c.K)
                length += c.eta
                c.step(w.grad(c.y, batch) - own[c.i] + m)
            if variate_divisor == "nominal":
                length = c.K * eta * (1 + rho) / 2
            own[c.i] = own[c.i] - m - c.u / length
            apart.append(own[c.i] - m)
            u[c.i] = c.u
        x = x + w.server_lr * alpha * w.average(u)
        m = m + (1.0 if first_round == "plain" and t == 0 else gamma) * mean(apart)
    return x


def fedwmsam(
    w: World,
    rho: float,
    alpha: float,
    adaptive: bool = True,
    variates: bool = True,
    sign: str = "uphill",
    target: str = "plain",
    delta_decay: bool = False,
    **form: str,
) -> Tensors:
    """Li et al., NeurIPS 2025, as its code and poster have it; form: `shift` and `norm`, D-89; delta_decay: D-92."""
    x, delta, c_server, own, a = w.x0, zeros(w.x0), zeros(w.x0), w.each(w.x0), alpha
    for t in range(w.rounds):
        u, slope, change, values = {}, {}, [], []
        for c in w.participants(t, x):
            correction = c_server - own[c.i] if variates else zeros(x)
            path = delta + a / (1 - a) * correction
            for k, batch in enumerate(c.batches):
                ahead = x + k * (c.eta if target == "scaled" else 1) * path - c.y
                e = rho * towards(ahead, **form) if k else zeros(x)
                g = w.grad(c.y - e if sign == "code" else c.y + e, batch)
                c.step(a * (g + correction) + (1 - a) * delta)
            new = own[c.i] - c_server - c.u / (c.counted * c.eta)
            change.append(new - own[c.i])
            lengths = norm(c.u) * norm(delta)
            values.append(1 + dot(c.u, delta) / lengths if lengths else 0.0)
            u[c.i], slope[c.i], own[c.i] = c.u, c.u / (c.counted * c.eta), new
        x, delta = x + w.server_lr * w.average(u), -(w.lr_decay if delta_decay else 1) * w.average(slope)
        c_server = c_server + total(change) / w.N
        if adaptive:
            a = 0.99 * a + 0.01 * min(0.9, max(0.1, sum(values) / len(values)))
    return x


def fednsam(w: World, gamma: float, rho: float, perturbation: str = "gradient", memory: str = "all") -> Tensors:
    """Liu et al., 2026. perturbation `momentum`: e = -rho unit(m); memory `last`: the code's
    m <- gamma U + U, U in the first round.
    """
    x, m = w.x0, zeros(w.x0)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x + gamma * m):
            for batch in c.batches:
                e = -rho * unit(m) if perturbation == "momentum" else rho * unit(w.grad(c.y, batch))
                c.step(w.grad(c.y + e, batch))
            u[c.i] = c.u
        U = w.server_lr * w.average(u)
        m = gamma * U + U if memory == "last" and t > 0 else gamma * m + U
        x = x + m
    return x
