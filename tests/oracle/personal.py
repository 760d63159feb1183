"""Personalised methods: sections 2.28, 2.30 and 2.33 to 2.35. Random draws are handed in, as indices and noise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .nets import MLP, cross_entropy, distillation, softmax
from .tensors import Tensors
from .world import Local, World

Draw = Callable[[int, int, int, int, int], np.ndarray]
"""(round, client, step, number of the draw, size) -> positions in the client's shard."""


def local_only(w: World) -> list[Tensors]:
    """Each client's own model."""
    own = [w.x0 for _ in range(w.N)]
    for t in range(w.rounds):
        for i in w.cohorts[t]:
            c = Local(w, t, i, own[i])
            for batch in c.batches:
                c.step(w.grad(c.y, batch))
            own[i] = c.y
    return own


def perfedavg(
    w: World,
    draw: Draw,
    inner_lr: float | None = None,
    outer_lr: float | None = None,
    inner_weight_decay: float = 0.0,
    hessian_free: bool = False,
    delta: float = 0.0,
) -> Tensors:
    """Fallah et al., NeurIPS 2020, first order or Hessian-free; None: the round's lr."""
    x = w.x0
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            X, y = w.clients[c.i]
            length = c.eta if inner_lr is None else inner_lr
            for k, batch in enumerate(c.batches):
                inner, other = ((X[at], y[at]) for at in (draw(t, c.i, k, n, len(batch[1])) for n in (0, 1)))
                v = w.grad(c.y - length * (w.grad(c.y, inner) + inner_weight_decay * c.y), batch)
                q = v
                if hessian_free:
                    difference = w.grad(c.y + delta * v, other) - w.grad(c.y - delta * v, other)
                    q = (1 - length * inner_weight_decay) * v - (length / (2 * delta)) * difference
                c.step(q, eta=outer_lr)
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u)
    return x


def fedproto(
    w: World, classes: int, lam: float, average: str = "clients", prototypes: str = "trained"
) -> tuple[list[Tensors], dict[int, np.ndarray]]:
    """Tan et al., AAAI 2022: each client's own model, and the global prototype of each class that has one."""
    own, P = [w.x0 for _ in range(w.N)], {}
    for t in range(w.rounds):
        sums, parts = {}, {}
        for i in w.cohorts[t]:
            c, met = Local(w, t, i, own[i]), []
            for k, (X, y) in enumerate(c.batches):
                out = w.net.forward(c.y, X)
                n, d = out.h.shape
                dh = np.zeros_like(out.h)
                for j in range(n):
                    if y[j] in P:
                        dh[j] = lam * 2 * (out.h[j] - P[y[j]]) / (n * d)
                if k >= len(c.batches) * (w.epochs - 1) // w.epochs:
                    met += list(zip(y, out.h, strict=True))
                c.step(w.net.backward(c.y, X, out, dz=cross_entropy(out.z, y), dh=dh)[0])
            own[i] = c.y
            if prototypes != "running":
                X, y = w.clients[i]
                met = list(zip(y, w.net.forward(c.y, X).h, strict=True))
            for label in range(classes):
                if seen := [h for y_j, h in met if y_j == label]:
                    part = len(seen) if average == "samples" else 1
                    sums[label] = sums.get(label, 0) + part * np.mean(seen, axis=0)
                    parts[label] = parts.get(label, 0) + part
        P = P | {label: sums[label] / parts[label] for label in sums}
    return own, P


def knn(
    z: np.ndarray, h: np.ndarray, memory: np.ndarray, labels: np.ndarray, k: int, lam: float, scale: float
) -> np.ndarray:
    """Marfoq et al., ICML 2022: probabilities (n, C) of logits z and features h, given what is remembered."""
    p = (1 - lam) * softmax(z)
    for j in range(len(h)):
        squares = ((memory - h[j]) ** 2).sum(1)
        nearest = np.argsort(squares)[:k]
        weights = np.exp(-squares[nearest] / (h.shape[1] * scale))
        for i, weight in zip(nearest, weights / weights.sum(), strict=True):
            p[j, labels[i]] += lam * weight
    return p


