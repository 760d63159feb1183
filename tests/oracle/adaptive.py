"""Local AdamW and Muon, the methods built on them, and terms on features; written from the formulas alone."""

from collections.abc import Callable

import numpy as np

from .nets import cross_entropy, distillation, softmax
from .tensors import Tensors, norm, times, zeros
from .world import Batch, Local, World, averaging

Turn = Callable[[int, Tensors], Tensors]
"""(step from 1, clipped gradient) -> the direction of the step, without weight decay."""


def like(x: Tensors, value: float) -> Tensors:
    """The same number everywhere."""
    return Tensors({name: np.full_like(part, value) for name, part in x.items()})


def each(function: Callable[..., np.ndarray], *parts: Tensors) -> Tensors:
    """A function of arrays, tensor by tensor."""
    return Tensors({name: function(*(part[name] for part in parts)) for name in parts[0]})


def clipped(w: World, g: Tensors) -> Tensors:
    return (w.clip_norm / norm(g)) * g if w.clip_norm is not None and norm(g) > w.clip_norm else g


def descend(c: Local, turn: Turn, share: float = 1.0, drift: Tensors | None = None) -> None:
    """y <- y - eta (share (turn(k, clipped g)) - drift), step by step; `turn` decays the weights."""
    w = c.world
    for k, batch in enumerate(c.batches, 1):
        d = share * turn(k, clipped(w, w.grad(c.y, batch)))
        c.y = c.y - c.eta * (d if drift is None else d - drift)


class Adam:
    """Moments and their step; t0: steps of earlier rounds in the correction of v, of m with `both`."""

    def __init__(self, b1: float, b2: float, eps: float, m: Tensors, v: Tensors, t0: float = 0, both: bool = False):
        self.b1, self.b2, self.eps, self.m, self.v, self.t0, self.both = b1, b2, eps, m, v, t0, both

    def __call__(self, k: int, g: Tensors) -> Tensors:
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * times(g, g)
        m_hat = self.m / (1 - self.b1 ** (k + (self.t0 if self.both else 0)))
        v_hat = self.v / (1 - self.b2 ** (k + self.t0))
        return each(lambda a, b: a / (np.sqrt(b) + self.eps), m_hat, v_hat)


