"""Preprocessing that travels with a trained model: from pictures as they are stored to a model's inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate


class Preprocess(nn.Module):
    """Scale pictures of 0 to 255 to [0, 1] and normalise them, as a run does: (x / 255 - mean) / std.

    Pictures of another size are resized (bilinear, anti-aliased).
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: Sequence[int]) -> None:
        super().__init__()
        shift, scale = (torch.tensor(list(values)).view(1, -1, 1, 1) for values in (mean or (0.0,), std or (1.0,)))
        self.register_buffer("scale", 1 / (255 * scale))
        self.register_buffer("shift", -shift / scale)
        self.size = tuple(size)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return float32 `(n, c, h, w)` of uint8 or float32 pictures `(n, c, h, w)` with values from 0 to 255."""
        x = pictures.float()
        if tuple(x.shape[-2:]) != self.size:
            x = interpolate(x, size=self.size, mode="bilinear", antialias=True).round().clamp(0, 255)
        return x * self.scale + self.shift
