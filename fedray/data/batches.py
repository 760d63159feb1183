"""Samples on the training device: gathered, scaled and normalised batch by batch."""

import warnings

import numpy as np
import torch
from torch import Tensor

from fedray.data.augment import augmented
from fedray.data.dataset import Dataset


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor over the same memory, which may be read-only (shared with other processes): it is only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class Samples:
    """One split of a data set; uint8 images become float32, scaled to [0, 1] and normalised, when gathered."""

    def __init__(self, x: np.ndarray, y: np.ndarray, data: Dataset, device: torch.device | str) -> None:
        self._x = as_tensor(x).to(device)
        self._y = as_tensor(y).to(device)
        self._scale = self._shift = None
        self.augment = data.augment
        self._tokens = x.dtype == np.uint8 and x.ndim == 2
        if x.dtype == np.uint8 and not self._tokens:
            mean, std = (torch.tensor(value or [default], dtype=torch.float32, device=device).view(1, -1, 1, 1)
                         for value, default in ((data.mean, 0.0), (data.std, 1.0)))
            self._scale, self._shift = 1 / (255 * std), -mean / std

    def __len__(self) -> int:
        return len(self._y)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self._x.shape[1:])

    def labels(self, indices: np.ndarray) -> Tensor:
        """Labels int64 `(b,)`."""
        return self._y.index_select(0, torch.from_numpy(indices).to(self._y.device))

    def batch(self, indices: np.ndarray, augment: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Inputs float32 `(b, ...)` (token ids int64) and labels int64 `(b,)`; augmented where a generator is given."""
        index = torch.from_numpy(indices).to(self._x.device)
        x, y = self._x.index_select(0, index), self._y.index_select(0, index)
        if self._tokens:
            x = x.long()
        elif self._scale is not None and self._shift is not None:
            x = x.float().mul_(self._scale).add_(self._shift)
        if augment is not None and self.augment:
            black = x.new_zeros(1, x.shape[1], 1, 1) if self._shift is None else self._shift
            x = augmented(x, self.augment, black.expand(1, x.shape[1], 1, 1), augment)
        return x, y