def newton_schulz(g: np.ndarray, steps: int) -> np.ndarray:
    """O: the singular values s/|s|, each mapped `steps` times by 3.4445 s - 4.775 s^3 + 2.0315 s^5."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    s = s / (np.sqrt((s**2).sum()) + 1e-7)
    for _ in range(steps):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return (u * s) @ v


class Muon:
    """Matrices by their momentum, all else by Adam (0.9, 0.95, 1e-10); the factor multiplies the decay, too."""

    def __init__(self, c: Local, b: float, nesterov: bool, steps: int, factor: float, matrices: str, M: Tensors):
        self.c, self.b, self.nesterov, self.steps, self.factor, self.M = c, b, nesterov, steps, factor, M
        head = set() if matrices == "all" else c.world.net.head
        self.names = {n for n, x in c.start.items() if x.ndim > 1 and n not in head}
        self.adam = Adam(0.9, 0.95, 1e-10, zeros(c.start), zeros(c.start))

    def __call__(self, k: int, g: Tensors) -> Tensors:
        decay = self.c.world.weight_decay * self.c.y
        d = self.adam(k, g) + decay
        self.M = self.b * self.M + (1 - self.b) * g
        for n in self.names:
            ahead = (1 - self.b) * g[n] + self.b * self.M[n] if self.nesterov else self.M[n]
            s = max(1.0, g[n].shape[0] / g[n].shape[1]) ** 0.5
            d[n] = self.factor * (s * newton_schulz(ahead, self.steps) + decay[n])
        return d


def local_adamw(w: World) -> Tensors:
    """FedAvg with AdamW at its usual constants, new in every round."""
    return fedadamw(w, alpha=0.0, forgets=True)


def local_muon(w: World) -> Tensors:
    """FedAvg with Muon at its usual constants, new in every round."""
    return fedmuon(w, gamma=0.0, momentum=0.95, forgets=True)


def fedadamw(
    w: World,
    alpha: float = 0.5,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    second_moment: str = "tensors",
    correction: str = "paper",
    forgets: bool = False,
) -> Tensors:
    """Liu et al., AAAI 2026."""
    x, D, vbar, t0 = w.x0, zeros(w.x0), zeros(w.x0), 0.0
    for t in range(w.rounds):
        trained, v = {}, {}
        for c in w.participants(t, x):
            adam = Adam(beta1, beta2, eps, zeros(x), vbar, t0, correction == "code")
            descend(c, lambda k, g, c=c, adam=adam: adam(k, g) + w.weight_decay * c.y, drift=alpha / c.K * D)
            trained[c.i] = c
            v[c.i] = adam.v if second_moment == "full" else each(lambda a: np.full_like(a, a.mean()), adam.v)
        U = w.update(trained)
        x, D = x + w.server_lr * U, U / (w.lr * w.lr_decay**t)
        if not forgets:
            vbar, t0 = w.average(v), t0 + float(np.mean([c.K for c in trained.values()]))
    return x


def fedlada(
    w: World, alpha: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-8, form: str = "paper"
) -> Tensors:
    """Sun et al., TPAMI 2023: AMSGrad from the mean maximum; `vision`: FedAdamW's code."""
    x, g_a, vbar = w.x0, zeros(w.x0), None
    for t in range(w.rounds):
        trained, sent = {}, {}
        for c in w.participants(t, x):
            m, v = zeros(x), zeros(x)
            top = like(x, eps**2) if vbar is None else vbar
            if form == "vision" and vbar is not None:
                v = vbar
            for k, batch in enumerate(c.batches, 1):
                g = clipped(w, w.grad(c.y, batch))
                g = g + w.weight_decay * c.y if form == "vision" else g
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * times(g, g)
                if form == "vision":
                    m_hat, v_hat = (m / (1 - beta1**k), v / (1 - beta2**k)) if t == 0 else (m, v)
                    d = alpha * each(lambda a, b: a / (np.sqrt(b) + eps), m_hat, v_hat) + (1 - alpha) * g_a
                else:
                    top = each(np.maximum, top, v)
                    d = alpha * each(lambda a, b: a / np.sqrt(b), m, top) + (1 - alpha) * g_a + w.weight_decay * c.y
                c.y = c.y - c.eta * d
            trained[c.i], sent[c.i] = c, v if form == "vision" else top
        g_a = -w.average({i: c.u / (c.K * c.eta) for i, c in trained.items()})
        x, vbar = x + w.server_lr * w.update(trained), w.average(sent)
    return x


def fedmuon(
    w: World,
    gamma: float = 0.5,
    momentum: float = 0.98,
    nesterov: bool = True,
    steps: int = 5,
    lr_factor: float = 1.0,
    matrices: str = "all",
    forgets: bool = False,
) -> Tensors:
    """Liu et al., 2025."""
    x, D, Mbar = w.x0, zeros(w.x0), zeros(w.x0)
    for t in range(w.rounds):
        trained, M = {}, {}
        for c in w.participants(t, x):
            muon = Muon(c, momentum, nesterov, steps, lr_factor, matrices, Mbar)
            descend(c, muon, 1 - gamma, gamma / c.K * D)
            trained[c.i], M[c.i] = c, muon.M
        U = w.update(trained)
        x, D = x + w.server_lr * U, U / (w.lr * w.lr_decay**t)
        Mbar = Mbar if forgets else w.average(M)
    return x


