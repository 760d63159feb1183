"""What a data set is once it is in memory, whatever files it came from."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedray.data.augment import Transform
from fedray.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """Arrays of one data set.

    x_train, x_test: uint8 images `(n, channels, height, width)`, scaled by 1/255 and normalised when a batch is
    gathered; or float32 `(n, ...)`, used as they are; or uint8 token ids `(n, length)`, int64 when gathered.
    y_train, y_test: int64 labels `(n,)` in `[0, num_classes)`.
    mean, std: one number per channel (of images in [0, 1]), or empty for no normalisation.
    client_train, client_test: int64 natural client id of each sample, or None.
    augment: transforms of the training images, in the order they are applied.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    augment: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            clients = getattr(self, f"client_{part}")
            if len(x) != len(y):
                raise UserError(f"data {self.name}: x_{part} has {len(x)} samples, y_{part} has {len(y)} labels")
            if len(y) == 0:
                raise UserError(f"data {self.name}: the {part} split is empty")
            if y.min() < 0 or y.max() >= self.num_classes:
                raise UserError(f"data {self.name}: y_{part} holds labels {y.min()}..{y.max()}, "
                                f"allowed are 0..{self.num_classes - 1}")
            if clients is not None and len(clients) != len(y):
                raise UserError(f"data {self.name}: client_{part} has {len(clients)} ids, y_{part} {len(y)} labels")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise UserError(f"data {self.name}: x_train samples have shape {self.x_train.shape[1:]}, "
                            f"x_test samples {self.x_test.shape[1:]}")
        if self.augment and self.x_train.ndim != 4:
            raise UserError(f"data.augment: data {self.name} are no images, their samples have shape "
                            f"{self.x_train.shape[1:]}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model receives it."""
        return tuple(self.x_train.shape[1:])

    @property
    def tokens(self) -> bool:
        """Whether the inputs are token ids."""
        return self.x_train.dtype.kind == "i" or (self.x_train.dtype == np.uint8 and self.x_train.ndim == 2)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything above but the name: how data enter the identity of a cell."""
        hashed = hashlib.sha256(repr((self.num_classes, self.mean, self.std)).encode())
        hashed.update("".join(map(repr, self.augment)).encode())
        for name in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test"):
            array = getattr(self, name)
            if array is not None:
                hashed.update(f"{name}{array.dtype}{array.shape}".encode())
                hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def resized(self, size: int) -> "Dataset":
        """The same images at `size` x `size` pixels (bilinear, anti-aliased), for models with a fixed input size."""
        return replace(self, x_train=_resize(self.x_train, size), x_test=_resize(self.x_test, size))


def _resize(images: np.ndarray, size: int) -> np.ndarray:
    pieces = []
    for start in range(0, len(images), 1000):
        x = torch.from_numpy(np.ascontiguousarray(images[start:start + 1000])).float()
        x = torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
        pieces.append((x.round().clamp(0, 255).to(torch.uint8) if images.dtype == np.uint8 else x).numpy())
    return np.concatenate(pieces)
