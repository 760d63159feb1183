"""Two small classifiers and the losses of the papers, with gradients written out by hand (float64).

A net maps inputs X (n, d) to logits z (n, C); on the way it shows its features h (the input of the last layer) and its
inner activations a (before the ReLU). `backward` takes the derivatives of a scalar with respect to z, h and a and
returns those with respect to the parameters and to X. A loss returns its derivative with respect to z,
h or a. So any gradient of the papers is `net.backward(p, X, out, dz=..., dh=..., da=...)`."""

from dataclasses import dataclass

import numpy as np

from .tensors import Tensors


@dataclass(frozen=True)
class Out:
    """Logits z (n, C), features h (n, m), inner activations a (n, m) (None if the net has no inner layer)."""

    z: np.ndarray
    h: np.ndarray
    a: np.ndarray | None


class SoftmaxRegression:
    """z = W x + b. The features are the inputs; everything is head."""

    names = ("W", "b")
    head = {"W", "b"}
    weights = {"W"}

    @staticmethod
    def shapes(inputs: int, hidden: int, classes: int) -> list[tuple[int, ...]]:
        return [(classes, inputs), (classes,)]

    def forward(self, p: Tensors, X: np.ndarray) -> Out:
        return Out(X @ p["W"].T + p["b"], X, None)

    def backward(
        self, p: Tensors, X: np.ndarray, out: Out, dz: np.ndarray | float = 0.0, dh: np.ndarray | float = 0.0
    ) -> tuple[Tensors, np.ndarray]:
        dz = dz + np.zeros_like(out.z)
        return Tensors(W=dz.T @ X, b=dz.sum(0)), dz @ p["W"] + dh