def fedgmt(
    w: World, gamma: float = 1.0, tau: float = 3.0, beta: float = 10.0, alpha: float = 0.95, dual_mean: str = "all"
) -> Tensors:
    """Li et al., ICML 2025: the teacher e is the moving average of the global models."""
    x, e, h = w.x0, w.x0, w.each(w.x0)
    for t in range(w.rounds):

        def direction(c: Local, batch: Batch, teacher: Tensors = e) -> Tensors:
            X, y = batch
            out = w.net.forward(c.y, X)
            dz = cross_entropy(out.z, y) + gamma * tau**2 * distillation(w.net.forward(teacher, X).z, out.z, tau)
            return w.net.backward(c.y, X, out, dz=dz)[0] + h[c.i] / beta

        trained = w.train(t, x, direction)
        for i, c in trained.items():
            h[i] = h[i] + c.u
        dual = zeros(x)
        for one in h:
            dual = dual + one / w.N
        if dual_mean == "cohort":
            dual = w.average({i: h[i] for i in trained})
        x = x + w.server_lr * w.update(trained) + dual
        e = alpha * e + (1 - alpha) * x
    return x


def feduv(w: World, lam_v: float = 2.5, lam_u: float = 0.5, normalise: bool = False) -> Tensors:
    """Son et al., CVPR 2024: variance of probabilities, distance of features; 0 for one sample."""

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        out = w.net.forward(c.y, X)
        dz, dh, n = cross_entropy(out.z, y), np.zeros_like(out.h), len(y)
        if n > 1:
            p = softmax(out.z)
            dp, classes = np.zeros_like(p), p.shape[1]
            for k in range(classes):
                std = p[:, k].std(ddof=1)
                if 0 < std < classes**-0.5:
                    dp[:, k] = -lam_v / classes * (p[:, k] - p[:, k].mean()) / ((n - 1) * std)
            dz = dz + p * (dp - (dp * p).sum(1, keepdims=True))
            lengths = np.linalg.norm(out.h, axis=1, keepdims=True) if normalise else np.ones((n, 1))
            lengths = np.where(lengths > 0, lengths, 1.0)
            f = out.h / lengths
            pairs = [(i, j, ((f[i] - f[j]) ** 2).sum()) for i in range(n) for j in range(i)]
            known = sorted((q, i, j) for i, j, q in pairs if q > 0)
            s, a, b = known[(len(known) - 1) // 2] if known else (1.0, 0, 0)
            slopes = [(i, j, -np.exp(-q / s) / s / len(pairs)) for i, j, q in pairs]
            slopes.append((a, b, sum(np.exp(-q / s) * q / s**2 for _, _, q in pairs) / len(pairs)))
            for i, j, slope in slopes:
                dh[i] += 2 * lam_u * slope * (f[i] - f[j])
                dh[j] -= 2 * lam_u * slope * (f[i] - f[j])
            if normalise:
                dh = (dh - f * (dh * f).sum(1, keepdims=True)) / lengths
        return w.net.backward(c.y, X, out, dz=dz, dh=dh)[0]

    return averaging(w, direction)


def feddecorr(w: World, beta: float = 0.1) -> Tensors:
    """Shi et al., ICLR 2023, in the code's scale; 0 for one sample."""

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        out = w.net.forward(c.y, X)
        n, d = out.h.shape
        dh = np.zeros_like(out.h)
        if n > 1:
            centred, deviation = out.h - out.h.mean(0), np.sqrt(out.h.var(0, ddof=1) + 1e-8)
            z = centred / deviation
            corr = z.T @ z
            np.fill_diagonal(corr, 0)
            dz = 4 * beta / (d * (d - 1) * n) * z @ corr
            by_deviation = -(dz * centred).sum(0) / deviation**2
            dh = dz / deviation + by_deviation * centred / ((n - 1) * deviation)
            dh = dh - dh.mean(0)
        return w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y), dh=dh)[0]

    return averaging(w, direction)


def fedadagrad(
    w: World, lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, start: str = "tau_squared", square: str = "update"
) -> Tensors:
    """Reddi et al., ICLR 2021."""
    x, m, v = w.x0, zeros(w.x0), like(w.x0, 0.0 if start == "zero" else tau**2)
    for t in range(w.rounds):
        U = w.server_lr * w.update(w.train(t, x, w.plain))
        m = beta1 * m + (1 - beta1) * U
        v = v + (times(m, m) if square == "momentum" else times(U, U))
        x = x + lr * each(lambda a, b: a / (np.sqrt(b) + tau), m, v)
    return x
