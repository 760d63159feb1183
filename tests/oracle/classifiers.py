"""Methods about the classifier: FedGELA, FedGE, LA-only, FedRS, FedLC, FedRod, FedRep, FedBABU.

Tensors that do not move are out of reach of gradient, weight decay and momentum alike."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .nets import cross_entropy
from .tensors import Tensors, restrict
from .world import Batch, Local, World, averaging


def class_counts(w: World, i: int) -> np.ndarray:
    """n_ic, by counting one label after the other."""
    classes = len(w.x0[w.net.names[-1]])
    counts = np.zeros(classes)
    for label in w.clients[i][1]:
        counts[label] += 1
    return counts


def scales(counts: np.ndarray, form: str) -> np.ndarray:
    """Phi_i: gamma Q(n_ic/n_i), gamma the reciprocal of the client's mean Q (for Q(x) = x it is C)."""
    q = {"x": lambda p: p, "exp": np.exp, "sqrt": np.sqrt}[form](counts / counts.sum())
    return len(q) * q / q.sum()


def body(w: World) -> set[str]:
    return set(w.net.names) - w.net.head


def unbiased(w: World) -> set[str]:
    """All except the head's bias, the last tensor."""
    return set(w.net.names[:-1])


def shared_scales(w: World, i: int, form: str) -> np.ndarray:
    """Phi_i with gamma_c from all clients: sum_k p_k Phi_kc = 1 for each class c, p_k = n_k / n."""
    q = {"x": lambda p: p, "exp": np.exp, "sqrt": np.sqrt}[form]
    counts = [class_counts(w, k) for k in range(w.N)]
    n = sum(count.sum() for count in counts)
    average = sum(count.sum() / n * q(count / count.sum()) for count in counts)
    return q(counts[i] / counts[i].sum()) / average


def fedgela(
    w: World, scale_w: float, phi: str = "x", softmax: str = "all", gamma: str = "client", feature_norm: str = "length"
) -> Tensors:
    """Fan et al., NeurIPS 2023: z_c = Phi_c sqrt(E_W) <m_c, h/|h|>, m_c fixed, x0's; `phi` one: FedGE.

    feature_norm `model`: z_c = Phi_c sqrt(E_W) <m_c, h>, as the code has it on a net that normalises h itself."""
    m = w.x0["W2"] / np.linalg.norm(w.x0["W2"], axis=1, keepdims=True)
    classes = len(m)
    gram = np.where(np.eye(classes) == 1, 1.0, -1 / (classes - 1))
    assert np.abs(m @ m.T - gram).max() < 1e-6
    assert np.abs(w.x0["b2"]).max() == 0

    def direction(c: Local, batch: Batch) -> Tensors:
        (X, y), counts = batch, class_counts(w, c.i)
        own = np.ones(classes) if phi == "one" else scales(counts, phi)
        factor = (shared_scales(w, c.i, phi) if gamma == "shared" else own) * np.sqrt(scale_w)
        out = w.net.forward(c.y, X)
        length = np.linalg.norm(out.h, axis=1, keepdims=True)
        length[length == 0] = np.inf
        along = out.h / length if feature_norm == "length" else out.h
        z = factor * (along @ m.T)
        if softmax == "present":
            z[:, counts == 0] = -np.inf
        dh = (cross_entropy(z, y) * factor) @ m
        if feature_norm == "length":
            dh = (dh - (dh * along).sum(1, keepdims=True) * along) / length
        return w.net.backward(c.y, X, out, dh=dh)[0]

    return averaging(w, direction, moving=body(w))


def fedge(w: World, **options: Any) -> Tensors:
    """FedGELA's classifier alone."""
    return fedgela(w, phi="one", **options)


Change = tuple[np.ndarray | float, np.ndarray | float]


def _by_logits(w: World, moving: set[str] | None, change: Callable[[np.ndarray], Change]) -> Tensors:
    """Averaging with cross-entropy on a z - m as client i's loss; change: its class counts -> (a, m)."""

    def direction(c: Local, batch: Batch) -> Tensors:
        factor, margin = change(class_counts(w, c.i))
        out = w.net.forward(c.y, batch[0])
        dz = factor * cross_entropy(factor * out.z - margin, batch[1])
        return w.net.backward(c.y, batch[0], out, dz=dz)[0]

    return averaging(w, direction, moving=moving)


def fedavg_la(w: World, phi: str = "x") -> Tensors:
    """FedGELA's LA alone: the rows of a learnt head times Phi_i."""
    return _by_logits(w, unbiased(w), lambda counts: (scales(counts, phi), 0.0))


def fedrs(w: World, alpha: float, soft: bool = False) -> Tensors:
    """Li and Zhan, KDD 2021: a_c z_c; a_c is 1 or alpha, `soft`: alpha + (1 - alpha) n_c / max n."""

    def factors(counts: np.ndarray) -> Change:
        soft_factor = alpha + (1 - alpha) * counts / counts.max()
        return (soft_factor if soft else np.where(counts > 0, 1.0, alpha)), 0.0

    return _by_logits(w, unbiased(w), factors)


def fedlc(w: World, tau: float) -> Tensors:
    """Zhang et al., ICML 2022: z_c - tau n_c^(-1/4), minus infinity if n_c = 0."""

    def margins(counts: np.ndarray) -> Change:
        with np.errstate(divide="ignore"):
            return 1.0, tau * counts**-0.25

    return _by_logits(w, None, margins)


