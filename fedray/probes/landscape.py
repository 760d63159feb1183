"""The loss of some samples as a function of θ: its value and Hessian-vector products."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from fedray.client import CHUNK
from fedray.datasets.dataset import Samples
from fedray.models.network import Network, Output


class Landscape:
    """The loss over some samples as a function of θ, float32 `(P,)`. The buffers `(B,)` do not change.

    `indices` are positions of the samples to use; `logits` is the generic model's (`Algorithm.logits`).
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

    def compute_loss(self, theta: Tensor) -> float:
        """Return the mean cross-entropy at θ."""
        self.network.load(theta)
        with torch.no_grad():
            return sum(float(part) for part in self._iter_losses())

    def multiply_hessian(self, theta: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian at θ times v `(P,)`."""
        self.network.load(theta)
        parameters = self.network.trained
        views = self.network.layout.views(v)
        along = [views[name] for name in self.network.layout.names]
        total = torch.zeros_like(theta)
        # cuDNN's recurrent kernels and fused attention have no derivative of their backward pass
        with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            for part in self._iter_losses():
                gradients = torch.autograd.grad(part, parameters, create_graph=True, materialize_grads=True)
                slope = torch.stack([(g * u).sum() for g, u in zip(gradients, along, strict=True)]).sum()
                if slope.requires_grad:  # a loss that is linear in θ has no second derivative
                    products = torch.autograd.grad(slope, parameters, materialize_grads=True)
                    total += torch.cat([h.detach().reshape(-1) for h in products])
        return total

    def _iter_losses(self) -> Iterator[Tensor]:
        """Yield the loss, chunk by chunk of samples."""
        for start in range(0, len(self.indices), CHUNK):
            x, y = self.samples.make_batch(self.indices[start : start + CHUNK])
            yield cross_entropy(self.logits(self.network(x)), y, reduction="sum") / len(self.indices)
