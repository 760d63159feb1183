"""Images and text from a formula, to try out a sweep without its data."""

import math
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets.base import DataSource, Images, Published, Recipe
from fedray.datasets.dataset import Dataset

VALUES = 4 * 10**9
"""Maximum number of pixels or characters to generate; a larger number is assumed to be a typo."""
PATCHES = 4
"""A class's pattern is 4 x 4 patches per channel, for any image size."""


class Synthetic(Images):
    """Generated images of any shape and number of classes, always the same: a pattern of 4x4 patches per class, with
    independent noise per pixel. Balanced classes. For testing a sweep; its accuracies mean nothing. Needs no files.
    """

    name = "synthetic"
    needs_files = False
    recipes = {"plain": Recipe((0.5,), (0.25,))}
    classes: int = Field(10, gt=1, le=100_000, description="number of classes")
    shape: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = Field(
        (3, 32, 32), description="channels, height, width"
    )
    train_samples: int = Field(2_000, gt=0, description="training images")
    test_samples: int = Field(500, gt=0, description="test images")
    clients: int = Field(0, ge=0, description="number of natural clients, of unequal sizes; 0 for none")
    noise: float = Field(
        0.25,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of a pixel's noise; the "
        "patches of two classes differ by 0.29 (rms; images are in [0, 1])",
    )

    @model_validator(mode="after")
    def _refuse_large(self) -> Self:
        refuse_typos((self.train_samples + self.test_samples + self.classes) * math.prod(self.shape))
        return self

    def get_expected(self) -> Published:
        counts = self.train_samples, self.test_samples, self.classes
        return Published(*counts, self.shape, clients=self.clients or None, size="none")

    def read(self) -> Dataset:
        channels, height, width = self.shape
        # Uniform in [0.15, 0.85], which leaves the noise some room: two of them differ by 0.7 sqrt(2/12) = 0.29 (rms).
        patches = 0.15 + 0.7 * generator(0, "synthetic/patterns").random((self.classes, channels, PATCHES, PATCHES))
        rows, columns = np.arange(height) * PATCHES // height, np.arange(width) * PATCHES // width
        patterns = patches[:, :, rows[:, None], columns]
        return Dataset(
            self.name,
            *self._make_part("train", self.train_samples, patterns),
            *self._make_part("test", self.test_samples, patterns),
            self.classes,
            client_train=assign_owners(self.clients, self.train_samples, "train"),
            client_test=assign_owners(self.clients, self.test_samples, "test"),
        )

    def _make_part(self, part: str, count: int, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count, dtype=np.int64) % self.classes
        noise = generator(0, f"synthetic/{part}").standard_normal((count, *self.shape), dtype=np.float32)
        images = np.clip(patterns[labels] + self.noise * noise, 0, 1)
        return np.round(255 * images).astype(np.uint8), labels


class SyntheticText(DataSource):
    """Generated text for next-character prediction, always the same: every character is 1, 2 or 3 after the one before,
    in a circle. Natural clients of unequal sizes. For testing a sweep; its accuracies mean nothing. Needs no files.
    """

    name = "synthetic_text"
    needs_files = False
    classes: int = Field(80, gt=3, le=256, description="different characters")
    length: int = Field(80, gt=0, description="characters per sample")
    train_samples: int = Field(2_000, gt=0, description="training samples")
    test_samples: int = Field(500, gt=0, description="test samples")
    clients: int = Field(0, ge=0, description="number of natural clients; 0 for none")

    @model_validator(mode="after")
    def _refuse_large(self) -> Self:
        refuse_typos((self.train_samples + self.test_samples) * self.length)
        return self

    def get_expected(self) -> Published:
        counts = self.train_samples, self.test_samples, self.classes
        return Published(*counts, (self.length,), clients=self.clients or None, size="none")

    def load(self) -> Dataset:
        return Dataset(
            self.name,
            *self._make_part("train", self.train_samples),
            *self._make_part("test", self.test_samples),
            self.classes,
            client_train=assign_owners(self.clients, self.train_samples, "train"),
            client_test=assign_owners(self.clients, self.test_samples, "test"),
        )

    def _make_part(self, part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        rng = generator(0, f"synthetic_text/{part}")
        first, steps = rng.integers(self.classes, size=(count, 1)), rng.integers(1, 4, size=(count, self.length))
        text = np.concatenate([first, first + steps.cumsum(axis=1)], axis=1) % self.classes
        return text[:, :-1].astype(np.uint8), text[:, -1].astype(np.int64)


def refuse_typos(values: int) -> None:
    """Refuse more values than VALUES. Raises UserError."""
    if values > VALUES:
        raise UserError(
            f"data.train_samples: samples and shape ask for {values:.3g} values; at most {VALUES:.3g} are allowed"
        )


def assign_owners(clients: int, count: int, part: str) -> np.ndarray | None:
    """Return a natural client for each sample, int64, or None for no clients.

    Every client has one sample; the rest favours the first clients. Raises UserError if there are fewer samples than
    clients.
    """
    if not clients:
        return None
    if count < clients:
        raise UserError(f"data.{part}_samples: found {count}; {clients} clients need a sample each")
    drawn = (clients * generator(0, f"synthetic/{part}/clients").random(count) ** 2).astype(np.int64)
    drawn[:clients] = np.arange(clients)
    return drawn
