"""SAM and what grew out of it: sections 2.9-2.12 and 2.19-2.23; FedGloSS, FedSWA, FedMoSWA, FedWMSAM, FedNSAM."""

import numpy as np

from .averaging import with_momentum
from .corrections import with_duals, with_variates
from .nets import cross_entropy
from .tensors import Tensors, dot, mean, norm, restrict, times, total, unit, zeros
from .world import Batch, Local, World, averaging


def sam(w: World, c: Local, batch: Batch, rho: float, perturb: str = "all", sign: bool = False) -> Tensors:
    """The gradient at y + rho unit(g); `perturb`: g on all, head or body, 0 elsewhere (D-116); sign: eq. 3's (D-22)."""
    g = w.grad(c.y, batch)
    part = {"all": set(g), "head": w.net.head, "body": set(g) - w.net.head}[perturb]
    e = rho * unit(restrict(g, part))
    return w.grad(c.y + (times(Tensors({name: np.sign(g[name]) for name in g}), e) if sign else e), batch)


def fedsam(w: World, rho: float, perturb: str = "all", sign: bool = False, delta: str = "new") -> Tensors:
    """Qu et al., ICML 2022, algorithm 1; delta `old`: x moves by the update of the round before, as printed (D-21)."""
    x, last = w.x0, zeros(w.x0)
    for t in range(w.rounds):
        U = w.update(w.train(t, x, lambda c, batch: sam(w, c, batch, rho, perturb, sign)))
        x, last = x + w.server_lr * (U if delta == "new" else last), U
    return x


def mofedsam(w: World, rho: float, beta: float, step: str = "mean") -> Tensors:
    """Qu et al., ICML 2022, algorithm 2 with D-18..D-23: beta on the fresh gradient, Delta by the round's own lr."""
    return with_momentum(w, lambda c, batch: sam(w, c, batch, rho), beta, step)


def fedasam(w: World, rho: float, eta_a: float, scaled: str = "weights") -> Tensors:
    """Caldarola et al., ECCV 2022: T = |y| + eta_a on weights, 1 on biases (D-53); scaled `all`: T = |y| + eta_a."""

    def direction(c: Local, batch: Batch) -> Tensors:
        moved = set(c.y) if scaled == "all" else w.net.weights
        T = Tensors({name: abs(v) + eta_a if name in moved else np.ones_like(v) for name, v in c.y.items()})
        Tg = times(T, w.grad(c.y, batch))
        return w.grad(c.y + (rho / (norm(Tg) + 1e-16)) * times(T, Tg), batch)

    return averaging(w, direction)


def fedgamma(w: World, rho: float, perturb: str = "all", **options: str) -> Tensors:
    """Dai et al., TNNLS 2023: SCAFFOLD with SAM gradients."""
    return with_variates(w, lambda c, batch: sam(w, c, batch, rho, perturb), **options)  # type: ignore[arg-type]


def fedspeed(
    w: World, alpha: float, rho: float, perturb: str = "all", mix: float = 1.0, dual_mean: str = "all"
) -> Tensors:
    """Sun et al., ICLR 2023, code form: SAM gradients under FedDyn's duals; mix and dual_mean `cohort`: D-15."""

    def gradient(c: Local, batch: Batch) -> Tensors:
        return (1 - mix) * w.grad(c.y, batch) + mix * sam(w, c, batch, rho, perturb)

    return with_duals(w, gradient, alpha, dual_mean=dual_mean)


def fedsmoo(w: World, alpha: float, rho: float, perturbation_dual: str = "whole") -> Tensors:
    """Sun et al., ICML 2023, code form (D-16); perturbation_dual `corrected`: clients send mu_i - e_K, not mu_i."""
    x = w.x0
    H, mu, s = w.each(x), w.each(x), zeros(x)
    for t in range(w.rounds):
        u, sent = {}, []
        for c in w.participants(t, x):
            for batch in c.batches:
                v = w.grad(c.y, batch) - mu[c.i] - s
                e = rho * unit(v)
                mu[c.i] = mu[c.i] + e - s
                c.step(w.grad(c.y + e, batch) + alpha * (c.y - x + H[c.i]), pull=alpha)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
            sent.append(mu[c.i] - e if perturbation_dual == "corrected" else mu[c.i])
        s = rho * unit(mean(sent))
        x = x + w.server_lr * w.average(u) + mean(H)
    return x


def towards(away: Tensors, shift: str = "vector", norm: str = "global") -> Tensors:
    """unit(away); `shift` scalars: coordinate j for the whole of tensor j (D-10); `norm` summed: over the sum of the
    tensors' norms (D-11)."""
    everything = np.concatenate([value.ravel() for value in away.values()])
    parts = {name: everything[j] if shift == "scalars" else value for j, (name, value) in enumerate(away.items())}
    lengths = [float(np.sqrt(np.sum(np.square(part)))) for part in parts.values()]
    length = sum(lengths) if norm == "summed" else float(np.sqrt(np.sum(np.square(lengths))))
    return Tensors({name: (0 * away[name] + parts[name]) / (length + 1e-7) for name in away})


