"""Methods whose clients keep a part, or a model of their own. Each gives x and what every client's vector is called."""

from collections.abc import Callable

import numpy as np

from .classifiers import body
from .nets import cross_entropy
from .tensors import Tensors, dot, norm, restrict, times
from .world import Batch, Local, World

Kept = tuple[Tensors, dict[str, list[Tensors]]]
Order = Callable[[int, int, str, float], np.ndarray]
"""(round, client, purpose, share) -> the samples of a pass over this share of the client's, in their order."""


def _halves(w: World, kept: set[str], newcomer: str = "initial") -> Kept:
    """FedAvg on the other tensors; `kept` ones stay with the client, who trains both at once.

    newcomer `average`: a client's first ones are the last cohort's average, as in FL-bench."""
    x, shared = w.x0, set(w.x0) - kept
    own, met, first = [restrict(x, kept) for _ in range(w.N)], set[int](), restrict(x, kept)
    for t in range(w.rounds):
        u = {}
        for i in w.cohorts[t]:
            c = Local(w, t, i, restrict(x, shared) + (own[i] if i in met else first))
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            own[i], u[i] = restrict(c.y, kept), restrict(c.u, shared)
        x, met = x + w.server_lr * w.average(u), met | set(u)
        first = w.average({i: own[i] for i in u}) if newcomer == "average" else first
    return x, {"own": [Tensors({name: part[name] for name in part if name in kept}) for part in own]}


def fedper(w: World, adapts: str = "none", newcomer: str = "initial") -> Kept:
    """Arivazhagan et al., 2019."""
    return _halves(w, w.net.head, newcomer)


def lg_fedavg(w: World, newcomer: str = "initial") -> Kept:
    """Liang et al., 2020."""
    return _halves(w, body(w), newcomer)


def fedbn(w: World) -> Kept:
    """Li et al., ICLR 2021, on a net without normalisation."""
    return _halves(w, set())


def epochs(w: World, order: Order, t: int, i: int, purpose: str, share: float = 1.0) -> list[Batch]:
    """The batches of a pass in an order of its own over a share of the samples."""
    X, y = w.clients[i]
    at = order(t, i, purpose, share)
    return [(X[at[s : s + w.batch_size]], y[at[s : s + w.batch_size]]) for s in range(0, len(at), w.batch_size)]


def ditto(w: World, order: Order, lam: float, personal_epochs: int = 0) -> Kept:
    """Li et al., ICML 2021, algorithm 1: v makes the canonical step on g(v) + lam (v - x), x the model received."""
    x, v = w.x0, [w.x0 for _ in range(w.N)]
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            own = Local(w, t, c.i, v[c.i])
            K = own.steps_per_epoch
            apart = [b for e in range(personal_epochs) for b in epochs(w, order, t, c.i, f"personal {e}")[:K]]
            for batch in apart or c.batches:
                own.step(w.grad(own.y, batch) + lam * (own.y - x))
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i], v[c.i] = c.u, own.y
        x = x + w.server_lr * w.average(u)
    return x, {"v": v}


def mixed_logits(w: World, v: Tensors, y: Tensors, a: float, batch: Batch) -> tuple[Tensors, float]:
    """Gradients by v and by a of the cross-entropy of a z_v + (1 - a) z_y."""
    X, labels = batch
    own, shared = w.net.forward(v, X), w.net.forward(y, X)
    dz = cross_entropy(a * own.z + (1 - a) * shared.z, labels)
    return w.net.backward(v, X, own, dz=a * dz)[0], float((dz * (own.z - shared.z)).sum())


def apfl(w: World, order: Order, alpha: float, adaptive: bool = False, mix: str = "parameters") -> Kept:
    """Deng et al., 2020, algorithm 1: the gradient by v of f(a v + (1 - a) w); adaptive: the step of a, clipped.

    mix `logits`: the logits of both are mixed instead, as the authors' FedTorch does."""
    x, v, a = w.x0, [w.x0 for _ in range(w.N)], [alpha] * w.N
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            own, a_i = Local(w, t, c.i, v[c.i]), a[c.i]
            for batch in c.batches:
                if mix == "logits":
                    by_v, slope = mixed_logits(w, own.y, c.y, a_i, batch)
                else:
                    g = w.grad(a_i * own.y + (1 - a_i) * c.y, batch)
                    by_v, slope = a_i * g, dot(own.y - c.y, g)
                own.step(by_v)
                c.step(w.grad(c.y, batch))
                if adaptive:
                    a_i = min(1.0, max(0.0, a_i - c.eta * slope))
            u[c.i], v[c.i], a[c.i] = c.u, own.y, a_i
        x = x + w.server_lr * w.average(u)
    return x, {"v": v} | ({"alpha": [Tensors(alpha=np.array([a_i])) for a_i in a]} if adaptive else {})


