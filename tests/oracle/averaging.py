"""Methods whose local step is plain, or whose server is more than an average: sections 2.1-2.4 and 2.13-2.16."""

import numpy as np

from .tensors import Tensors, dot, times, zeros
from .world import World


def fedavg(w: World) -> Tensors:
    """McMahan et al., AISTATS 2017."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fedprox(w: World, mu: float) -> Tensors:
    """Li et al., MLSys 2020: the gradient of mu/2 ||y - x||^2 beside the loss's."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + mu * (c.y - x), pull=mu)
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fednova(w: World, mu: float = 0.0, tau_of_steps: bool = False, twice: bool = False) -> Tensors:
    """Wang et al., NeurIPS 2020: d_i = (x - y_K) / a_i; x <- x - tau_eff sum pi_i d_i, tau_eff = sum pi_i a_i.

    a_i is how far, in units of the lr, the client's own recursion moves when every gradient is 1 (and weight decay 0):
    the canonical step's v <- m v + (1 - eta mu a), a <- a + v. That is K for plain SGD, (K - m (1 - m^K) / (1 - m)) /
    (1 - m) for momentum, a <- (1 - eta mu) a + 1 for the prox term: the definitions' three cases. tau_of_steps: tau_eff
    is sum pi_i K_i (D-105). twice: r <- m r + 1, a <- a + r, and then a <- (1 - eta mu) a + 1 in the same step (D-105).
    """
    x = w.x0
    for t in range(w.rounds):
        d, a, steps = {}, {}, {}
        for c in w.participants(t, x):
            r, a_i = 0.0, 0.0
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + mu * (c.y - x))
                r = w.momentum * r + (1.0 if twice else 1.0 - c.eta * mu * a_i)
                a_i = a_i + r
                if twice:
                    a_i = (1 - c.eta * mu) * a_i + 1
            d[c.i], a[c.i], steps[c.i] = (x - c.y) / a_i, a_i, c.K
        p = w.weights(list(d))
        tau_eff = sum(p[i] * (steps if tau_of_steps else a)[i] for i in a)
        x = x - w.server_lr * tau_eff * w.average(d)
    return x


def fedavgm(w: World, beta: float) -> Tensors:
    """Hsu et al., 2019: heavy ball on the averaged update."""
    x = w.x0
    b = zeros(x)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        b = beta * b + w.average(u)
        x = x + w.server_lr * b
    return x


def _adaptive(w: World, yogi: bool, eta_g: float, beta1: float, beta2: float, tau: float, v0: float) -> Tensors:
    """Reddi et al., ICLR 2021, algorithm 2, no bias correction; the server lr scales U, eta_g the adaptive step."""
    x = w.x0
    m = zeros(x)
    v = Tensors({name: np.full_like(value, v0) for name, value in x.items()})
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        U = w.server_lr * w.average(u)
        m = beta1 * m + (1 - beta1) * U
        if yogi:
            sign = Tensors({name: np.sign(v[name] - U[name] ** 2) for name in v})
            v = v - (1 - beta2) * times(times(U, U), sign)
        else:
            v = beta2 * v + (1 - beta2) * times(U, U)
        x = x + eta_g * Tensors({name: m[name] / (np.sqrt(v[name]) + tau) for name in m})
    return x


def fedadam(w: World, eta_g: float, beta1: float, beta2: float, tau: float, v0: float | None = None) -> Tensors:
    """FedAdam. v starts at tau^2 where no v0 is given (D-52)."""
    return _adaptive(w, False, eta_g, beta1, beta2, tau, tau**2 if v0 is None else v0)


def fedyogi(w: World, eta_g: float, beta1: float, beta2: float, tau: float, v0: float | None = None) -> Tensors:
    """FedYogi. v starts at tau^2 where no v0 is given (D-52)."""
    return _adaptive(w, True, eta_g, beta1, beta2, tau, tau**2 if v0 is None else v0)


def fedacg(w: World, lam: float, beta: float) -> Tensors:
    """Kim et al., CVPR 2024: clients start at x~ = x + lam b and are held near it; b stays x^{t+1} - x^t."""
    x = w.x0
    b = zeros(x)
    for t in range(w.rounds):
        ahead = x + lam * b
        u = {}
        for c in w.participants(t, ahead):
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + beta * (c.y - ahead))
            u[c.i] = c.u
        D = w.server_lr * w.average(u)
        previous, b = x, lam * b + D
        x = ahead + D
        assert dot(b - (x - previous), b - (x - previous)) < 1e-24
    return x


def fedcm(w: World, alpha: float) -> Tensors:
    """Xu et al., 2021: q = alpha g + (1 - alpha) Delta; Delta = -sum pi_i u_i / (K_i eta_t), 0 in the first round."""
    x = w.x0
    delta = zeros(x)
    for t in range(w.rounds):
        u, slope = {}, {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(alpha * w.grad(c.y, batch) + (1 - alpha) * delta)
            u[c.i], slope[c.i] = c.u, c.u / (c.counted * c.eta)
        delta = -w.average(slope)
        x = x + w.server_lr * w.average(u)
    return x


def mimelite(w: World, beta: float) -> Tensors:
    """Karimireddy et al., NeurIPS 2021: SGD with momentum, m frozen on the clients; m <- beta m + sum pi_i G_i(x)."""
    x = w.x0
    m = zeros(x)
    for t in range(w.rounds):
        u, G = {}, {}
        for c in w.participants(t, x):
            G[c.i] = w.grad(x, w.clients[c.i])
            for batch in c.batches:
                c.step(beta * m + w.grad(c.y, batch))
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
        m = beta * m + w.average(G)
    return x


def fedexp(w: World, epsilon: float, per_client: bool = False) -> Tensors:
    """Jhunjhunwala et al., ICLR 2023: the step max(1, sum p_i |u_i|^2 / (2 (|U|^2 + eps_t))), eps_t = eps decay^2."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        p, U = w.weights(list(u)), w.average(u)
        eps = epsilon * w.lr_decay ** (2 * t) * (len(u) if per_client else 1)
        ratio = sum(p[i] * dot(u[i], u[i]) for i in u) / (2 * (dot(U, U) + eps))
        x = x + w.server_lr * max(1.0, ratio) * U
    return x


def feddisco(w: World, a: float, b: float, metric: str) -> Tensors:
    """Ye et al., ICML 2023: weights relu(p_i - a d_i + b), normalised; d from class shares to uniform."""
    x = w.x0
    classes = 1 + max(int(y.max()) for _, y in w.clients)
    for t in range(w.rounds):
        u, d = {}, {}
        for c in w.participants(t, x):
            y = w.clients[c.i][1]
            share = [float((y == k).mean()) for k in range(classes)]
            if metric == "l1":
                d[c.i] = sum(abs(s - 1 / classes) for s in share)
            elif metric == "l2":
                d[c.i] = sum((s - 1 / classes) ** 2 for s in share) ** 0.5
            elif metric == "cosine":
                d[c.i] = 1 - 1 / ((sum(s * s for s in share) * classes) ** 0.5)
            else:
                d[c.i] = sum(s * np.log(s * classes) for s in share if s > 0)
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i] = c.u
        if metric == "kl":
            d = {i: value / sum(d.values()) for i, value in d.items()}
        everyone = sum(len(w.clients[i][1]) for i in u)
        raw = {i: max(0.0, len(w.clients[i][1]) / everyone - a * d[i] + b) for i in u}
        total = sum(raw.values())
        step = zeros(x)
        for i in u:
            step = step + raw[i] / total * u[i]
        x = x + w.server_lr * step
    return x
