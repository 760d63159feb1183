"""Methods whose local step is plain, or whose server is more than an average: sections 2.1-2.4 and 2.13-2.16; and those
that change the loss by logits, features or inner layers: FedNTD, MOON, FedRCL (2.6, 2.8, 2.18)."""

from typing import Any

import numpy as np

from .nets import contrastive, cross_entropy, distillation, not_true_distillation, relaxed_contrastive
from .tensors import Tensors, dot, times, zeros
from .world import Batch, Direction, Local, World, averaging


def fedavg(w: World) -> Tensors:
    """McMahan et al., AISTATS 2017."""
    return averaging(w, w.plain)


def fedprox(w: World, mu: float) -> Tensors:
    """Li et al., MLSys 2020: the gradient of mu/2 ||y - x||^2 is added to the loss's."""
    return averaging(w, lambda c, batch: w.grad(c.y, batch) + mu * (c.y - c.start), pull=mu)


def fednova(w: World, mu: float = 0.0, tau: str = "effective", counting: str = "once") -> Tensors:
    """Wang et al., NeurIPS 2020: d_i = (x - y_K) / a_i; x <- x - tau_eff sum pi_i d_i, tau_eff = sum pi_i a_i.

    a_i is how far, in units of the lr, the client's own recursion moves when every gradient is 1 (and weight decay 0):
    the canonical step's v <- m v + (1 - eta mu a), a <- a + v. That is K for plain SGD, (K - m (1 - m^K) / (1 - m)) /
    (1 - m) for momentum, a <- (1 - eta mu) a + 1 for the prox term: the definitions' three cases. tau `steps`: tau_eff
    is sum pi_i K_i (D-105). counting `twice`: r <- m r + 1, a <- a + r, and then a <- (1 - eta mu) a + 1 in the same
    step (D-105)."""
    x = w.x0
    for t in range(w.rounds):
        d, a, steps = {}, {}, {}
        for c in w.participants(t, x):
            r, a_i = 0.0, 0.0
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + mu * (c.y - x))
                r = w.momentum * r + (1.0 if counting == "twice" else 1.0 - c.eta * mu * a_i)
                a_i = a_i + r
                if counting == "twice":
                    a_i = (1 - c.eta * mu) * a_i + 1
            d[c.i], a[c.i], steps[c.i] = (x - c.y) / a_i, a_i, c.K
        p = w.weights(list(d))
        tau_eff = sum(p[i] * (steps if tau == "steps" else a)[i] for i in a)
        x = x - w.server_lr * tau_eff * w.average(d)
    return x


def fedavgm(w: World, beta: float) -> Tensors:
    """Hsu et al., 2019: heavy ball on the averaged update."""
    x, b = w.x0, zeros(w.x0)
    for t in range(w.rounds):
        b = beta * b + w.update(w.train(t, x, w.plain))
        x = x + w.server_lr * b
    return x


def _adaptive(
    w: World, yogi: bool, lr: float, beta1: float, beta2: float, tau: float, start: str = "", square: str = "update"
) -> Tensors:
    """Reddi et al., ICLR 2021, algorithm 2, no bias correction; the server lr scales U, `lr` the adaptive step.

    v starts at tau^2 or at zero (D-52)."""
    x, m = w.x0, zeros(w.x0)
    v = Tensors({name: np.full_like(value, 0.0 if start == "zero" else tau**2) for name, value in x.items()})
    for t in range(w.rounds):
        U = w.server_lr * w.update(w.train(t, x, w.plain))
        m = beta1 * m + (1 - beta1) * U
        squared = times(U, U) if square == "update" else times(m, m)
        if yogi:
            sign = Tensors({name: np.sign(v[name] - squared[name]) for name in v})
            v = v - (1 - beta2) * times(squared, sign)
        else:
            v = beta2 * v + (1 - beta2) * squared
        x = x + lr * Tensors({name: m[name] / (np.sqrt(v[name]) + tau) for name in m})
    return x


def fedadam(w: World, **options: Any) -> Tensors:
    return _adaptive(w, False, **options)


def fedyogi(w: World, **options: Any) -> Tensors:
    return _adaptive(w, True, **options)


def fedacg(w: World, lam: float, beta: float) -> Tensors:
    """Kim et al., CVPR 2024: clients start at x~ = x + lam b and are held near it; b stays x^{t+1} - x^t."""
    x, b = w.x0, zeros(w.x0)
    for t in range(w.rounds):
        ahead = x + lam * b
        trained = w.train(t, ahead, lambda c, batch: w.grad(c.y, batch) + beta * (c.y - c.start))
        D = w.server_lr * w.update(trained)
        x, b = ahead + D, lam * b + D
    return x


def with_momentum(w: World, gradient: Direction, alpha: float, step: str = "mean") -> Tensors:
    """q = alpha g + (1 - alpha) Delta; Delta = -sum pi_i u_i / (K_i eta_t), 0 in the first round.

    step `printed`: x <- x - eta_g Delta (D-20)."""
    x, delta = w.x0, zeros(w.x0)

    def direction(c, batch):  # type: ignore[no-untyped-def]
        return alpha * gradient(c, batch) + (1 - alpha) * delta

    for t in range(w.rounds):
        trained = w.train(t, x, direction)
        delta = -w.average({i: c.u / (c.counted * c.eta) for i, c in trained.items()})
        x = x + w.server_lr * (-delta if step == "printed" else w.update(trained))
    return x


