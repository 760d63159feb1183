"""MedMNIST's 28x28 sets from their published .npz files (Yang et al., MedMNIST v2, Scientific Data 2023).

NumPy reads the files: they hold just six documented arrays, so the `medmnist` package is not needed.
"""

import zipfile
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, join_lines
from fedray.common.whole_files import open_file
from fedray.datasets.augment import Flip
from fedray.datasets.base import Images, Published, Recipe, get_data_dir
from fedray.datasets.cache import download
from fedray.datasets.dataset import Dataset

RECORD = "https://zenodo.org/records/10519652/files"
HALVES = ((0.5,), (0.5,))


class MedMNIST(Images):
    """Base: `<name>.npz` with train, val and test images; `validation_images: train` (FedSOL) trains on val as well."""

    md5: ClassVar[str]
    published: ClassVar[Published]
    validated: ClassVar[int]
    """Number of samples of the val split."""
    recipes: ClassVar[dict[str, Recipe]] = {"plain": Recipe(*HALVES), "fedsol": Recipe(*HALVES, (Flip(),), 3)}
    paper = (
        "Yang et al., MedMNIST v2 - a large-scale lightweight benchmark for 2D and 3D biomedical image "
        "classification, Scientific Data 2023"
    )
    licence = "CC-BY-4.0"
    validation_images: Literal["unused", "train"] = Field("train", description="use of the val images")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.files = f"{cls.name}.npz"

    def read(self) -> Dataset:
        path = get_data_dir() / self.files
        if not path.exists():
            raise self.make_missing(path.name)
        try:
            with open_file(path) as opened:
                if not zipfile.is_zipfile(opened):  # NumPy's message would explain how to load a pickle
                    raise ValueError("it is not an archive of arrays")
                opened.seek(0)
                file = np.load(opened, allow_pickle=False)
                arrays = {
                    f"{part}_{what}": file[f"{part}_{what}"]
                    for part in ("train", "val", "test")
                    for what in ("images", "labels")
                }
        except Exception as error:  # zipfile, zlib and NumPy raise their own types for damaged files
            raise UserError(f"data.name: {self.name}: {path} cannot be read: {join_lines(error)}") from None
        parts = {
            part: (
                self._check_images(arrays[f"{part}_images"], f"{path}: {part}_images"),
                self._check_labels(arrays[f"{part}_labels"], f"{path}: {part}_labels"),
            )
            for part in ("train", "val", "test")
        }
        train = ("train", "val") if self.validation_images == "train" else ("train",)
        x, y = (np.concatenate([parts[part][k] for part in train]) for k in (0, 1))
        return Dataset(self.name, x, y, *parts["test"], self.published.classes)

    def get_expected(self) -> Published:
        p = self.published
        return Published(
            (p.train or 0) + self.validated * (self.validation_images == "train"), p.test, p.classes, p.shape
        )

    def _check_images(self, x: np.ndarray, where: str) -> np.ndarray:
        channels, height, width = self.published.shape
        if x.dtype != np.uint8 or x.shape[1:] != ((height, width, 3) if channels == 3 else (height, width)):
            raise UserError(
                f"data.name: {self.name}: {where} is {x.dtype} {x.shape}; uint8 (n, 28, 28"
                f"{', 3' * (channels == 3)}) is required"
            )
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if channels == 3 else x[:, None])

    def _check_labels(self, y: np.ndarray, where: str) -> np.ndarray:
        if not np.issubdtype(y.dtype, np.integer) or y.size != len(y):
            raise UserError(f"data.name: {self.name}: {where} is {y.dtype} {y.shape}; integers (n, 1) are required")
        return y.reshape(-1).astype(np.int64)

    def fetch(self) -> None:
        download(self.name, f"{RECORD}/{self.files}?download=1", get_data_dir() / self.files, self.md5)


