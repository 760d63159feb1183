"""MedMNIST's 28x28 sets from their published .npz files (Yang et al., MedMNIST v2, Scientific Data 2023).

NumPy reads the files: they hold just six documented arrays, so the `medmnist` package is not needed.
"""

import zipfile
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate
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

    def read(self) -> Dataset:
        path = self.require(self.files)
        # zipfile, zlib and NumPy raise their own types for damaged files
        with restate(f"data.name: {self.name}: {path} cannot be read", Exception), open_file(path) as opened:
            if not zipfile.is_zipfile(opened):  # NumPy's message would explain how to load a pickle
                raise ValueError("it is not an archive of arrays")
            opened.seek(0)
            file = np.load(opened, allow_pickle=False)
            names = ("train", "val", "test")
            arrays = {part: (file[f"{part}_images"], file[f"{part}_labels"]) for part in names}
        parts = {part: self._check_part(f"{path}: {part}", *found) for part, found in arrays.items()}
        train = ("train", "val") if self.validation_images == "train" else ("train",)
        x, y = (np.concatenate([parts[part][k] for part in train]) for k in (0, 1))
        return Dataset(self.name, x, y, *parts["test"], self.published.classes)

    def get_expected(self) -> Published:
        added = self.validated * (self.validation_images == "train")
        return replace(self.published, train=(self.published.train or 0) + added)

    def _check_part(self, where: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels of a part as a data set has them. Raises UserError."""
        channels, height, width = self.published.shape
        if x.dtype != np.uint8 or x.shape[1:] != ((height, width, 3) if channels == 3 else (height, width)):
            found, wanted = f"{where}_images is {x.dtype} {x.shape}", f"uint8 (n, 28, 28{', 3' * (channels == 3)}) is"
            raise UserError(f"data.name: {self.name}: {found}; {wanted} required")
        if not np.issubdtype(y.dtype, np.integer) or y.size != len(y):
            found = f"{where}_labels is {y.dtype} {y.shape}"
            raise UserError(f"data.name: {self.name}: {found}; integers (n, 1) are required")
        images = np.ascontiguousarray(x.transpose(0, 3, 1, 2) if channels == 3 else x[:, None])
        return images, y.reshape(-1).astype(np.int64)

    def fetch(self) -> None:
        download(self.name, f"{RECORD}/{self.files}?download=1", get_data_dir() / self.files, self.md5)


ROWS: tuple[tuple[str, str, int, int, int, int, int, str], ...] = (
    ("PathMNIST", "Colon pathology", 89_996, 10_004, 7_180, 3, 9, "a8b06965200029087d5bd730944a56c1"),
    ("TissueMNIST", "Kidney cortex cells", 165_466, 23_640, 47_280, 1, 8, "ebe78ee8b05294063de985d821c1c34b"),
    ("DermaMNIST", "Skin lesions", 7_007, 1_003, 2_005, 3, 7, "0744692d530f8e62ec473284d019b0c7"),
    (
        *("OCTMNIST", "Retinas by optical coherence tomography"),
        *(97_477, 10_832, 1_000, 1, 4, "c68d92d5b585d8d81f7112f81e2d0842"),
    ),
    ("PneumoniaMNIST", "Chest X-rays of children", 4_708, 524, 624, 1, 2, "28209eda62fecd6e6a2d98b1501bb15f"),
    ("RetinaMNIST", "Fundus images by grade of retinopathy", 1_080, 120, 400, 3, 5, "bd4c0672f1bba3e3a89f0e4e876791e4"),
    ("BreastMNIST", "Breast ultrasound", 546, 78, 156, 1, 2, "750601b1f35ba3300ea97c75c52ff8f6"),
    ("BloodMNIST", "Blood cells", 11_959, 1_712, 3_421, 3, 8, "7053d0359d879ad8a5505303e11de1dc"),
    ("OrganAMNIST", "Organs in axial CT slices", 34_561, 6_491, 17_778, 1, 11, "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    ("OrganCMNIST", "Organs in coronal CT slices", 12_975, 2_392, 8_216, 1, 11, "b9ceb9546e10131b32923c5bbeaea2b1"),
    ("OrganSMNIST", "Organs in sagittal CT slices", 13_932, 2_452, 8_827, 1, 11, "9ab87b696fb54e2a387ebe992d6ed5f1"),
)
"""The 2-D sets with one label per image (ChestMNIST has fourteen): name, content, number of training, val and test
images, channels, classes, md5 of the file."""
SIZES = {"PathMNIST": "206 MB", "TissueMNIST": "125 MB"}


def _make_class(title: str, what: str, train: int, val: int, test: int, width: int, classes: int, md5: str) -> Any:
    colour = "colour" if width == 3 else "grey"
    note = " (FedSOL prints 110,000, D-28)" if title == "PathMNIST" else ""
    members: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"{what}, {train:,} + {val:,} / {test:,} {colour} 28x28 images, {classes} classes{note}.",
        "name": title.lower(),
        "files": f"{title.lower()}.npz",
        "licence": "CC-BY-NC-4.0" if title == "DermaMNIST" else MedMNIST.licence,
        "md5": md5,
        "used_by": "FedSOL" if title in SIZES else "",
        "published": Published(train, test, classes, (width, 28, 28), size=SIZES.get(title, "")),
        "validated": val,
    }
    make: Any = type(MedMNIST)
    return make(title, (MedMNIST,), members)


MEDMNIST: tuple[type[MedMNIST], ...] = tuple(_make_class(*row) for row in ROWS)
globals().update({kind.__name__: kind for kind in MEDMNIST})  # where pickle looks for them
