"""Data sets that need no published files: scikit-learn's digits, and your own arrays."""

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from fedray.common.errors import UserError, restate
from fedray.common.rng import generator
from fedray.common.yaml_files import locate_file
from fedray.components.base import Allowed
from fedray.components.identity import FILE
from fedray.datasets.base import Images, Published, Recipe
from fedray.datasets.dataset import Dataset, take_train

CLASSES = 100_000
"""Largest label accepted in arrays; a model would need that many outputs, so a larger one is a mistake."""


class Digits(Images):
    """scikit-learn's digits: 1,797 real 8x8 grey images, 10 classes; a fixed 80/20 split. Needs no files."""

    name = "digits"
    paper = "Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI 1998 (test part), in scikit-learn"
    published = Published(1_437, 360, 10, (1, 8, 8), size="none")
    needs_files = False
    recipes = {"plain": Recipe((0.3054,), (0.3763,))}

    def read(self) -> Dataset:
        pixels, labels = _load_digits()
        # Pixels are 0..16; x 255/16 makes them ordinary 8-bit images.
        images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        order = np.random.RandomState(0).permutation(len(images))  # RandomState: its streams are frozen by NumPy
        train, test = order[:1437], order[1437:]
        return Dataset("digits", images[train], labels[train], images[test], labels[test], 10)


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels 0..16, float64 `(n, 64)`, and labels, int64 `(n,)`, from scikit-learn's file.

    Importing scikit-learn takes a second, the file five milliseconds.
    """
    package = find_spec("sklearn")
    file = Path(package.origin if package and package.origin else "").parent / "datasets/data/digits.csv.gz"
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # another version keeps it elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels.astype(np.int64)


TrainSamples = Annotated[
    int | None, Field(gt=0, description="use only this many training samples, of each class in proportion, drawn once")
]


def draw_train(labels: np.ndarray, samples: int) -> np.ndarray:
    """Return the sorted positions of the training samples that `data.train_samples` keeps.

    Each class gets its share rounded down; the classes with the largest remainders get one more, the smaller label
    first if they are equal. Raises UserError if there are fewer.
    """
    if samples > len(labels):
        raise UserError(f"data.train_samples: found {samples}; at most {len(labels)}, all training samples, is allowed")
    rng = generator(0, "train_samples")
    sizes = np.bincount(labels)
    whole, rest = np.divmod(sizes * samples, len(labels))
    whole[np.argsort(-rest, kind="stable")[: samples - whole.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(whole)]
    return np.sort(np.concatenate(drawn))


KEYS = ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test")
"""Names of the arrays of a data set of your own; the last two are optional."""


class Npz(Images):
    """Your own arrays from a file: x_train, y_train, x_test, y_test and, if present, client_train and client_test.

    Images uint8 `(n, h, w[, c])` are scaled to [0, 1] and normalised when mean and std are given; float32 `(n, ...)`
    is used as it is.
    """

    name = "npz"
    path: Annotated[str, FILE] = Field(description="the .npz file")
    train_samples: TrainSamples = None

    def read(self) -> Dataset:
        path = locate_file("data.path", self.path)
        data = check_arrays("npz", f"data.path: {path}", read_npz("data.path", path), self.test is not None)
        return data if self.train_samples is None else take_train(data, draw_train(data.y_train, self.train_samples))

    def list_unread(self) -> list[str]:
        """Return the names of the file's arrays that `read` does not use."""
        return sorted(read_npz("data.path", locate_file("data.path", self.path)).keys() - set(KEYS))


