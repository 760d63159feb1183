"""FedSOL (Lee et al., CVPR 2024): section 2.24, its strategies, the projection, and its mix with other methods."""

from typing import Any

import numpy as np

from .nets import contrastive, distillation
from .tensors import Tensors, dot, mean, norm, restrict, times, total, zeros
from .world import Batch, Local, World, averaging


def adaptive_radius(y: Tensors, x: Tensors, radius: str) -> Tensors:
    """Lambda: 1 (`fixed`), or |y - x| with norm 1: each column (`dim0`), each tensor, or each layer: W1 and b1, ..."""
    if radius == "fixed":
        return Tensors({name: np.ones_like(value) for name, value in y.items()})
    result, moved = Tensors(), y - x
    for name, value in moved.items():
        if radius == "dim0":
            size = np.linalg.norm(value, axis=0, keepdims=True)
        elif radius == "tensor":
            size = np.linalg.norm(value)
        else:
            size = np.sqrt(sum((v**2).sum() for other, v in moved.items() if other[1:] == name[1:]))
        result[name] = np.abs(value) / np.maximum(size, 1e-12)
    return result


def perturbation(w: World, y: Tensors, x: Tensors, g_p: Tensors, rho: float, target: str, radius: str) -> Tensors:
    """e = rho Lambda g_p / (||g_p|| + 1e-12) on the target's tensors; 0 if g_p is (D-34)."""
    everything = set(w.net.names)
    g_p = restrict(g_p, {"head": w.net.head, "body": everything - w.net.head, "all": everything}[target])
    if norm(g_p) < 1e-8:
        return zeros(y)
    return (rho / (norm(g_p) + 1e-12)) * times(adaptive_radius(y, x, radius), g_p)


def grad_kl(w: World, y: Tensors, x: Tensors, tau: float, batch: Batch) -> Tensors:
    """Gradient at y of the batch mean of KL(softmax(z_x/tau) || softmax(z_y/tau))."""
    X = batch[0]
    out = w.net.forward(y, X)
    return w.net.backward(y, X, out, dz=distillation(w.net.forward(x, X).z, out.z, tau))[0]


def fedsol(
    w: World,
    rho: float,
    proximal: dict[str, Any],
    perturb: str = "head",
    radius: str = "adaptive",
    lambda_norm: str = "dim0",
    strategy: str = "A1",
) -> Tensors:
    """The KL proximal loss, or another method's (Table 4); strategy A1 is FedSOL, the others are table 10's (D-30)."""
    form = "fixed" if radius == "fixed" else lambda_norm
    if proximal["name"] != "kl":
        return combined(w, rho, perturb, form, **{key: proximal[key] for key in proximal if key != "mu"})
    tau, b = proximal["tau"], proximal.get("weight", 1.0)

    def direction(c: Local, batch: Batch) -> Tensors:
        x, y = c.start, c.y
        g_l, g_p = w.grad(y, batch), grad_kl(w, y, x, tau, batch)
        e_p = perturbation(w, y, x, g_p, rho, perturb, form)
        e_c = perturbation(w, y, x, g_p + g_l, rho, perturb, form)
        match strategy:
            case "A0":
                return g_l
            case "A1":
                return w.grad(y + e_p, batch)
            case "A2":
                return g_l + b * grad_kl(w, y + e_p, x, tau, batch)
            case "A3":
                return w.grad(y + e_p, batch) + b * grad_kl(w, y + e_p, x, tau, batch)
            case "A4":
                return w.grad(y + e_c, batch) + b * grad_kl(w, y + e_c, x, tau, batch)
            case "A5":
                return g_l + g_p
        assert strategy == "A6"
        return w.grad(y + e_p, batch) + b * g_p

    return averaging(w, direction)


def projection(w: World, proximal: dict[str, Any]) -> Tensors:
    """Table 1: what of g_l conflicts with g_p is removed; g_p of the KL loss, or (`fedprox`) of 1/2 ||y - x||^2."""

    def direction(c: Local, batch: Batch) -> Tensors:
        g_l = w.grad(c.y, batch)
        g_p = c.y - c.start if proximal["name"] == "fedprox" else grad_kl(w, c.y, c.start, proximal["tau"], batch)
        return g_l - (dot(g_l, g_p) / dot(g_p, g_p)) * g_p if dot(g_l, g_p) < 0 else g_l

    return averaging(w, direction)


def combined(
    w: World, rho: float, target: str, radius: str, name: str, alpha: float = 0.1, tau: float = 0.5
) -> Tensors:
    """Table 4's combined column: g_p from another method's proximal term, q = g(y + e), its bookkeeping unchanged.

    name fedprox, fednova: g_p = y - x. feddyn: g_p = -lambda_i + alpha (y - x). scaffold: g_p = c - c_i. moon: the
    contrastive gradient (temperature tau). Weights in front of them vanish when g_p is normalised."""
    x = w.x0
    dual, h = w.each(x), zeros(x)
    c_client, c_server = w.each(x), zeros(x)
    previous = [w.x0 for _ in range(w.N)]
    for t in range(w.rounds):
        u, change, a = {}, [], {}
        for c in w.participants(t, x):
            r, a[c.i] = 0.0, 0.0
            for batch in c.batches:
                if name in ("fedprox", "fednova"):
                    g_p = c.y - x
                elif name == "feddyn":
                    g_p = -dual[c.i] + alpha * (c.y - x)
                elif name == "scaffold":
                    g_p = c_server - c_client[c.i]
                else:
                    X = batch[0]
                    out, before = w.net.forward(c.y, X), w.net.forward(previous[c.i], X)
                    dh = contrastive(out.h, w.net.forward(x, X).h, before.h, tau)
                    g_p = w.net.backward(c.y, X, out, dh=dh)[0]
                e = perturbation(w, c.y, x, g_p, rho, target, radius)
                c.step(w.grad(c.y + e, batch))
                r = w.momentum * r + 1.0
                a[c.i] += r
            u[c.i] = c.u
            dual[c.i] = dual[c.i] - alpha * c.u
            new = c_client[c.i] - c_server - c.u / (c.K * c.eta)
            change.append(new - c_client[c.i])
            c_client[c.i], previous[c.i] = new, c.y
        c_server = c_server + total(change) / w.N
        if name == "fednova":
            p = w.weights(list(u))
            d = {i: u[i] / a[i] for i in u}
            x = x + w.server_lr * sum(p[i] * a[i] for i in u) * w.average(d)
        else:
            x = x + w.server_lr * w.average(u)
        if name == "feddyn":
            h = h - (alpha / w.N) * total(list(u.values()))
            x = x - h / alpha
            assert norm(h - mean(dual)) < 1e-12
    return x
