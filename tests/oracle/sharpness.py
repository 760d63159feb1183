"""SAM and what grew out of it: sections 2.9-2.12 and 2.19-2.23."""

import numpy as np

from .corrections import effective_steps, part_of_change, variate_lr
from .nets import cross_entropy
from .tensors import Tensors, mean, norm, restrict, times, total, unit, zeros
from .world import World


def of_part(w: World, g: Tensors, part: str) -> Tensors:
    """g on all, head or body, 0 elsewhere (D-116)."""
    return restrict(g, {"all": set(g), "head": w.net.head, "body": set(g) - w.net.head}[part])


def fedsam(w: World, rho: float, part: str = "all") -> Tensors:
    """Qu et al., ICML 2022, algorithm 1."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                e = rho * unit(of_part(w, w.grad(c.y, batch), part))
                c.step(w.grad(c.y + e, batch))
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def mofedsam(w: World, rho: float, beta: float) -> Tensors:
    """Qu et al., ICML 2022, algorithm 3 with D-18..D-23: beta on the fresh gradient, Delta by the round's own lr."""
    x = w.x0
    delta = zeros(x)
    for t in range(w.rounds):
        u, slope = {}, {}
        for c in w.participants(t, x):
            for batch in c.batches:
                e = rho * unit(w.grad(c.y, batch))
                c.step(beta * w.grad(c.y + e, batch) + (1 - beta) * delta)
            u[c.i], slope[c.i] = c.u, c.u / (c.counted * c.eta)
        delta = -w.average(slope)
        x = x + w.server_lr * w.average(u)
    return x


def fedasam(w: World, rho: float, eta_a: float, everywhere: bool = False) -> Tensors:
    """Caldarola et al., ECCV 2022: T = |y| + eta_a on weights, 1 on biases (D-53); everywhere: T = |y| + eta_a."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                g = w.grad(c.y, batch)
                T = Tensors(
                    {
                        name: abs(value) + eta_a if everywhere or name in w.net.weights else np.ones_like(value)
                        for name, value in c.y.items()
                    }
                )
                Tg = times(T, g)
                e = (rho / (norm(Tg) + 1e-16)) * times(T, Tg)
                c.step(w.grad(c.y + e, batch))
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fedgamma(
    w: World, rho: float, divisor: str = "steps", by_samples: bool = False, first: bool = False, part: str = "all"
) -> Tensors:
    """Dai et al., TNNLS 2023: SCAFFOLD with SAM gradients."""
    x = w.x0
    c_server, c_client = zeros(x), w.each(x)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            for batch in c.batches:
                e = rho * unit(of_part(w, w.grad(c.y, batch), part))
                c.step(w.grad(c.y + e, batch) + c_server - c_client[c.i])
            new = c_client[c.i] - c_server - c.u / (effective_steps(w, c, divisor) * variate_lr(w, c, first))
            change.append(part_of_change(w, c, by_samples) * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        x = x + w.server_lr * w.average(u)
        c_server = c_server + total(change) / w.N
    return x


def fedspeed(w: World, lam: float, rho: float, part: str = "all") -> Tensors:
    """Sun et al., ICLR 2023, code form (D-15): SAM gradients under FedDyn's duals."""
    x = w.x0
    H = w.each(x)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                e = rho * unit(of_part(w, w.grad(c.y, batch), part))
                c.step(w.grad(c.y + e, batch) + lam * (c.y - x + H[c.i]), pull=lam)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u) + mean(H)
    return x


def fedsmoo(w: World, lam: float, rho: float, paper_upload: bool = False) -> Tensors:
    """Sun et al., ICML 2023, code form (D-16); paper_upload: the clients send mu_i - e_K instead of mu_i."""
    x = w.x0
    H, mu, s = w.each(x), w.each(x), zeros(x)
    for t in range(w.rounds):
        u, sent = {}, []
        for c in w.participants(t, x):
            for batch in c.batches:
                v = w.grad(c.y, batch) - mu[c.i] - s
                e = rho * unit(v)
                mu[c.i] = mu[c.i] + e - s
                c.step(w.grad(c.y + e, batch) + lam * (c.y - x + H[c.i]), pull=lam)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
            sent.append(mu[c.i] - e if paper_upload else mu[c.i])
        s = rho * unit(mean(sent))
        x = x + w.server_lr * w.average(u) + mean(H)
    return x


Form = tuple[str, str]


def _lesam_delta(rho: float, x: Tensors, known: Tensors | None, form: Form) -> Tensors:
    """rho unit(x_old - x); nothing where there is no x_old (D-11b).

    form: the code's `scalars`, coordinate j for the whole of tensor j (D-10); `summed`, its sum of norms (D-11).
    """
    if known is None:
        return zeros(x)
    away = known - x
    everything = np.concatenate([value.ravel() for value in away.values()])
    shift = {name: everything[j] if form[0] == "scalars" else value for j, (name, value) in enumerate(away.items())}
    lengths = [float(np.sqrt(np.sum(np.square(part)))) for part in shift.values()]
    length = sum(lengths) if form[1] == "summed" else float(np.sqrt(np.sum(np.square(lengths))))
    return Tensors({name: rho * (0 * away[name] + shift[name]) / (length + 1e-7) for name in away})


def fedlesam(w: World, rho: float, broadcast: bool = False, form: Form = ("vector", "global")) -> Tensors:
    """Fan et al., ICML 2024: one perturbation per round, from the model of the client's last activity.

    broadcast: the code's rule, the model of the last round, whoever was active.
    """
    x = w.x0
    old: list[Tensors | None] = [None] * w.N
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            delta = _lesam_delta(rho, x, old[c.i], form)
            old[c.i] = x
            for batch in c.batches:
                c.step(w.grad(c.y + delta, batch))
            u[c.i] = c.u
        if broadcast:
            old = [x] * w.N
        x = x + w.server_lr * w.average(u)
    return x


