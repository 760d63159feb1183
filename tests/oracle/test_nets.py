"""The oracle's own gradients, against central differences in float64.

With step h = 1e-6 and derivatives of order 1 the error of a central difference is about 1e-16/h = 1e-10; the bound
is 1e-7, and every formula below misses it by orders of magnitude if a factor or a sign is wrong.
"""

from collections.abc import Callable

import numpy as np
import pytest

from .nets import (
    MLP,
    NormedMLP,
    SoftmaxRegression,
    contrastive,
    cross_entropy,
    distillation,
    not_true_distillation,
    relaxed_contrastive,
)
from .tensors import Tensors

rng = np.random.default_rng(3)
X = rng.normal(size=(7, 4))
Y = np.array([0, 1, 2, 0, 1, 1, 3])
Z = rng.normal(size=(7, 5))
TEACHER = rng.normal(size=(7, 5))
H, H_GLOBAL, H_PREVIOUS = (rng.normal(size=(7, 6)) for _ in range(3))
NETS = {
    "softmax": (SoftmaxRegression(), Tensors(W=rng.normal(size=(5, 4)), b=rng.normal(size=5))),
    "mlp": (
        MLP(),
        Tensors(W1=rng.normal(size=(6, 4)), b1=rng.normal(size=6), W2=rng.normal(size=(5, 6)), b2=rng.normal(size=5)),
    ),
    "normed": (
        NormedMLP(),
        Tensors(
            {
                name: rng.normal(size=shape)
                for name, shape in zip(NormedMLP.names, NormedMLP.shapes(4, 6, 5), strict=True)
            }
        ),
    ),
}


def slopes(value: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of an array."""
    result = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += h
        down[index] -= h
        result[index] = (value(up) - value(down)) / (2 * h)
    return result


LOSSES = {
    "cross-entropy": (lambda z: cross_entropy(z, Y), Z),
    "distillation": (lambda z: distillation(TEACHER, z, 3.0), Z),
    "not-true distillation": (lambda z: not_true_distillation(TEACHER, z, Y, 2.0), Z),
    "contrastive": (lambda h: contrastive(h, H_GLOBAL, H_PREVIOUS, 0.5), H),
    "relaxed contrastive": (lambda f: relaxed_contrastive(f, Y, 0.05, -0.5, 2, 0.7, 1.3), H),
    "relaxed contrastive, far mates": (lambda f: relaxed_contrastive(f, Y, 0.5, 0.7, 2, 0.7, 1.3), H),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_derivative_of_a_loss(name: str) -> None:
    loss, at = LOSSES[name]
    derivative = loss(at)[1]
    assert np.abs(derivative).max() > 1e-3
    np.testing.assert_allclose(derivative, slopes(lambda v: loss(v)[0], at), atol=1e-7)


@pytest.mark.parametrize("name", NETS)
def test_backward(name: str) -> None:
    """A scalar that depends on logits, features and inner activations: CE(z) + <C, h> + <D, a>."""
    net, p = NETS[name]
    out = net.forward(p, X)
    dh = rng.normal(size=out.h.shape)
    extra = {} if out.a is None else {"da": rng.normal(size=out.a.shape)}

    def value(p: Tensors, X: np.ndarray) -> float:
        out = net.forward(p, X)
        inner = 0.0 if out.a is None else float((extra["da"] * out.a).sum())
        return cross_entropy(out.z, Y)[0] + float((dh * out.h).sum()) + inner

    gradient, dX = net.backward(p, X, out, dz=cross_entropy(out.z, Y)[1], dh=dh, **extra)
    np.testing.assert_allclose(dX, slopes(lambda v: value(p, v), X), atol=1e-7)
    for tensor in net.names:
        numeric = slopes(lambda v, tensor=tensor: value(Tensors(p | {tensor: v}), X), p[tensor])
        np.testing.assert_allclose(gradient[tensor], numeric, atol=1e-7)