def fedrod_with_heads(w: World) -> tuple[Tensors, list[np.ndarray]]:
    """Chen and Chao, ICLR 2022: CE(z + log n) for body and head; CE(z + P h + p) for the client's own (P, p) alone."""
    x = w.x0
    heads = [np.zeros((len(x["W2"]), x["W2"].shape[1] + 1)) for _ in range(w.N)]
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            with np.errstate(divide="ignore"):
                prior = np.log(class_counts(w, c.i))
            own, velocity = heads[c.i], np.zeros_like(heads[c.i])
            for X, y in c.batches:
                out = w.net.forward(c.y, X)
                widened = np.hstack([out.h, np.ones((len(y), 1))])
                by_own = cross_entropy(out.z + widened @ own.T, y).T @ widened
                velocity = w.momentum * velocity + by_own
                own = own - c.eta * velocity
                c.step(w.net.backward(c.y, X, out, dz=cross_entropy(out.z + prior, y))[0])
            u[c.i], heads[c.i] = c.u, own
        x = x + w.server_lr * w.average(u)
    return x, heads


def fedrod(w: World) -> Tensors:
    """The shared model of `fedrod_with_heads`."""
    return fedrod_with_heads(w)[0]


def fedbabu(w: World) -> Tensors:
    """Oh et al., ICLR 2022: the head stays as it is."""
    return averaging(w, w.plain, moving=body(w))


def fedrep(w: World, body_epochs: int, newcomer: str = "initial") -> Tensors:
    """Collins et al., ICML 2021: own head first, then the shared body for the last epochs. x's head is never used.

    newcomer `average`: a client's first head is the last cohort's average, as in the code (D-106)."""
    x = w.x0
    heads: list[Tensors | None] = [None for _ in range(w.N)]
    newcomers = restrict(x, w.net.head)
    for t in range(w.rounds):
        u, trained = {}, {}
        for i in w.cohorts[t]:
            own = heads[i]
            c = Local(w, t, i, restrict(x, body(w)) + (newcomers if own is None else own))
            steps_of_the_body = c.K // w.epochs * body_epochs
            for k, batch in enumerate(c.batches):
                c.step(w.grad(c.y, batch), moving=w.net.head if k < c.K - steps_of_the_body else body(w))
            heads[i] = trained[i] = restrict(c.y, w.net.head)
            u[i] = restrict(c.u, body(w))
        x = x + w.server_lr * w.average(u)
        newcomers = w.average(trained) if newcomer == "average" else newcomers
    return x


def gaussian(means: np.ndarray, covariance: np.ndarray, priors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """LDA's weights (C, d) and biases: w_c = S^-1 mu_c, b_c = log pi_c - mu_c' w_c / 2, S shrunk by 1e-4."""
    d = len(covariance)
    S = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / d * np.eye(d)
    W = means @ np.linalg.inv(S)
    return W, np.log(priors) - 0.5 * np.array([w @ mean for w, mean in zip(W, means, strict=True)])


def moments(h: np.ndarray, y: np.ndarray, means: np.ndarray, ridge: str, rare: str) -> tuple[np.ndarray, np.ndarray]:
    """Class means, those received for a class without enough features, and the scatter around them over n - 1."""
    own = means.copy()
    for label in range(len(means)):
        if (y == label).sum() > (2 if rare == "received" else 0):
            own[label] = h[y == label].mean(0)
    d = h.shape[1]
    scatter = sum((np.outer(each - own[label], each - own[label]) for each, label in zip(h, y, strict=True)))
    return own, scatter / (len(h) - 1) + (np.eye(d) + 1e-4 if ridge == "identity" else 1e-4 * np.eye(d))


def adapted(
    h: np.ndarray,
    y: np.ndarray,
    means: np.ndarray,
    covariance: np.ndarray,
    priors: np.ndarray,
    beta: str,
    ridge: str,
    rare: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Received and own moments, mixed by the best of 11 x 11 betas in two-fold cross-validation, up to 1e-6."""
    folds: tuple[list[int], list[int]] = ([], [])
    for label in range(len(means)):
        at = np.flatnonzero(y == label)
        if len(at) >= 2:
            folds[0].extend(at[::2])
            folds[1].extend(at[1::2])
    chosen = (0.0, 0.0)
    if beta == "local":
        chosen = (1.0, 1.0)
    elif len(folds[1]) >= 2:
        fits = [moments(h[sorted(fold)], y[sorted(fold)], means, ridge, rare) for fold in folds]
        losses = {}
        for b_S in np.arange(11) / 10:
            for b_mu in np.arange(11) / 10 if beta == "two" else [b_S]:
                loss = 0.0
                for (mu, S), other in zip(fits, folds[::-1], strict=True):
                    W, b = gaussian(b_mu * mu + (1 - b_mu) * means, b_S * S + (1 - b_S) * covariance, priors)
                    z = h[other] @ W.T + b
                    z = z - z.max(1, keepdims=True)
                    loss += (np.log(np.exp(z).sum(1)) - z[np.arange(len(other)), y[other]]).mean()
                losses[b_mu, b_S] = loss
        chosen = next(betas for betas, loss in losses.items() if loss <= min(losses.values()) + 1e-6)
    mu, S = moments(h, y, means, ridge, rare)
    return chosen[0] * mu + (1 - chosen[0]) * means, chosen[1] * S + (1 - chosen[1]) * covariance