ROWS: dict[str, dict[str, Any]] = {
    "PathMNIST": {
        "__doc__": "Colon pathology, 89,996 + 10,004 / 7,180 colour 28x28 images, 9 classes "
        "(FedSOL prints 110,000, D-28).",
        "md5": "a8b06965200029087d5bd730944a56c1",
        "used_by": "FedSOL",
        "published": Published(89_996, 7_180, 9, (3, 28, 28), size="206 MB"),
        "validated": 10_004,
    },
    "TissueMNIST": {
        "__doc__": "Kidney cortex cells, 165,466 + 23,640 / 47,280 grey 28x28 images, 8 classes.",
        "md5": "ebe78ee8b05294063de985d821c1c34b",
        "used_by": "FedSOL",
        "published": Published(165_466, 47_280, 8, (1, 28, 28), size="125 MB"),
        "validated": 23_640,
    },
    "DermaMNIST": {
        "__doc__": "Skin lesions, 7,007 + 1,003 / 2,005 colour 28x28 images, 7 classes.",
        "licence": "CC-BY-NC-4.0",
        "md5": "0744692d530f8e62ec473284d019b0c7",
        "published": Published(7_007, 2_005, 7, (3, 28, 28)),
        "validated": 1_003,
    },
    "OCTMNIST": {
        "__doc__": "Retinas by optical coherence tomography, 97,477 + 10,832 / 1,000 grey 28x28 images, 4 classes.",
        "md5": "c68d92d5b585d8d81f7112f81e2d0842",
        "published": Published(97_477, 1_000, 4, (1, 28, 28)),
        "validated": 10_832,
    },
    "PneumoniaMNIST": {
        "__doc__": "Chest X-rays of children, 4,708 + 524 / 624 grey 28x28 images, 2 classes.",
        "md5": "28209eda62fecd6e6a2d98b1501bb15f",
        "published": Published(4_708, 624, 2, (1, 28, 28)),
        "validated": 524,
    },
    "RetinaMNIST": {
        "__doc__": "Fundus images by grade of retinopathy, 1,080 + 120 / 400 colour 28x28 images, 5 classes.",
        "md5": "bd4c0672f1bba3e3a89f0e4e876791e4",
        "published": Published(1_080, 400, 5, (3, 28, 28)),
        "validated": 120,
    },
    "BreastMNIST": {
        "__doc__": "Breast ultrasound, 546 + 78 / 156 grey 28x28 images, 2 classes.",
        "md5": "750601b1f35ba3300ea97c75c52ff8f6",
        "published": Published(546, 156, 2, (1, 28, 28)),
        "validated": 78,
    },
    "BloodMNIST": {
        "__doc__": "Blood cells, 11,959 + 1,712 / 3,421 colour 28x28 images, 8 classes.",
        "md5": "7053d0359d879ad8a5505303e11de1dc",
        "published": Published(11_959, 3_421, 8, (3, 28, 28)),
        "validated": 1_712,
    },
    "OrganAMNIST": {
        "__doc__": "Organs in axial CT slices, 34,561 + 6,491 / 17,778 grey 28x28 images, 11 classes.",
        "md5": "68e3f8846a6bd62f0c9bf841c0d9eacc",
        "published": Published(34_561, 17_778, 11, (1, 28, 28)),
        "validated": 6_491,
    },
    "OrganCMNIST": {
        "__doc__": "Organs in coronal CT slices, 12,975 + 2,392 / 8,216 grey 28x28 images, 11 classes.",
        "md5": "b9ceb9546e10131b32923c5bbeaea2b1",
        "published": Published(12_975, 8_216, 11, (1, 28, 28)),
        "validated": 2_392,
    },
    "OrganSMNIST": {
        "__doc__": "Organs in sagittal CT slices, 13,932 + 2,452 / 8,827 grey 28x28 images, 11 classes.",
        "md5": "9ab87b696fb54e2a387ebe992d6ed5f1",
        "published": Published(13_932, 8_827, 11, (1, 28, 28)),
        "validated": 2_452,
    },
}
"""The 2-D sets with one label per image (ChestMNIST has fourteen), and what their classes declare."""
_make_class: Any = type(MedMNIST)
MEDMNIST: tuple[type[MedMNIST], ...] = tuple(
    _make_class(title, (MedMNIST,), {"name": title.lower(), "__module__": __name__, **row})
    for title, row in ROWS.items()
)
globals().update({kind.__name__: kind for kind in MEDMNIST})  # where pickle looks for them