def read_npz(key: str, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file that a configuration names at `key`. Raises UserError; runs no pickle."""
    with restate(f"{key}: {path} is not a readable .npz file", Exception):  # zipfile, zlib and NumPy have their own
        if not zipfile.is_zipfile(path):  # NumPy's message would explain how to load a pickle
            raise ValueError("it is not an archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if bare := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{bare[0]} has no header of an array")
        return arrays


Array = Annotated[Any, Allowed("array")]
"""Anything from which NumPy makes an array."""


class Arrays(Images):
    """Your own arrays from memory, for `fedray.simulate` only: the same six as in an npz file.

    fedray.simulate({"data": {"x_train": x, "y_train": y, "x_test": u, "y_test": v}, ...})
    """

    name = "arrays"
    needs_files = False
    x_train: Array = Field(None, exclude=True, repr=False, description="uint8 `(n, h, w[, c])` or float32 `(n, ...)`")
    y_train: Array = Field(None, exclude=True, repr=False, description="integer labels `(n,)`")
    x_test: Array = Field(None, exclude=True, repr=False, description="as x_train")
    y_test: Array = Field(None, exclude=True, repr=False, description="as y_train")
    client_train: Array = Field(None, exclude=True, repr=False, description="integer client ids `(n,)`; optional")
    client_test: Array = Field(None, exclude=True, repr=False, description="integer client ids `(n,)`; optional")

    def __getstate__(self) -> dict[Any, Any]:
        """Leave the arrays out of a packed configuration: data sets travel apart from it."""
        state = super().__getstate__()
        return state | {"__dict__": {key: None if key in KEYS else value for key, value in state["__dict__"].items()}}

    def read(self) -> Dataset:
        arrays = {key: _as_array(key, getattr(self, key)) for key in KEYS if getattr(self, key) is not None}
        if not arrays:
            raise UserError("data.name: arrays exist in memory only; pass them to fedray.simulate, or save an npz file")
        return check_arrays("arrays", "data", arrays, self.test is not None)


def _as_array(key: str, value: Any) -> np.ndarray:
    """Return an array of anything that has one, without a copy where that is possible."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise UserError(f"data: {key} is masked, and a mask would be lost; fill it, or leave the samples out")
    # Ragged lists, sparse tensors, tensors on a GPU.
    with restate(f"data: {key} cannot be made an array", ValueError, TypeError, RuntimeError):
        return np.asarray(value)


def check_arrays(name: str, where: str, arrays: dict[str, np.ndarray], pooled: bool = False) -> Dataset:
    """Return a data set of a user's own arrays. pooled: accept arrays without a test set, `data.test` makes one.

    Raises UserError if an array is missing, or has a type, shape or values that cannot be used.
    """
    pooled = pooled and not {"x_test", "y_test", "client_test"} & arrays.keys()
    if missing := [key for key in KEYS[: 2 if pooled else 4] if key not in arrays]:
        hint = "; data.test: {from: clients} makes a test set" * (missing == ["x_test", "y_test"])
        raise UserError(f"{where} lacks {', '.join(missing)}; found: {', '.join(sorted(arrays))}{hint}")
    checked = {
        key: (_check_images if key.startswith("x") else _check_integers)(where, key, arrays[key])
        for key in KEYS
        if key in arrays
    }
    if pooled:
        checked |= {key.replace("train", "test"): array[:0] for key, array in checked.items()}
    classes = max(int(checked[key].max(initial=0)) for key in ("y_train", "y_test")) + 1
    x_train, y_train, x_test, y_test = (checked[key] for key in KEYS[:4])
    clients = checked.get("client_train"), checked.get("client_test")
    return Dataset(name, x_train, y_train, x_test, y_test, classes, client_train=clients[0], client_test=clients[1])


def _check_images(where: str, key: str, x: np.ndarray) -> np.ndarray:
    if x.size == 0:
        raise UserError(f"{where}: {key} has shape {x.shape}; at least one sample and one feature are required")
    if x.dtype == np.float32 and x.ndim >= 2:
        if not np.isfinite(x).all():
            raise UserError(f"{where}: {key} holds NaN or infinity")
        if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] == x.shape[2] > 4:
            raise UserError(
                f"{where}: {key} has shape {x.shape}, which is that of float32 images (n, c, h, w) with {x.shape[1]} "
                f"channels; of images (n, h, w, c) give x.transpose(0, 3, 1, 2)"
            )
        return np.ascontiguousarray(x)  # PyTorch takes no negative strides
    if x.dtype == np.uint8 and x.ndim == 4 and min(x.shape[2:]) > max(4, x.shape[1]):
        raise UserError(
            f"{where}: {key} has shape {x.shape}, which is that of uint8 images (n, h, w, c) {x.shape[1]} high with "
            f"{x.shape[3]} channels; of images (n, c, h, w) give x.transpose(0, 2, 3, 1)"
        )
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
    hint = "; token ids come from a class (docs/plug-ins.md, A data set)" * (x.dtype.kind in "iu" and x.ndim == 2)
    raise UserError(
        f"{where}: {key} is {x.dtype} {x.shape}; uint8 (n, h, w[, c]) or float32 (n, ...) is required{hint}"
    )


def _check_integers(where: str, key: str, y: np.ndarray) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) == 0:
        raise UserError(f"{where}: {key} is {y.dtype} {y.shape}; integers (n,) with n > 0 are required")
    if key.startswith("y") and not 0 <= y.min() <= y.max() < CLASSES:
        raise UserError(f"{where}: {key} holds {y.min()}..{y.max()}; labels in 0..{CLASSES - 1} are required")
    return y.astype(np.int64)
