"""Curvature of a loss at θ: Hessian-vector products, the largest eigenvalues, directions for plots.

The loss is the mean cross-entropy over fixed samples, computed as in a test: no augmentation, no dropout, no weight
decay, running statistics if the model has them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, normalize

from fedray.client import CHUNK
from fedray.datasets.dataset import Samples
from fedray.models.network import Layout, Network, Output

TOLERANCE = 1e-4
"""Relative accuracy of an eigenvalue at which Lanczos stops; products are in float32."""


class Landscape:
    """The loss over some samples as a function of θ, float32 `(P,)`. The buffers (B,) stay as given.

    Args:
        network: the model.
        buffers: float32 `(B,)`.
        samples: the set of samples.
        indices: positions of the samples to use.
        logits: returns the generic model's logits from an output (`Algorithm.logits`).
    """

    def __init__(
        self,
        network: Network,
        buffers: Tensor,
        samples: Samples,
        indices: np.ndarray,
        logits: Callable[[Output], Tensor] = lambda output: output.logits,
    ) -> None:
        self.network, self.samples, self.indices, self.logits = network, samples, indices, logits
        network.reset(buffers)
        network.train(False)

    def loss(self, theta: Tensor) -> float:
        """Return the mean cross-entropy at θ."""
        self.network.load(theta)
        with torch.no_grad():
            return sum(float(part) for part in self._parts())

    def times(self, theta: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian at θ times v (P,); rows and columns of frozen parameters are zero."""
        self.network.load(theta)
        parameters = self.network.trained
        moving = self.network.mask_moving("all")
        views = self.network.layout.views(v * moving)
        along = [views[name] for name in self.network.layout.names if name not in self.network.layout.frozen]
        total = torch.zeros_like(theta)
        with _use_differentiable_kernels():
            for part in self._parts():
                gradients = torch.autograd.grad(part, parameters, create_graph=True, materialize_grads=True)
                slope = torch.stack([(g * u).sum() for g, u in zip(gradients, along, strict=True)]).sum()
                if slope.requires_grad:  # a loss that is linear in θ has no second derivative
                    products = torch.autograd.grad(slope, parameters, materialize_grads=True)
                    total[moving > 0] += torch.cat([h.detach().reshape(-1) for h in products])
        return total

    def _parts(self) -> Iterator[Tensor]:
        """Yield the loss, chunk by chunk of samples."""
        for start in range(0, len(self.indices), CHUNK):
            x, y = self.samples.batch(self.indices[start : start + CHUNK])
            yield cross_entropy(self.logits(self.network(x)), y, reduction="sum") / len(self.indices)


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
            if parts[name].ndim < 2 or name in layout.frozen:
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
    return np.array([[landscape.loss(theta + float(a) * first + float(b) * second) for b in steps] for a in steps])


@contextmanager
def _use_differentiable_kernels() -> Iterator[None]:
    """Disable kernels whose backward pass has no derivative: cuDNN's recurrent ones, fused attention."""
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield
