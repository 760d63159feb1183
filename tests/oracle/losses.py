"""Methods that change the local loss by logits, features or inner layers: FedNTD, MOON, FedRCL (2.6, 2.8, 2.18)."""

from .nets import contrastive, cross_entropy, distillation, not_true_distillation, relaxed_contrastive
from .tensors import Tensors
from .world import Batch, Local, World, averaging


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