class Lesam:
    """FedLESAM's gradient, at y + rho unit(x_old - x); at y if there is no x_old (D-11b).

    x_old is the model of the client's last participation; with `estimate` server: of the last round. `shift`
    and `norm` as in `towards`."""

    def __init__(
        self, w: World, rho: float, estimate: str = "client", shift: str = "vector", norm: str = "global"
    ) -> None:
        self.w, self.rho, self.estimate, self.form = w, rho, estimate, {"shift": shift, "norm": norm}
        self.models: dict[int, Tensors] = {}
        self.active: dict[int, int] = {}

    def __call__(self, c: Local, batch: Batch) -> Tensors:
        if c.step_number == 0:
            known = self.models.get(c.t - 1 if self.estimate == "server" else self.active.get(c.i, -1))
            self.delta = zeros(c.start) if known is None else self.rho * towards(known - c.start, **self.form)
            self.models[c.t], self.active[c.i] = c.start, c.t
        return self.w.grad(c.y + self.delta, batch)


def fedlesam(w: World, rho: float, **form: str) -> Tensors:
    """Fan et al., ICML 2024: one perturbation per round."""
    return averaging(w, Lesam(w, rho, **form))


def fedlesam_s(w: World, rho: float, correction: float = 1.0, **options: str) -> Tensors:
    """FedLESAM-S: the same in SCAFFOLD."""
    form = {name: options.pop(name) for name in ("estimate", "shift", "norm") if name in options}
    return with_variates(w, Lesam(w, rho, **form), correction=correction, **options)


def fedlesam_d(w: World, alpha: float, rho: float, **form: str) -> Tensors:
    """FedLESAM-D: the same in FedDyn (form b)."""
    return with_duals(w, Lesam(w, rho, **form), alpha)


def fedtoga(
    w: World,
    alpha: float,
    rho: float,
    kappa: float,
    beta: float,
    perturbation: str = "fusion",
    radius: str = "rho",
    delta_scale: str = "mean_step",
    dual_divisor: str = "all",
    sam: bool = True,
    dynamic_regularisation: bool = True,
    dual_correction: bool = True,
    sam_correction: bool = True,
) -> Tensors:
    """FedTOGA, algorithm 1 with D-1..D-7. perturbation: `global` is the definitions' plain, `neighbour` their N.

    radius `squared`: rho twice (D-7). delta_scale `gradient`: Delta divided by eta_t too (D-1). dual_divisor
    `cohort`: the server's dual divided by M (D-2). The ablation, from FedAvg up: `sam`, the ascent;
    `dynamic_regularisation`, the dual and its proximal term; `dual_correction`, beta Delta in the descent;
    `sam_correction`, the terms added to g in the ascent."""
    x = w.x0
    H, h_server, delta = w.each(x), zeros(x), zeros(x)
    length, push = (rho if sam else 0.0) * (rho if radius == "squared" else 1), (beta if dual_correction else 0.0)
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
                last = w.grad(c.y + length * unit(r), batch)
                q = last + push * delta
                if dynamic_regularisation:
                    q = q + alpha * (c.y - x + H[c.i])
                c.step(q, pull=alpha if dynamic_regularisation else 0.0)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
            per_step[c.i] = c.u / (c.counted * c.eta if delta_scale == "gradient" else c.counted)
        delta = -w.average(per_step)
        h_server = h_server + total(list(u.values())) / (len(u) if dual_divisor == "cohort" else w.N)
        x = x + w.server_lr * w.average(u)
        if dynamic_regularisation:
            x = x + h_server
    return x


def fedrobust(w: World, ascent_lr: float, penalty: float, affine: str) -> Tensors:
    """Reisizadeh et al., NeurIPS 2020: inputs become A z + d, A and d climb per client (never sent), y descends.

    affine `full`: every input number mixes with every other; `diagonal`: a scale and a shift per input number;
    `channel`: a scale and a shift per channel (inputs are channel after channel). They start at the identity; penalty x
    (||A - I||^2 + ||d||^2) on the numbers there are; all gradients of a step are taken at the same point."""
    x = w.x0
    inputs = w.clients[0][0].shape[1]
    if affine == "full":
        tie = A_0 = np.eye(inputs)
    else:  # tie[j, p] = 1 if input number j belongs to parameter p
        groups = inputs if affine == "diagonal" else w.channels
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
                g, dX = w.net.backward(c.y, moved, out, dz=cross_entropy(out.z, y))
                slope_A = dX.T @ X if affine == "full" else (dX * X).sum(0) @ tie
                slope_d = dX.sum(0) @ tie
                c.step(g)
                A[c.i] = A_i + ascent_lr * (slope_A - 2 * penalty * (A_i - A_0))
                d[c.i] = d_i + ascent_lr * (slope_d - 2 * penalty * d_i)
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


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

    first_round `plain`: at once, in the first round (D-96); variate_divisor `nominal`: K eta (1 + rho) / 2 (D-126)."""
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
    m <- gamma U + U, U in the first round."""
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
