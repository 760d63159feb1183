"""Data sets of torchvision: the idx family and SVHN read by its own classes, the CIFAR family by `batch`.

Nothing is downloaded in a run; `fedray data fetch` does that, through the same classes. torchvision is imported when a
class is needed: it costs a second, and other data do not need it.
"""

import importlib
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy._core import multiarray, numeric
from pydantic import Field, model_validator

from fedray.common.errors import DataMissing, UserError, restate
from fedray.common.rng import generator
from fedray.common.whole_files import open_file
from fedray.datasets.arrays import TrainSamples, draw_train, read_npz
from fedray.datasets.augment import Crop, Cutout, Flip, Rotate
from fedray.datasets.base import Images, Published, Recipe, get_data_dir
from fedray.datasets.cache import check_md5
from fedray.datasets.dataset import Dataset, take_train

CROP_FLIP = (Crop(crop=4), Flip())
FL_SIMULATOR = (Flip(), Crop(crop=4, chance=0.5, fill="mean"))
SVHN_COLOURS = ((0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614))


class Torchvision(Images):
    """Base: opens torchvision's class and turns what it raises into one line that names the file."""

    kind: ClassVar[str]
    """The class in torchvision.datasets."""
    published: ClassVar[Published]
    raw: ClassVar[tuple[str, str]] = ("train", "t10k")
    """Beginnings of the names of the files for training and for testing."""
    fetched: ClassVar[tuple[dict[str, Any], ...]] = ({"train": True},)
    """Arguments with which the class downloads all of its files."""
    train_samples: TrainSamples = None

    def _import_class(self) -> Any:
        kind = getattr(importlib.import_module("torchvision.datasets"), self.kind)
        return type(self.kind, (kind,), {"_check_legacy_exist": lambda self: False})  # as torchvision < 0.9 cached

    def list_files(self) -> list[tuple[Path, str | None]]:
        """Every file, below `get_data_dir()`, and its published md5 (None where torchvision asks for none)."""
        names = [f"{part}-{what}-ubyte" for part in self.raw for what in ("images-idx3", "labels-idx1")]
        return [(Path(self.kind, "raw", name), None) for name in names]

    def _open(self, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 `(n, c, h, w)` and int64 labels `(n,)` of one split."""
        for file, md5 in self.list_files():
            path = self.require(str(file))
            if not path.is_file():
                raise UserError(f"data.name: {self.name}: {path} is not a file")
            if md5 is not None:
                check_md5(self.name, str(path), path, md5)
        # The readers assert, unpickle, reshape: anything can come out of a damaged file.
        with restate(f"data.name: {self.name}: the files in {get_data_dir()} cannot be read", Exception):
            images, labels = self._read_arrays(**arguments)
        if images.ndim == 3:
            images = images[:, None]
        shape = self.published.shape
        if images.shape[1:] != shape or images.dtype != np.uint8:
            raise UserError(
                f"data.name: {self.name}: the files in {get_data_dir()} hold {images.dtype} images of shape "
                f"{images.shape[1:]}, uint8 {shape} is required"
            )
        return np.ascontiguousarray(images), labels

    def _read_arrays(self, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        """Images as the class has them, without a channel axis if grey, and int64 labels."""
        source = self._import_class()(str(get_data_dir()), download=False, **arguments)
        labels = getattr(source, "targets", None)
        return np.asarray(source.data), np.asarray(source.labels if labels is None else labels, dtype=np.int64)

    def read(self) -> Dataset:
        train, test = self._read_part(train=True), self._read_part(train=False)
        data = Dataset(self.name, *train, *test, self.published.classes)
        return data if (kept := self._draw_train(data.y_train)) is None else take_train(data, kept)

    def _read_part(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of the training or the test set, as `_open` returns them."""
        return self._open(train=train)

    def _draw_train(self, labels: np.ndarray) -> np.ndarray | None:
        """Return the positions of the training samples that are used; None for all."""
        return None if self.train_samples is None else draw_train(labels, self.train_samples)

    def get_expected(self) -> Published:
        return replace(self.published, train=self.train_samples) if self.train_samples else self.published

    def fetch(self) -> None:
        before = getattr(tarfile.TarFile, "extraction_filter", None)
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)  # older torchvision names none
        try:
            for arguments in self.fetched:
                self._import_class()(str(get_data_dir()), download=True, **arguments)
        except Exception as error:  # sockets, HTTP, checksums, file systems
            raise UserError(
                f"data.name: {self.name} could not be downloaded ({type(error).__name__}: {error}); put "
                f"{self.files} in {get_data_dir()}".replace("\n", " ")
            ) from None
        finally:
            tarfile.TarFile.extraction_filter = before