def fedcm(w: World, alpha: float) -> Tensors:
    """Xu et al., 2021."""
    return with_momentum(w, w.plain, alpha)


def mimelite(w: World, beta: float) -> Tensors:
    """Karimireddy et al., NeurIPS 2021: SGD with momentum, m frozen on the clients; m <- beta m + sum pi_i G_i(x)."""
    x, m = w.x0, zeros(w.x0)
    for t in range(w.rounds):
        frozen = beta * m
        trained = w.train(t, x, lambda c, batch, frozen=frozen: frozen + w.grad(c.y, batch))
        m = frozen + w.average({i: w.grad(x, w.clients[i]) for i in trained})
        x = x + w.server_lr * w.update(trained)
    return x


def fedexp(w: World, epsilon: float, epsilon_scale: str = "one", test: str = "average") -> Tensors:
    """Jhunjhunwala et al., ICLR 2023: the step max(1, sum p_i |u_i|^2 / (2 (|U|^2 + eps_t))), eps_t = eps decay^2."""
    x = w.x0
    for t in range(w.rounds):
        trained = w.train(t, x, w.plain)
        p, U = w.weights(list(trained)), w.update(trained)
        eps = epsilon * w.lr_decay ** (2 * t) * (len(trained) if epsilon_scale == "cohort" else 1)
        ratio = sum(p[i] * dot(c.u, c.u) for i, c in trained.items()) / (2 * (dot(U, U) + eps))
        x = x + w.server_lr * max(1.0, ratio) * U
    return x


def feddisco(w: World, a: float, b: float, metric: str) -> Tensors:
    """Ye et al., ICML 2023: weights relu(p_i - a d_i + b), normalised; d from class shares to uniform."""
    x = w.x0
    classes = 1 + max(int(y.max()) for _, y in w.clients)
    for t in range(w.rounds):
        trained, d = w.train(t, x, w.plain), {}
        for i in trained:
            share = [float((w.clients[i][1] == k).mean()) for k in range(classes)]
            if metric == "l1":
                d[i] = sum(abs(s - 1 / classes) for s in share)
            elif metric == "l2":
                d[i] = sum((s - 1 / classes) ** 2 for s in share) ** 0.5
            elif metric == "cosine":
                d[i] = 1 - 1 / ((sum(s * s for s in share) * classes) ** 0.5)
            else:
                d[i] = sum(s * np.log(s * classes) for s in share if s > 0)
        if metric == "kl":
            d = {i: value / sum(d.values()) for i, value in d.items()}
        everyone = sum(len(w.clients[i][1]) for i in trained)
        raw = {i: max(0.0, len(w.clients[i][1]) / everyone - a * d[i] + b) for i in trained}
        step = zeros(x)
        for i, c in trained.items():
            step = step + raw[i] / sum(raw.values()) * c.u
        x = x + w.server_lr * step
    return x


def fedntd(w: World, beta: float, tau: float) -> Tensors:
    """Lee et al., NeurIPS 2022: CE + beta tau^2 KL on the not-true logits, teacher = broadcast model."""

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        out, teacher = w.net.forward(c.y, X), w.net.forward(c.start, X).z
        dz = cross_entropy(out.z, y) + beta * not_true_distillation(teacher, out.z, y, tau)
        return w.net.backward(c.y, X, out, dz=dz)[0]

    return averaging(w, direction)


def fedavg_kl(w: World, weight: float, tau: float) -> Tensors:
    """CE + weight KL(softmax(z_x/tau) || softmax(z_y/tau)): FedSOL's proximal loss in the objective."""

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        out, teacher = w.net.forward(c.y, X), w.net.forward(c.start, X).z
        return w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y) + weight * distillation(teacher, out.z, tau))[0]

    return averaging(w, direction)


def moon(w: World, mu: float, tau: float) -> Tensors:
    """Li et al., CVPR 2021: CE + mu l_con; a client's previous local model is x0 before its first activity."""
    x, previous = w.x0, [w.x0 for _ in range(w.N)]

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        h_global, h_previous = w.net.forward(c.start, X).h, w.net.forward(previous[c.i], X).h
        out = w.net.forward(c.y, X)
        dh = mu * contrastive(out.h, h_global, h_previous, tau)
        return w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y), dh=dh)[0]

    for t in range(w.rounds):
        trained = w.train(t, x, direction)
        for i, c in trained.items():
            previous[i] = c.y
        x = x + w.server_lr * w.update(trained)
    return x


def fedrcl(
    w: World, contrast: float = 1.0, relaxation: float = 1.0, tau: float = 0.05, threshold: float = 0.7
) -> Tensors:
    """Seo et al., CVPR 2024: CE + L_scl + L_pen on the inner activations before the ReLU; two negatives."""

    def direction(c: Local, batch: Batch) -> Tensors:
        X, y = batch
        out = w.net.forward(c.y, X)
        da = relaxed_contrastive(out.a, y, tau, threshold, 2, contrast, relaxation)
        return w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y), da=da)[0]

    return averaging(w, direction)