def pfedme(
    w: World,
    order: Order,
    lam: float,
    inner_steps: int,
    inner_lr: float,
    inner_decay: float = 0.0,
    tested: str = "personal",
) -> Kept:
    """T. Dinh et al., NeurIPS 2020, algorithm 1, warm start. tested `local`: w_{i,R} is kept, not theta_i."""
    x, kept = w.x0, [w.x0 for _ in range(w.N)]
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            theta = x
            for batch in c.batches:
                for _ in range(inner_steps):
                    theta = theta - inner_lr * (w.grad(theta, batch) + lam * (theta - c.y) + inner_decay * theta)
                c.step(lam * (c.y - theta))
            u[c.i], kept[c.i] = c.u, c.y if tested == "local" else theta
        x = x + w.server_lr * w.average(u)
    return x, {"personal": kept}


def fedala(
    w: World, order: Order, layers: int, share: float, weight_lr: float, start_epochs: int, threshold: float = 0.0
) -> Kept:
    """Zhang et al., AAAI 2023, local form: y = o + W (x - o) on the top tensors, W clipped to [0, 1] at each batch.

    threshold: the first training of W ends once the losses of the last batches of the last ten of more than ten passes
    deviate by less (the code, D-70)."""
    x = w.x0
    top = w.net.head if layers == 1 else set(x)
    old: list[Tensors | None] = [None] * w.N
    W: list[Tensors | None] = [None] * w.N
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            o, weights = old[c.i], W[c.i]
            if o is not None:
                gap, passes = restrict(x - o, top), 1
                if weights is None:
                    weights, passes = Tensors({name: np.ones_like(value) for name, value in x.items()}), start_epochs
                losses = []
                for _ in range(passes):
                    if len(losses) > 10 and np.std(losses[-10:]) < threshold:
                        break
                    for batch in epochs(w, order, t, c.i, "mix", share):
                        y = x - gap + times(weights, gap)
                        z, labels = w.net.forward(y, batch[0]).z, batch[1]
                        loss = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels])
                        step = times(w.grad(y, batch), gap)
                        weights = Tensors({n: np.clip(weights[n] - weight_lr * step[n], 0, 1) for n in weights})
                    losses.append(loss)
                c.y, W[c.i] = x - gap + times(weights, gap), weights
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            u[c.i], old[c.i] = c.u, c.y
        x = x + w.server_lr * w.average(u)
    return x, {
        "old": [x if o is None else o for o in old],
        "w": [Tensors({} if each is None else {n: each[n] for n in each if n in top}) for each in W],
    }


def class_means(w: World, y: Tensors, i: int) -> dict[int, np.ndarray]:
    """Label -> mean features of the client's samples of it."""
    X, labels = w.clients[i]
    h = w.net.forward(y, X).h
    return {int(label): h[labels == label].mean(0) for label in np.unique(labels)}


def fedas(
    w: World, order: Order, align_lr: float, align_batch: int, fisher: str = "batches", aligns_with: str = "received"
) -> Kept:
    """Yang et al., CVPR 2024, with a body to align per client; fisher `samples`: F_i over single samples.

    aligns_with `initial`: a client's first alignment is with the initial model (the code, D-124)."""
    x = w.x0
    heads = [restrict(x, w.net.head) for _ in range(w.N)]
    bodies: list[Tensors | None] = [None] * w.N
    for t in range(w.rounds):
        moved, information = restrict(x, set()), 0.0
        for i in w.cohorts[t]:
            last, (X, labels) = bodies[i], w.clients[i]
            c = Local(w, t, i, restrict(x, body(w)) + heads[i])
            first = c.y if aligns_with == "received" else w.x0
            means = class_means(w, first if last is None else last + heads[i], i)
            at = order(t, i, "alignment", 1)
            for start in range(0, len(at), align_batch):
                part = at[start : start + align_batch]
                out, y = w.net.forward(c.y, X[part]), labels[part]
                d = out.h.shape[1]
                dh = np.array([2 * (out.h[j] - means[y[j]]) / d / (y == y[j]).sum() for j in range(len(y))])
                c.y = c.y - align_lr * restrict(w.net.backward(c.y, X[part], out, dh=dh)[0], body(w))
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            at, size = order(t, i, "fisher", 1), 1 if fisher == "samples" else min(w.batch_size, len(labels))
            parts = [at[start : start + size] for start in range(0, len(at), size)]
            squares = [norm(w.grad(c.y, (X[part], labels[part]))) ** 2 for part in parts]
            F = float(np.mean(squares) if fisher == "samples" else np.sum(squares))
            heads[i], bodies[i] = restrict(c.y, w.net.head), restrict(c.y, body(w))
            moved, information = moved + F * restrict(c.u, body(w)), information + F
        x = x + w.server_lr * (moved / information)
    return x, {
        "own": [Tensors({name: head[name] for name in head if name in w.net.head}) for head in heads],
        "body": [Tensors({} if b is None else {name: b[name] for name in b if name in body(w)}) for b in bodies],
    }