class MLP:
    """a = W1 x + b1, h = max(a, 0), z = W2 h + b2. The head is the last layer."""

    names = ("W1", "b1", "W2", "b2")
    head = {"W2", "b2"}
    weights = {"W1", "W2"}

    @staticmethod
    def shapes(inputs: int, hidden: int, classes: int) -> list[tuple[int, ...]]:
        return [(hidden, inputs), (hidden,), (classes, hidden), (classes,)]

    def __init__(self) -> None:
        self.margin = np.inf
        """Smallest |a| seen. Below about 1e-6 a float32 run may sit on the other side of the ReLU's kink."""

    def forward(self, p: Tensors, X: np.ndarray) -> Out:
        a = X @ p["W1"].T + p["b1"]
        self.margin = min(self.margin, float(np.abs(a).min()))
        h = self.features(p, np.maximum(a, 0.0))
        return Out(h @ p["W2"].T + p["b2"], h, a)

    def features(self, p: Tensors, r: np.ndarray) -> np.ndarray:
        """h of r = max(a, 0)."""
        return r

    def features_back(self, p: Tensors, r: np.ndarray, dh: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """dr, and the gradient of the tensors between r and h."""
        return dh, {}

    def backward(
        self,
        p: Tensors,
        X: np.ndarray,
        out: Out,
        dz: np.ndarray | float = 0.0,
        dh: np.ndarray | float = 0.0,
        da: np.ndarray | float = 0.0,
    ) -> tuple[Tensors, np.ndarray]:
        dz = dz + np.zeros_like(out.z)
        dr, between = self.features_back(p, np.maximum(out.a, 0.0), dz @ p["W2"] + dh)
        da = dr * (out.a > 0) + da
        return Tensors(W1=da.T @ X, b1=da.sum(0), **between, W2=dz.T @ out.h, b2=dz.sum(0)), da @ p["W1"]


class NormedMLP(MLP):
    """The MLP with batch normalisation of r = max(a, 0): h = w (r - mean) / sqrt(var + 1e-5) + v, var over n.

    By the usual chain rule dr = w / s (dh - mean(dh) - e mean(dh e)), e the normalised r, s its deviation."""

    names = ("W1", "b1", "w", "v", "W2", "b2")
    weights = {"W1", "w", "W2"}

    @staticmethod
    def shapes(inputs: int, hidden: int, classes: int) -> list[tuple[int, ...]]:
        return [(hidden, inputs), (hidden,), (hidden,), (hidden,), (classes, hidden), (classes,)]

    @staticmethod
    def _normalised(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        deviation = np.sqrt(r.var(0) + 1e-5)
        return (r - r.mean(0)) / deviation, deviation

    def features(self, p: Tensors, r: np.ndarray) -> np.ndarray:
        return p["w"] * self._normalised(r)[0] + p["v"]

    def features_back(self, p: Tensors, r: np.ndarray, dh: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        e, deviation = self._normalised(r)
        dr = p["w"] / deviation * (dh - dh.mean(0) - e * (dh * e).mean(0))
        return dr, {"w": (dh * e).sum(0), "v": dh.sum(0)}


def softmax(z: np.ndarray) -> np.ndarray:
    """Row by row."""
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cross_entropy(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of the batch mean of -log softmax(z)_y: (softmax(z) - onehot(y)) / n."""
    p = softmax(z)
    p[np.arange(len(y)), y] -= 1
    return p / len(y)


def distillation(teacher: np.ndarray, z: np.ndarray, tau: float) -> np.ndarray:
    """Gradient of the mean KL(softmax(teacher/tau) || softmax(z/tau)): (q - p) / (tau n), p teacher, q student."""
    return (softmax(z / tau) - softmax(teacher / tau)) / (tau * len(z))


def not_true_distillation(teacher: np.ndarray, z: np.ndarray, y: np.ndarray, tau: float) -> np.ndarray:
    """tau^2 x distillation on the C-1 logits that are not the true class's, whose derivative is 0."""
    n, classes = z.shape
    others = np.array([[c for c in range(classes) if c != label] for label in y])
    rows = np.arange(n)[:, None]
    dz = np.zeros_like(z)
    dz[rows, others] = tau**2 * distillation(teacher[rows, others], z[rows, others], tau)
    return dz


def cosine(h: np.ndarray, r: np.ndarray) -> tuple[float, np.ndarray]:
    """cos(h, r) of two vectors and its derivative with respect to h: r/(|h||r|) - cos h/|h|^2.

    A sample whose features are all dead has no direction: 0, and no derivative (its ReLUs would stop it anyway)."""
    a, b = np.linalg.norm(h), np.linalg.norm(r)
    if a == 0 or b == 0:
        return 0.0, np.zeros_like(h)
    s = float(h @ r / (a * b))
    return s, r / (a * b) - s * h / a**2


def contrastive(h: np.ndarray, h_global: np.ndarray, h_previous: np.ndarray, tau: float) -> np.ndarray:
    """MOON: of the batch mean of -log(e^{s_g/tau} / (e^{s_g/tau} + e^{s_p/tau})).

    With r = e^{s_p/tau} / (e^{s_g/tau} + e^{s_p/tau}): d/ds_g = -r/tau, d/ds_p = +r/tau."""
    dh = np.zeros_like(h)
    for j in range(len(h)):
        s_g, d_g = cosine(h[j], h_global[j])
        s_p, d_p = cosine(h[j], h_previous[j])
        e_g, e_p = np.exp(s_g / tau), np.exp(s_p / tau)
        dh[j] = e_p / (e_g + e_p) * (d_p - d_g) / tau / len(h)
    return dh


def relaxed_contrastive(
    f: np.ndarray, y: np.ndarray, tau: float, threshold: float, negatives: int, contrast: float, relaxation: float
) -> np.ndarray:
    """FedRCL at one layer: of the batch mean over anchors j of contrast L_scl + relaxation L_pen, activations f (n, m).

    L_scl: -log softmax of the least similar same-class sample (itself if alone) against the most similar other-class
    ones. L_pen: -log(e^{1/tau}/(e^{1/tau} + e^{s/tau})), s of that same-class sample if >= threshold, else -1."""
    n, df = len(f), np.zeros_like(f)

    def push(j: int, i: int, slope: float) -> None:  # d(value) = slope d cos(f_j, f_i); a sample's own cosine is 1
        if i != j:
            df[j] += slope * cosine(f[j], f[i])[1]
            df[i] += slope * cosine(f[i], f[j])[1]

    for j in range(n):
        s = [cosine(f[j], f[i])[0] if i != j else 1.0 for i in range(n)]
        mates = [i for i in range(n) if y[i] == y[j] and i != j]
        positive = min(mates, key=lambda i: s[i]) if mates else j
        strangers = sorted((i for i in range(n) if y[i] != y[j]), key=lambda i: -s[i])[:negatives]
        chosen = [positive, *strangers]
        e = np.exp([s[i] / tau for i in chosen])
        for i, part in zip(chosen, e / e.sum(), strict=True):
            push(j, i, contrast * (part - (i == positive)) / tau / n)
        if mates and s[positive] >= threshold:
            e_self, e_mate = np.exp(1 / tau), np.exp(s[positive] / tau)
            push(j, positive, relaxation * e_mate / (e_self + e_mate) / tau / n)
    return df