def count_long_tail(largest: int, classes: int, ratio: float) -> list[int]:
    """Return the class sizes of a long tail with exponential decay.

    n_c = floor(largest ratio^(-c / (classes - 1))) (Cao et al., NeurIPS 2019, section 5, `imbalance_cifar.py`):
    class 0 keeps its size, the last has 1/ratio of it.
    """
    return [int(largest * ratio ** (-c / (classes - 1))) for c in range(classes)]


class MNIST(Torchvision):
    """MNIST, 60,000 / 10,000 grey 28x28 images."""

    name = "mnist"
    kind = "MNIST"
    paper = (
        "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, "
        "Proceedings of the IEEE 1998"
    )
    licence = "CC-BY-SA-3.0"
    used_by = "FedSOL"
    files = "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, or mnist.npz"
    published = Published(60_000, 10_000, 10, (1, 28, 28), size="12 MB")
    recipes = {
        "plain": Recipe((0.1307,), (0.3081,)),
        "fedsol": Recipe((0.1307,), (0.3081,), CROP_FLIP, 3),
        "fedsol_code": Recipe((0.1307,), (0.3081,), (*CROP_FLIP, Cutout(cutout=16)), 3),  # D-35
    }

    def make_missing(self, what: str) -> DataMissing:
        return super().make_missing(f"{what} (or {self.name}.npz, as Keras has it)")

    def _read_part(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """As the base; without the published files from `mnist.npz`, arrays as Keras has them, as many as published."""
        path, first = (get_data_dir() / file for file in (f"{self.name}.npz", self.list_files()[0][0]))
        if not path.is_file() or first.exists():
            return super()._read_part(train)
        arrays, part = read_npz("data.name", path), "train" if train else "test"
        images, labels = (arrays.get(f"{kind}_{part}", np.zeros(0)) for kind in "xy")
        count = self.published.train if train else self.published.test
        if images.shape != (count, *self.published.shape[1:]) or images.dtype != np.uint8 or labels.shape != (count,):
            raise UserError(
                f"data.name: {self.name}: {path} has x_{part} of {images.dtype} and shape {images.shape}, y_{part} of "
                f"shape {labels.shape}; {count} images of uint8 and shape {self.published.shape[1:]} are published"
            )
        return images[:, None], labels.astype(np.int64)


class FashionMNIST(MNIST):
    """Fashion-MNIST, 60,000 / 10,000 grey 28x28 images."""

    name = "fashion_mnist"
    kind = "FashionMNIST"
    paper = (
        "Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning "
        "algorithms, 2017, arXiv 1708.07747"
    )
    licence = "MIT"
    used_by = ""
    files = "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, or fashion_mnist.npz"
    published = Published(60_000, 10_000, 10, (1, 28, 28), size="31 MB")
    recipes = {"plain": Recipe((0.2860,), (0.3530,))}


class EMNIST(Torchvision):
    """EMNIST by class, 697,932 / 116,323 grey 28x28 images of 62 characters.

    The published files hold every image transposed; here they are upright, as MNIST's and FEMNIST's are. FedSAM uses
    "a 20 % subset (81,425 samples)": that number is 10 % of the 814,255 images; `fraction` takes either.
    """

    name = "emnist"
    kind = "EMNIST"
    paper = "Cohen, Afshar, Tapson and van Schaik, EMNIST: extending MNIST to handwritten letters, IJCNN 2017"
    used_by = "FedSAM"
    files = "EMNIST/raw/emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte"
    published = Published(697_932, 116_323, 62, (1, 28, 28), size="562 MB")
    recipes = {"plain": Recipe((0.1736,), (0.3317,))}
    raw = ("emnist-byclass-train", "emnist-byclass-test")
    fetched = ({"split": "byclass", "train": True},)
    fraction: float = Field(1.0, gt=0, le=1, description="share of each split that is used, drawn once; FedSAM 0.2")

    def _read_part(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._open(split="byclass", train=train)
        order = generator(0, "emnist", train).permutation(len(labels))
        kept = np.sort(order[: round(self.fraction * len(labels))])
        return np.ascontiguousarray(images[kept].transpose(0, 1, 3, 2)), labels[kept]

    def get_expected(self) -> Published:
        train, test = (round((n or 0) * self.fraction) for n in (self.published.train, self.published.test))
        return replace(self.published, train=self.train_samples or train, test=test)


class CIFAR10(Torchvision):
    """CIFAR-10, 50,000 / 10,000 colour 32x32 images."""

    name = "cifar10"
    kind = "CIFAR10"
    paper = "Krizhevsky, Learning multiple layers of features from tiny images, 2009"
    used_by = "FedTOGA, FedSOL, FedGELA, FedSAM"
    files = "cifar-10-batches-py/{data_batch_1..5,test_batch,batches.meta}"
    published = Published(50_000, 10_000, 10, (3, 32, 32), size="170 MB")
    recipes = {
        "plain": Recipe((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
        "fl_simulator": Recipe((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), FL_SIMULATOR),
        "fedsol": Recipe(
            (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768), (*CROP_FLIP, Cutout(cutout=16))
        ),
        "fedgela": Recipe((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)),
        "fedacg": Recipe((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), (Rotate(rotate=10), *CROP_FLIP)),
    }

    imbalance: float | None = Field(
        None,
        ge=1,
        description="long tail: the first class has this many times the images of the last, class sizes decay "
        "exponentially in between; the images are drawn once",
    )

    @model_validator(mode="after")
    def _refuse_two_subsets(self) -> Self:
        if self.imbalance is not None and self.train_samples is not None:
            raise UserError(
                f"data.imbalance: found {self.imbalance:g} and train_samples {self.train_samples}; one of them is "
                "allowed"
            )
        if self.imbalance is not None and self.imbalance > self._per_class:
            raise UserError(
                f"data.imbalance: found {self.imbalance:g}, which leaves the last class no image; the largest allowed "
                f"is {self._per_class}"
            )
        return self

    @property
    def _per_class(self) -> int:
        """Number of training images of each class."""
        return (self.published.train or 0) // self.published.classes

    def _draw_train(self, labels: np.ndarray) -> np.ndarray | None:
        if self.imbalance is None:
            return super()._draw_train(labels)
        sizes = count_long_tail(len(labels) // self.published.classes, self.published.classes, self.imbalance)
        rng = generator(0, "imbalance")
        drawn = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(sizes)]
        return np.sort(np.concatenate(drawn))

    def get_expected(self) -> Published:
        if self.imbalance is None:
            return super().get_expected()
        sizes = count_long_tail(self._per_class, self.published.classes, self.imbalance)
        return replace(self.published, train=sum(sizes))

    def list_files(self) -> list[tuple[Path, str | None]]:
        kind = self._import_class()
        lists = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
        return [(Path(kind.base_folder, name), md5) for name, md5 in lists]

    def _read_arrays(self, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        """Read without torchvision, which would unpickle any content of the files."""
        kind = self._import_class()
        files = kind.train_list if arguments["train"] else kind.test_list
        images, labels = zip(*(read_batch(get_data_dir() / kind.base_folder / name) for name, _ in files), strict=True)
        return np.concatenate(images), np.concatenate([np.asarray(part, dtype=np.int64) for part in labels])


class CIFAR100(CIFAR10):
    """CIFAR-100, 50,000 / 10,000 colour 32x32 images, fine labels."""

    name = "cifar100"
    kind = "CIFAR100"
    used_by = "FedTOGA, FedGELA, FedSAM"
    files = "cifar-100-python/{train,test,meta}"
    published = Published(50_000, 10_000, 100, (3, 32, 32), size="169 MB")
    recipes = {
        "plain": Recipe((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        "fl_simulator": Recipe((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), FL_SIMULATOR),
        "fedgela": Recipe((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615), (*CROP_FLIP, Rotate(rotate=15))),
    }


class SVHN(Torchvision):
    """SVHN cropped digits, 73,257 / 26,032 colour 32x32 images; the `extra` images are not used."""

    name = "svhn"
    kind = "SVHN"
    paper = "Netzer et al., Reading digits in natural images with unsupervised feature learning, NIPS workshop 2011"
    used_by = "FedSOL, FedGELA"
    files = "train_32x32.mat, test_32x32.mat"
    published = Published(73_257, 26_032, 10, (3, 32, 32), size="246 MB")
    recipes = {
        "plain": Recipe(*SVHN_COLOURS),
        "fedsol": Recipe(*SVHN_COLOURS, CROP_FLIP),
        "fedgela": Recipe(*SVHN_COLOURS),
    }
    fetched = ({"split": "train"}, {"split": "test"})

    def list_files(self) -> list[tuple[Path, str | None]]:
        kind = self._import_class()
        return [(Path(kind.split_list[part][1]), kind.split_list[part][2]) for part in ("train", "test")]

    def _read_part(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        return self._open(split="train" if train else "test")


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2; pickle would take any codec there is."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r} is not allowed")
    return text.encode("latin1")


class OnlyArrays(pickle.Unpickler):
    """Numbers, text, lists, dictionaries and NumPy's arrays of numbers; every other class or function is refused."""

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode_latin1,
        ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy.core.numeric", "_frombuffer"): numeric._frombuffer,  # type: ignore[attr-defined]
        ("numpy._core.numeric", "_frombuffer"): numeric._frombuffer,  # type: ignore[attr-defined]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a file of arrays")
        return self.allowed[module, name]


def read_batch(path: Path) -> tuple[np.ndarray, list[int]]:
    """Images uint8 `(n, 3, 32, 32)` and their (fine) labels. Other files raise errors of pickle and NumPy."""
    with open_file(path) as file:
        content = OnlyArrays(file, encoding="latin1").load()
    return content["data"].reshape(-1, 3, 32, 32), list(content["labels" if "labels" in content else "fine_labels"])
