"""The data sets by name, and the files each wants under `data_dir` (`FEDRAY_DATA`, default ~/.cache/fedray)."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedray.component import Component, choose
from fedray.data.dataset import Dataset
from fedray.errors import UserError


def data_dir() -> Path:
    """Where files of data sets are looked for: `$FEDRAY_DATA`, else ~/.cache/fedray."""
    return Path(os.environ.get("FEDRAY_DATA", "~/.cache/fedray")).expanduser()


class DataSource(Component):
    """Base of the data sets: `load()` returns the arrays or raises UserError saying which file belongs where."""

    def load(self) -> Dataset:
        """Read the arrays."""
        raise NotImplementedError


class Digits(DataSource):
    """scikit-learn's digits: 1,797 real 8x8 grey images, 10 classes; a fixed 80/20 split. Needs no files."""

    name = "digits"
    paper = "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (test part), in scikit-learn"

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits  # imported here: it costs a second and other data do not need it

        digits = load_digits()
        # Pixels are 0..16; x 255/16 makes them ordinary 8-bit images.
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        order = np.random.RandomState(0).permutation(len(images))  # RandomState: its streams are frozen by NumPy
        train, test = order[:1437], order[1437:]
        labels = digits.target.astype(np.int64)
        return Dataset("digits", images[train], labels[train], images[test], labels[test], 10, (0.3054,), (0.3763,))


class _Torchvision(DataSource):
    """Data sets read by torchvision's own classes; downloaded by `fedray data fetch`, never in a run."""

    def _open(self, kind: str, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        import torchvision.datasets

        root = data_dir()
        try:
            found = getattr(torchvision.datasets, kind)(str(root), download=False, **arguments)
        except RuntimeError:
            raise UserError(f"data.name: {self.name} is not in {root}; put torchvision's {kind} files there "
                            f"({kind}(root, download=True) makes them) or set FEDRAY_DATA") from None
        images = np.asarray(found.data)
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(images), np.asarray(found.targets, dtype=np.int64)

    def _pair(self, kind: str, classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
        x_train, y_train = self._open(kind, train=True)
        x_test, y_test = self._open(kind, train=False)
        return Dataset(self.name, x_train, y_train, x_test, y_test, classes, mean, std)


class MNIST(_Torchvision):
    """MNIST, 60,000 / 10,000 grey 28x28 images."""

    name = "mnist"
    paper = "LeCun et al. 1998"

    def load(self) -> Dataset:
        return self._pair("MNIST", 10, (0.1307,), (0.3081,))


class FashionMNIST(_Torchvision):
    """Fashion-MNIST, 60,000 / 10,000 grey 28x28 images."""

    name = "fashion_mnist"
    paper = "Xiao et al. 2017"

    def load(self) -> Dataset:
        return self._pair("FashionMNIST", 10, (0.2860,), (0.3530,))


class CIFAR10(_Torchvision):
    """CIFAR-10, 50,000 / 10,000 colour 32x32 images; normalised as FL-Simulator does."""

    name = "cifar10"
    paper = "Krizhevsky 2009"

    def load(self) -> Dataset:
        return self._pair("CIFAR10", 10, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262))


class Npz(DataSource):
    """One's own arrays: x_train, y_train, x_test, y_test and, if present, client_train and client_test.

    Images uint8 `(n, h, w[, c])` are scaled to [0, 1] and normalised when mean and std are given; float32 `(n, ...)`
    is used as it is.
    """

    name = "npz"
    path: str = Field(description="the .npz file")
    mean: tuple[float, ...] = Field((), description="per channel, of images in [0, 1]")
    std: tuple[float, ...] = Field((), description="per channel, of images in [0, 1]")

    def load(self) -> Dataset:
        path = Path(self.path).expanduser()
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except FileNotFoundError:
            raise UserError(f"data.path: {path} does not exist") from None
        except (ValueError, OSError, EOFError, KeyError) as error:
            raise UserError(f"data.path: {path} is not a readable .npz file: {error}") from None
        missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
        if missing:
            raise UserError(f"data.path: {path} lacks {', '.join(missing)}; it holds {', '.join(sorted(arrays))}")
        x_train, x_test = (self._images(path, key, arrays[key]) for key in ("x_train", "x_test"))
        y_train, y_test = (self._integers(path, key, arrays[key]) for key in ("y_train", "y_test"))
        channels = x_train.shape[1] if x_train.dtype == np.uint8 else 0
        if len(self.mean) != len(self.std) or (self.mean and len(self.mean) != channels):
            raise UserError(f"data.mean: found {len(self.mean)} means and {len(self.std)} stds; "
                            f"the images have {channels} channels")
        ids = {key: self._integers(path, key, arrays[key]) for key in ("client_train", "client_test") if key in arrays}
        return Dataset("npz", x_train, y_train, x_test, y_test, int(max(y_train.max(), y_test.max())) + 1,
                       self.mean, self.std, **ids)

    @staticmethod
    def _images(path: Path, key: str, x: np.ndarray) -> np.ndarray:
        if x.dtype == np.float32 and x.ndim >= 2:
            return x
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
        raise UserError(f"data.path: {path}: {key} is {x.dtype} {x.shape}; uint8 (n, h, w[, c]) or float32 (n, ...) "
                        "is required")

    @staticmethod
    def _integers(path: Path, key: str, y: np.ndarray) -> np.ndarray:
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or len(y) == 0:
            raise UserError(f"data.path: {path}: {key} is {y.dtype} {y.shape}; integers (n,) with n > 0 are required")
        return y.astype(np.int64)


DATASETS: dict[str, type[DataSource]] = {kind.name: kind for kind in (Digits, MNIST, FashionMNIST, CIFAR10, Npz)}


def data_source(value: object) -> DataSource:
    """The data set of a configuration's `data` section."""
    return choose("data", value, DATASETS)