def fedlesam_s(
    w: World,
    rho: float,
    broadcast: bool = False,
    correction: float = 1.0,
    divisor: str = "steps",
    form: Form = ("vector", "global"),
    by_samples: bool = False,
    first: bool = False,
) -> Tensors:
    """FedLESAM-S: the same in SCAFFOLD; the correction has the coefficient 1 but in the released code (D-11c)."""
    x = w.x0
    old: list[Tensors | None] = [None] * w.N
    c_server, c_client = zeros(x), w.each(x)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            delta = _lesam_delta(rho, x, old[c.i], form)
            old[c.i] = x
            for batch in c.batches:
                c.step(w.grad(c.y + delta, batch) + correction * (c_server - c_client[c.i]))
            new = c_client[c.i] - c_server - c.u / (effective_steps(w, c, divisor) * variate_lr(w, c, first))
            change.append(part_of_change(w, c, by_samples) * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        if broadcast:
            old = [x] * w.N
        x = x + w.server_lr * w.average(u)
        c_server = c_server + total(change) / w.N
    return x


def fedlesam_d(w: World, lam: float, rho: float, broadcast: bool = False, form: Form = ("vector", "global")) -> Tensors:
    """FedLESAM-D: the same in FedDyn (form b)."""
    x = w.x0
    old: list[Tensors | None] = [None] * w.N
    H = w.each(x)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            delta = _lesam_delta(rho, x, old[c.i], form)
            old[c.i] = x
            for batch in c.batches:
                c.step(w.grad(c.y + delta, batch) + lam * (c.y - x + H[c.i]), pull=lam)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
        if broadcast:
            old = [x] * w.N
        x = x + w.server_lr * w.average(u) + mean(H)
    return x


def fedtoga(
    w: World,
    lam: float,
    rho: float,
    kappa: float,
    beta: float,
    perturbation: str = "fusion",
    gradient_scale: bool = False,
    dual_over_cohort: bool = False,
    dynamic: bool = True,
    sam_correction: bool = True,
) -> Tensors:
    """FedTOGA, algorithm 1 with D-1..D-7. perturbation: `global` is the definitions' plain, `neighbour` their N.

    gradient_scale: Delta divided by eta_t too (D-1). dual_over_cohort: the server's dual divided by M (D-2).
    The ablation, from FedSAM up: `dynamic`, the dual and its proximal term; beta Delta in the descent (dual correction,
    beta = 0 without it); `sam_correction`, whatever is added to g in the ascent.
    """
    x = w.x0
    H, h_server, delta = w.each(x), zeros(x), zeros(x)
    for t in range(w.rounds):
        u, per_step = {}, {}
        for c in w.participants(t, x):
            last = zeros(x)
            for batch in c.batches:
                if not sam_correction:
                    r = w.grad(c.y, batch)
                elif perturbation == "global":
                    r = w.grad(c.y, batch) + kappa * delta
                elif perturbation == "neighbour":
                    r = last + kappa * delta
                else:
                    r = w.grad(c.y, batch) + last + kappa * delta
                e = rho * unit(r)
                last = w.grad(c.y + e, batch)
                q = last + beta * delta
                if dynamic:
                    q = q + lam * (c.y - x + H[c.i])
                c.step(q, pull=lam if dynamic else 0.0)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
            per_step[c.i] = c.u / (c.counted * c.eta if gradient_scale else c.counted)
        delta = -w.average(per_step)
        h_server = h_server + total(list(u.values())) / (len(u) if dual_over_cohort else w.N)
        x = x + w.server_lr * w.average(u)
        if dynamic:
            x = x + h_server
    return x


def fedrobust(w: World, eta2: float, lam: float, affine: str, channels: int = 1) -> Tensors:
    """Reisizadeh et al., NeurIPS 2020: inputs become A z + d, A and d climb per client (never sent), y descends.

    affine `full`: every input number mixes with every other; `diagonal`: a scale and a shift per input number;
    `channel`: a scale and a shift per channel (inputs are channel after channel). They start at the identity; penalty
    lam (||A - I||^2 + ||d||^2) on the numbers there are; all gradients of a step are taken at the same point.
    """
    x = w.x0
    inputs = w.clients[0][0].shape[1]
    if affine == "full":
        tie = np.eye(inputs)
        A_0 = np.eye(inputs)
    else:  # tie[j, p] = 1 where input number j belongs to parameter p
        groups = inputs if affine == "diagonal" else channels
        tie = np.repeat(np.eye(groups), inputs // groups, axis=0)
        A_0 = np.ones(groups)
    A = [A_0 for _ in range(w.N)]
    d = [np.zeros(tie.shape[1]) for _ in range(w.N)]
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for X, y in c.batches:
                A_i, d_i = A[c.i], d[c.i]
                moved = X @ A_i.T + d_i if affine == "full" else X * (tie @ A_i) + tie @ d_i
                out = w.net.forward(c.y, moved)
                g, dX = w.net.backward(c.y, moved, out, dz=cross_entropy(out.z, y)[1])
                slope_A = dX.T @ X if affine == "full" else (dX * X).sum(0) @ tie
                slope_d = dX.sum(0) @ tie
                c.step(g)
                A[c.i] = A_i + eta2 * (slope_A - 2 * lam * (A_i - A_0))
                d[c.i] = d_i + eta2 * (slope_d - 2 * lam * d_i)
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x
