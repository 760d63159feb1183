"""Methods that change the local loss by logits, features or inner layers: FedNTD, MOON, FedRCL (2.6, 2.8, 2.18)."""

from .nets import contrastive, cross_entropy, distillation, not_true_distillation, relaxed_contrastive
from .tensors import Tensors
from .world import World


def fedntd(w: World, beta: float, tau: float) -> Tensors:
    """Lee et al., NeurIPS 2022: CE + beta tau^2 KL on the not-true logits, teacher = broadcast model."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for X, y in c.batches:
                teacher = w.net.forward(x, X).z
                out = w.net.forward(c.y, X)
                dz = cross_entropy(out.z, y)[1] + beta * not_true_distillation(teacher, out.z, y, tau)[1]
                c.step(w.net.backward(c.y, X, out, dz=dz)[0])
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fedavg_kl(w: World, weight: float, tau: float) -> Tensors:
    """CE + weight KL(softmax(z_x/tau) || softmax(z_y/tau)): FedSOL's proximal loss in the objective."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for X, y in c.batches:
                teacher = w.net.forward(x, X).z
                out = w.net.forward(c.y, X)
                dz = cross_entropy(out.z, y)[1] + weight * distillation(teacher, out.z, tau)[1]
                c.step(w.net.backward(c.y, X, out, dz=dz)[0])
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def moon(w: World, mu: float, tau: float) -> Tensors:
    """Li et al., CVPR 2021: CE + mu l_con; a client's previous local model is x0 before its first activity."""
    x = w.x0
    previous = [w.x0 for _ in range(w.N)]
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for X, y in c.batches:
                h_global, h_previous = w.net.forward(x, X).h, w.net.forward(previous[c.i], X).h
                out = w.net.forward(c.y, X)
                dh = mu * contrastive(out.h, h_global, h_previous, tau)[1]
                c.step(w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y)[1], dh=dh)[0])
            previous[c.i] = c.y
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fedrcl(
    w: World, scl: float = 1.0, penalty: float = 1.0, tau: float = 0.05, threshold: float = 0.7, negatives: int = 2
) -> Tensors:
    """Seo et al., CVPR 2024: CE + L_scl + L_pen on the inner activations before the ReLU."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for X, y in c.batches:
                out = w.net.forward(c.y, X)
                da = relaxed_contrastive(out.a, y, tau, threshold, negatives, scl, penalty)[1]
                c.step(w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y)[1], da=da)[0])
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x