@dataclass
class Generator:
    """FedGen's: Linear, BatchNorm, ReLU, Linear, with Adam's moments and the running statistics."""

    p: Tensors
    mean: np.ndarray
    var: np.ndarray
    m: Tensors
    v: Tensors

    def features(self, e: np.ndarray, y: np.ndarray) -> np.ndarray:
        """With the running statistics."""
        a = self._inner(e, y)
        n = (a - self.mean) / np.sqrt(self.var + 1e-5)
        return np.maximum(n * self.p["scale"] + self.p["shift"], 0) @ self.p["W2"].T + self.p["b2"]

    def _inner(self, e: np.ndarray, y: np.ndarray) -> np.ndarray:
        classes = self.p["W1"].shape[1] - e.shape[1]
        return np.hstack([e, np.eye(classes)[y]]) @ self.p["W1"].T + self.p["b1"]

    def learn(
        self,
        heads: list[tuple[np.ndarray, np.ndarray]],
        counts: np.ndarray,
        e: np.ndarray,
        y: np.ndarray,
        t: int,
        lr: float,
        weight_decay: float,
        diversity: float,
    ) -> None:
        """Adam's step number t, from 1, written out; heads: W, b of each client, counts (M, C)."""
        a = self._inner(e, y)
        n, classes = len(y), counts.shape[1]
        mu, var = a.mean(0), a.var(0)
        normal = (a - mu) / np.sqrt(var + 1e-5)
        pre = normal * self.p["scale"] + self.p["shift"]
        r = np.maximum(pre, 0)
        h = r @ self.p["W2"].T + self.p["b2"]
        dh = np.zeros_like(h)
        for (W, b), count in zip(heads, counts, strict=True):
            weight = (count / np.maximum(counts.sum(0), 1))[y]
            dh += (weight[:, None] * (softmax(h @ W.T + b) - np.eye(classes)[y])) @ W / n
        apart = ((e[:, None] - e) ** 2).mean(2)
        m = (apart * np.abs(h[:, None] - h).mean(2)).mean()
        signs = np.sign(h[:, None] - h)
        dh -= diversity * np.exp(-m) * 2 * (apart[:, :, None] * signs).sum(1) / (n * n * h.shape[1])
        dpre = dh @ self.p["W2"] * (pre > 0)
        dn = dpre * self.p["scale"]
        da = (dn - dn.mean(0) - normal * (dn * normal).mean(0)) / np.sqrt(var + 1e-5)
        inner = {"W1": da.T @ np.hstack([e, np.eye(classes)[y]]), "b1": da.sum(0)}
        outer = {"scale": (dpre * normal).sum(0), "shift": dpre.sum(0), "W2": dh.T @ r, "b2": dh.sum(0)}
        g = Tensors(inner | outer) + weight_decay * self.p
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * Tensors({k: d**2 for k, d in g.items()})
        m_hat, v_hat = self.m / (1 - 0.9**t), self.v / (1 - 0.999**t)
        self.p = self.p - lr * Tensors({k: m_hat[k] / (np.sqrt(v_hat[k]) + 1e-8) for k in g})
        self.mean, self.var = 0.9 * self.mean + 0.1 * mu, 0.9 * self.var + 0.1 * var * n / (n - 1)


@dataclass(frozen=True)
class Noise:
    """FedGen's draws: the fresh generator; (round, client) -> per step y~, e of the batch, e of y~; round -> y, e."""

    start: Callable[[], Generator]
    client: Callable[[int, int], Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]]
    server: Callable[[int, np.ndarray], Iterator[tuple[np.ndarray, np.ndarray]]]


def fedgen(
    w: World,
    noise: Noise,
    classes: int,
    alpha: float,
    beta: float,
    diversity: float,
    decay: float,
    lr: float,
    weight_decay: float,
    epochs: int = 20,
) -> tuple[Tensors, Generator | None]:
    """Zhu et al., ICML 2021, with the readings of D-48."""
    assert isinstance(w.net, MLP)
    x, generator, t_adam = w.x0, None, 0
    for t in range(w.rounds):
        u, heads, counts = {}, [], []
        for c in w.participants(t, x):
            draws = noise.client(t, c.i)
            for k, (X, y) in enumerate(c.batches):
                out = w.net.forward(c.y, X)
                dz, extra = cross_entropy(out.z, y), None
                if generator is not None and k < epochs * len(c.batches) // w.epochs:
                    labels, e_same, e_other = next(draws)
                    W, b = c.y["W2"], c.y["b2"]
                    target = generator.features(e_same, y) @ W.T + b
                    dz = dz + beta * decay**t * distillation(target, out.z, 1.0)
                    G = generator.features(e_other, labels)
                    dz_G = alpha * decay**t * len(labels) / len(y) * cross_entropy(G @ W.T + b, labels)
                    extra = Tensors(W1=0 * c.y["W1"], b1=0 * c.y["b1"], W2=dz_G.T @ G, b2=dz_G.sum(0))
                q = w.net.backward(c.y, X, out, dz=dz)[0]
                c.step(q if extra is None else q + extra)
            u[c.i] = c.u
            heads.append((c.y["W2"], c.y["b2"]))
            counts.append(np.bincount(w.clients[c.i][1], minlength=classes))
        table = np.array(counts)
        if generator is None:
            generator = noise.start()
        for y, e in noise.server(t, np.flatnonzero(table.sum(0))):
            t_adam += 1
            generator.learn(heads, table, e, y, t_adam, lr * decay**t, weight_decay, diversity)
        x = x + w.server_lr * w.average(u)
    return x, generator
