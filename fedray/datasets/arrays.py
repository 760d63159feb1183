"""The data sets by name, and two that need no published files: scikit-learn's digits and one's own arrays."""

import zipfile
from pathlib import Path

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, one_line
from fedray.common.yaml_files import located
from fedray.datasets.base import Images, Published, Recipe
from fedray.datasets.dataset import Dataset

CLASSES = 100_000
"""Arrays of one's own with larger labels are taken for a mistake; they would ask for a model with that many outputs."""


class Digits(Images):
    """scikit-learn's digits: 1,797 real 8x8 grey images, 10 classes; a fixed 80/20 split. Needs no files."""

    name = "digits"
    paper = "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (test part), in scikit-learn"
    published = Published(1_437, 360, 10, (1, 8, 8), size="none")
    recipes = {"plain": Recipe((0.3054,), (0.3763,))}

    def fetch(self) -> None:
        """Nothing to do: the images come with scikit-learn."""

    def read(self) -> Dataset:
        from sklearn.datasets import load_digits  # imported here: it costs a second and other data do not need it

        digits = load_digits()
        # Pixels are 0..16; x 255/16 makes them ordinary 8-bit images.
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        order = np.random.RandomState(0).permutation(len(images))  # RandomState: its streams are frozen by NumPy
        train, test = order[:1437], order[1437:]
        labels = digits.target.astype(np.int64)
        return Dataset("digits", images[train], labels[train], images[test], labels[test], 10)


class Npz(Images):
    """One's own arrays: x_train, y_train, x_test, y_test and, if present, client_train and client_test.

    Images uint8 `(n, h, w[, c])` are scaled to [0, 1] and normalised when mean and std are given; float32 `(n, ...)`
    is used as it is.
    """

    name = "npz"
    path: str = Field(description="the .npz file")

    def read(self) -> Dataset:
        path = located("data.path", self.path)
        try:
            if path.is_file() and not zipfile.is_zipfile(path):  # NumPy would tell how to load a pickle all the same
                raise ValueError("it is no archive of arrays")
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except FileNotFoundError:
            raise UserError(f"data.path: {path} does not exist") from None
        except Exception as error:  # zipfile, zlib and NumPy each have their own for a damaged file
            raise UserError(f"data.path: {path} is not a readable .npz file: {one_line(error)}") from None
        missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
        if missing:
            raise UserError(f"data.path: {path} lacks {', '.join(missing)}; it holds {', '.join(sorted(arrays))}")
        x_train, x_test = (self._images(path, key, arrays[key]) for key in ("x_train", "x_test"))
        y_train, y_test = (self._integers(path, key, arrays[key]) for key in ("y_train", "y_test"))
        client_train, client_test = (
            self._integers(path, key, arrays[key]) if key in arrays else None for key in ("client_train", "client_test")
        )
        for key, x in (("x_train", x_train), ("x_test", x_test)):
            if x.dtype == np.float32 and not np.isfinite(x).all():
                raise UserError(f"data.path: {path}: {key} holds NaN or infinity")
        return Dataset(
            "npz",
            x_train,
            y_train,
            x_test,
            y_test,
            int(max(y_train.max(), y_test.max())) + 1,
            client_train=client_train,
            client_test=client_test,
        )

    @staticmethod
    def _images(path: Path, key: str, x: np.ndarray) -> np.ndarray:
        if x.dtype == np.float32 and x.ndim >= 2:
            return x
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
        raise UserError(
            f"data.path: {path}: {key} is {x.dtype} {x.shape}; uint8 (n, h, w[, c]) or float32 (n, ...) is required"
        )

    @staticmethod
    def _integers(path: Path, key: str, y: np.ndarray) -> np.ndarray:
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or len(y) == 0:
            raise UserError(f"data.path: {path}: {key} is {y.dtype} {y.shape}; integers (n,) with n > 0 are required")
        if key.startswith("y") and not 0 <= y.min() <= y.max() < CLASSES:
            raise UserError(
                f"data.path: {path}: {key} holds {y.min()}..{y.max()}; labels in 0..{CLASSES - 1} are required"
            )
        return y.astype(np.int64)
