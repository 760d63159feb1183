"""The three workloads, in NumPy and plain PyTorch only, because the other systems' environments import this, too."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

SCALE, SHIFT = 1 / (255 * 0.25), -0.5 / 0.25
"""Images as the models see them: SCALE x byte + SHIFT, for a mean of 0.5 and a deviation of 0.25."""


class MLP(nn.Sequential):
    """64-32-10."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class CNN(nn.Sequential):
    """Convolutions of 3x3 to 32 and 64 channels, pooling, a hidden layer of 128; without dropout."""

    channels_last = True  # read by fedray, as in any user's model

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class LeNet(nn.Sequential):
    """Two convolutions of 5x5 with 64 channels, then 1600-384-192-10: 797,962 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1600, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 10),
        )


@dataclass(frozen=True)
class Workload:
    """clients x samples (equally many per client), in rounds of `cohort` clients; SGD with lr 0.01."""

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    cohort: int
    epochs: int
    batch: int
    module: Callable[[], nn.Module]
    lr: float = 0.01

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (uint8 images, or float32 features) and labels of all clients, one after the other."""
        rng, n = np.random.default_rng(0), self.clients * self.samples
        labels = rng.integers(0, 10, n)
        if len(self.shape) == 3:
            return rng.integers(0, 256, (n, *self.shape), dtype=np.uint8), labels
        return rng.standard_normal((n, *self.shape), dtype=np.float32), labels

    def cohorts(self, rounds: int) -> list[list[int]]:
        """Return the cohorts, the same for every system."""
        rng = np.random.default_rng(1)
        return [sorted(map(int, rng.choice(self.clients, self.cohort, replace=False))) for _ in range(rounds)]

    def seeded(self) -> nn.Module:
        """Return the module with which every system begins."""
        torch.manual_seed(0)
        return self.module()


WORKLOADS = {
    work.name: work
    for work in (
        Workload("w0", 1000, 20, (64,), 100, 1, 20, MLP),
        Workload("w1", 1000, 50, (3, 32, 32), 50, 1, 10, CNN),
        Workload("w2", 100, 500, (3, 32, 32), 10, 2, 50, LeNet),
    )
}


def as_input(x: Tensor) -> Tensor:
    """Turn a batch of the arrays into the models' input."""
    return x.float().mul_(SCALE).add_(SHIFT) if x.dtype == torch.uint8 else x
