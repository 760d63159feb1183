"""Curvature of a loss at θ: Hessian-vector products, the largest eigenvalues, directions for plots.

The loss is the mean cross-entropy over fixed samples, computed as in a test: no augmentation, no dropout, no weight
decay, running statistics if the model has them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.nn.functional import normalize

from fedray.models.network import Layout
from fedray.probes.landscape import Landscape

TOLERANCE = 1e-4
"""Relative accuracy of an eigenvalue at which Lanczos stops; products are in float32."""


def find_top_eigenvalues(
    times: Callable[[Tensor], Tensor], start: np.ndarray, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues of a symmetric matrix and their eigenvectors, by Lanczos.

    Args:
        times: product of the matrix with a float32 vector `(P,)`.
        start: float `(P,)`, the start vector of Lanczos.
        count: number of eigenvalues. P must be larger.

    Returns:
        The eigenvalues, largest by sign (not by size), descending; and their unit eigenvectors `(count, P)`.
    """

    def matvec(v: np.ndarray) -> np.ndarray:
        return times(torch.from_numpy(np.ascontiguousarray(v.reshape(-1), dtype=np.float32))).cpu().numpy()

    operator = LinearOperator((len(start), len(start)), matvec=matvec, dtype=np.float32)
    values, vectors = eigsh(operator, k=count, which="LA", v0=start.astype(np.float32), tol=TOLERANCE)
    order = np.argsort(values)[::-1]
    return values[order].astype(float), vectors.T[order]


def draw_filter_normalised(theta: Tensor, layout: Layout, rng: np.random.Generator) -> list[Tensor]:
    """Return two orthogonal random directions with filters as long as those of θ (Li et al., NeurIPS 2018).

    A filter belongs to one output: a slice of a weight's first dimension. Biases and norm layers have none
    and are 0. Each filter of the second direction is orthogonal to the same filter of the first; a filter of one
    number has no orthogonal one and is 0 in the second.

    Args:
        theta: `(P,)`.
        layout: layout of theta.
        rng: the stream to draw from.

    Returns:
        The directions, each `(P,)`.
    """
    directions: list[Tensor] = []
    for _ in range(2):
        d = torch.from_numpy(rng.standard_normal(layout.size, dtype=np.float32)).to(theta.device)
        parts, weights = layout.views(d), layout.views(theta)
        for name in layout.names:
            if parts[name].ndim < 2:
                parts[name].zero_()
                continue
            filters, like = parts[name].flatten(1), weights[name].flatten(1)
            if directions:
                first = normalize(layout.views(directions[0])[name].flatten(1), dim=1)
                filters -= (filters * first).sum(1, keepdim=True) * first
                filters *= filters.shape[1] > 1
            filters *= torch.linalg.vector_norm(like, dim=1, keepdim=True) / (
                torch.linalg.vector_norm(filters, dim=1, keepdim=True) + 1e-10
            )
        directions.append(d)
    return directions


def compute_surface(landscape: Landscape, theta: Tensor, directions: Sequence[Tensor], steps: np.ndarray) -> np.ndarray:
    """Return float64 `(len(steps), len(steps))`: entry (i, j) is the loss at θ + steps[i] d1 + steps[j] d2."""
    first, second = directions
    points = ([theta + float(a) * first + float(b) * second for b in steps] for a in steps)
    return np.array([[landscape.compute_loss(point) for point in row] for row in points])
