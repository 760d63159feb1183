"""Vectors of a model as the oracle keeps them: dictionaries tensor name -> float64 array, with the usual arithmetic."""

from __future__ import annotations

import numpy as np


class Tensors(dict[str, np.ndarray]):
    """One number per parameter, tensor by tensor."""

    def __add__(self, other: Tensors) -> Tensors:
        return Tensors({name: self[name] + other[name] for name in self})

    def __sub__(self, other: Tensors) -> Tensors:
        return Tensors({name: self[name] - other[name] for name in self})

    def __rmul__(self, factor: float) -> Tensors:
        return Tensors({name: factor * self[name] for name in self})

    def __truediv__(self, divisor: float) -> Tensors:
        return Tensors({name: self[name] / divisor for name in self})

    def __neg__(self) -> Tensors:
        return Tensors({name: -self[name] for name in self})


def zeros(like: Tensors) -> Tensors:
    """The origin."""
    return Tensors({name: np.zeros_like(value) for name, value in like.items()})


def times(a: Tensors, b: Tensors) -> Tensors:
    """Element by element."""
    return Tensors({name: a[name] * b[name] for name in a})


def dot(a: Tensors, b: Tensors) -> float:
    """One inner product over all tensors."""
    return float(sum((a[name] * b[name]).sum() for name in a))


def norm(a: Tensors) -> float:
    """One Euclidean norm over all tensors."""
    return dot(a, a) ** 0.5


def unit(a: Tensors, eps: float = 1e-7) -> Tensors:
    """a / (||a|| + eps); the origin is unchanged. eps is FL-Simulator's."""
    return a / (norm(a) + eps)


def restrict(a: Tensors, names: set[str]) -> Tensors:
    """a on the named tensors, 0 elsewhere."""
    return Tensors({name: value if name in names else np.zeros_like(value) for name, value in a.items()})


def mean(parts: list[Tensors]) -> Tensors:
    """The unweighted mean."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def total(parts: list[Tensors]) -> Tensors:
    """The sum."""
    return len(parts) * mean(parts)
