"""Data sets whose images are files in folders, decoded once and cached: CINIC-10, Tiny-ImageNet, Fed-ISIC2019."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, join_lines, truncate_repr
from fedray.datasets.augment import Crop, Flip
from fedray.datasets.base import Images, Published, Recipe, get_data_dir
from fedray.datasets.cache import cache_arrays
from fedray.datasets.dataset import Dataset
from fedray.datasets.download import check_md5, download, unpack

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CINIC_COLOURS = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))


def decode_pictures(name: str, paths: Sequence[Path], size: int, crop: bool = False) -> np.ndarray:
    """Read pictures as RGB images of one size.

    Args:
        name: of the data set, for messages.
        paths: the files.
        size: height and width in pixels.
        crop: take the centre of larger pictures; otherwise every picture must have that size.

    Returns:
        uint8 `(n, 3, size, size)`.

    Raises:
        UserError: a file cannot be read or has another size; the message names it.
    """
    from PIL import Image

    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        try:
            with Image.open(path) as file:
                pixels = np.asarray(file.convert("RGB"))
        except Exception as error:  # PIL's readers raise a dozen types, one of them for images that unpack to gigabytes
            raise UserError(f"data.name: {name}: {path} cannot be read: {join_lines(error)}") from None
        height, width = pixels.shape[:2]
        if (min(height, width) < size) if crop else (height, width) != (size, size):
            raise UserError(
                f"data.name: {name}: {path} has {width}x{height} pixels, "
                f"{'at least ' if crop else ''}{size}x{size} are required"
            )
        top, left = (height - size) // 2, (width - size) // 2
        image[:] = pixels[top : top + size, left : left + size].transpose(2, 0, 1)
    return images


def read_picture(path: Path, size: int, channels: int) -> np.ndarray:
    """Read a picture upright, scaled until its shorter side has `size` pixels, and cut its centre out.

    Args:
        path: the file.
        size: height and width in pixels.
        channels: 3 for RGB, 1 for grey.

    Returns:
        uint8 `(channels, size, size)`.

    Raises:
        UserError: the file cannot be read.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            upright = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
            pixels = np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR))
    except Exception as error:  # as above
        raise UserError(f"data.path: {path} cannot be read: {join_lines(error)}") from None
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


class CINIC10(Images):
    """CINIC-10, 90,000 each of train, valid and test: colour 32x32 PNGs, CIFAR-10's classes.

    FedSOL trains on `train` and tests on `test` (90k / 90k); `validation_images: train` adds the `valid` images
    to training.
    """

    name = "cinic10"
    paper = "Darlow, Crowley, Antoniou and Storkey, CINIC-10 is not ImageNet or CIFAR-10, 2018, arXiv 1810.03505"
    used_by = "FedSOL"
    files = "cinic-10/{train,valid,test}/{airplane,...,truck}/*.png"
    published = Published(90_000, 90_000, 10, (3, 32, 32), size="656 MB")
    recipes: ClassVar[dict[str, Recipe]] = {
        "plain": Recipe(*CINIC_COLOURS),
        "fedsol": Recipe(*CINIC_COLOURS, (Crop(crop=4, fill="reflect"), Flip())),
    }
    validation_images: Literal["unused", "train"] = Field("unused", description="use of the `valid` images")

    def read(self) -> Dataset:
        parts = {"train": ("train", "valid") if self.validation_images == "train" else ("train",), "test": ("test",)}
        files = {part: self._list_files(folders) for part, folders in parts.items()}

        def decode() -> dict[str, np.ndarray]:
            return {
                key: array
                for part, found in files.items()
                for key, array in (
                    (f"x_{part}", decode_pictures(self.name, [path for path, _ in found], 32)),
                    (f"y_{part}", np.array([label for _, label in found])),
                )
            }

        paths = [path for found in files.values() for path, _ in found]
        arrays = cache_arrays(self.name, f"1 {self.validation_images}", paths, decode)
        return Dataset(self.name, arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], 10)

    def get_expected(self) -> Published:
        return Published(180_000 if self.validation_images == "train" else 90_000, 90_000, 10, (3, 32, 32))

    def _list_files(self, folders: Sequence[str]) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        for folder in folders:
            for label, kind in enumerate(CIFAR_CLASSES):
                paths = sorted((get_data_dir() / "cinic-10" / folder / kind).glob("*.png"))
                if not paths:
                    raise self.make_missing(f"cinic-10/{folder}/{kind}/*.png")
                found += [(path, label) for path in paths]
            strange = {path.name for path in (get_data_dir() / "cinic-10" / folder).iterdir() if path.is_dir()}
            if strange := strange - set(CIFAR_CLASSES):
                raise UserError(
                    f"data.name: {self.name}: cinic-10/{folder} has a folder {min(strange)!r}; allowed are "
                    f"{', '.join(CIFAR_CLASSES)}"
                )
        return found


class TinyImageNet(Images):
    """Tiny-ImageNet, 100,000 / 10,000 colour 64x64 images, 200 classes in the order of their WordNet ids.

    The labels of the published test images are not public; the `val` images are the test set, as is usual.
    """

    name = "tiny_imagenet"
    paper = "Le and Yang, Tiny ImageNet visual recognition challenge, Stanford CS 231N 2015"
    files = "tiny-imagenet-200/{wnids.txt,train/WNID/images/*.JPEG,val/val_annotations.txt,val/images/*.JPEG}"
    published = Published(100_000, 10_000, 200, (3, 64, 64), size="237 MB")
    recipes: ClassVar[dict[str, Recipe]] = {"plain": Recipe((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))}
    url: ClassVar[str] = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: ClassVar[str] = "90528d7ca1a48142e341f4ef8d21d0de"

    def fetch(self) -> None:
        folder, archive = _get_tiny_folder(), get_data_dir() / "tiny-imagenet-200.zip"
        if folder.is_dir():
            return
        download(self.name, self.url, archive, self.md5)
        check_md5(self.name, str(archive), archive, self.md5)
        unpack(self.name, archive, folder)
        archive.unlink()

    def read(self) -> Dataset:
        kinds = sorted(self._read_lines("wnids.txt"))
        parts = {"train": list(self._list_train(kinds)), "test": list(self._list_val(kinds))}
        arrays = cache_arrays(
            self.name,
            "1",
            [path for found in parts.values() for path, _ in found],
            lambda: {
                f"x_{part}": decode_pictures(self.name, [path for path, _ in found], 64)
                for part, found in parts.items()
            },
        )
        y_train, y_test = (np.array([label for _, label in parts[part]], dtype=np.int64) for part in ("train", "test"))
        return Dataset(self.name, arrays["x_train"], y_train, arrays["x_test"], y_test, len(kinds))

    def _read_lines(self, file: str) -> list[str]:
        path = _get_tiny_folder() / file
        if not path.exists():
            raise self.make_missing(f"tiny-imagenet-200/{file}")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"data.name: {self.name}: {path} cannot be read: {join_lines(error)}") from None
        if not lines:
            raise UserError(f"data.name: {self.name}: {path} is empty")
        return lines

    def _list_train(self, kinds: Sequence[str]) -> Iterator[tuple[Path, int]]:
        root = _get_tiny_folder() / "train"
        for label, kind in enumerate(kinds):
            if not re.fullmatch(r"n\d+", kind):
                raise UserError(f"data.name: {self.name}: wnids.txt: {truncate_repr(kind)} is not a WordNet id")
            paths = sorted((root / kind / "images").glob("*.JPEG"))
            if not paths:
                raise self.make_missing(f"tiny-imagenet-200/train/{kind}/images/*.JPEG")
            yield from ((path, label) for path in paths)

    def _list_val(self, kinds: Sequence[str]) -> Iterator[tuple[Path, int]]:
        labels = {kind: label for label, kind in enumerate(kinds)}
        for number, line in enumerate(self._read_lines("val/val_annotations.txt"), 1):
            name, kind = [*line.split("\t"), "", ""][:2]
            if not re.fullmatch(r"\w+\.JPEG", name) or kind not in labels:
                raise UserError(
                    f"data.name: {self.name}: val_annotations.txt: line {number}: found {truncate_repr(line)}; a file, "
                    "a tab and a class of wnids.txt are required"
                )
            path = _get_tiny_folder() / "val" / "images" / name
            if not path.exists():
                raise self.make_missing(f"tiny-imagenet-200/val/images/{name}")
            yield path, labels[kind]


def _get_tiny_folder() -> Path:
    return get_data_dir() / "tiny-imagenet-200"


class FedISIC2019(Images):
    """Fed-ISIC2019 in FLamby's layout: skin lesions, 8 classes, 6 centres as natural clients.

    FLamby's script leaves JPEGs with a short side of 224 pixels or more; the central `size` x `size` pixels are used.
    """

    name = "fed_isic2019"
    paper = (
        "Ogier du Terrail et al., FLamby: datasets and benchmarks for cross-silo federated learning in "
        "realistic healthcare settings, NeurIPS 2022"
    )
    licence = "CC-BY-NC-4.0"
    used_by = "FedGELA (6 centres split into 20 clients)"
    files = "fed_isic2019/train_test_split, fed_isic2019/ISIC_2019_Training_Input_preprocessed/*.jpg"
    recipes: ClassVar[dict[str, Recipe]] = {
        "plain": Recipe((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet's, for weights trained there
    }
    published = Published(18_597, 4_650, 8, (3, 200, 200), clients=6, size="9 GB, 23,247 images after preprocessing")
    size: int = Field(200, gt=0, description="side of the central square, pixels; FLamby's 200")

    def read(self) -> Dataset:
        root = get_data_dir() / "fed_isic2019"
        table = root / "train_test_split"
        if not table.exists():
            raise self.make_missing("fed_isic2019/train_test_split")
        parts: dict[str, list[tuple[Path, int, int]]] = {"train": [], "test": []}
        try:
            with table.open(newline="", encoding="utf-8") as file:
                lines = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"data.name: {self.name}: {table} cannot be read: {join_lines(error)}") from None
        for line, row in enumerate(lines, 2):
            try:
                if not re.fullmatch(r"\w[\w.-]*", row["image"]):
                    raise ValueError(f"{row['image']!r} is not the name of an image")
                path = root / "ISIC_2019_Training_Input_preprocessed" / f"{row['image']}.jpg"
                target, centre = int(row["target"]), int(row["center"])
                if not (0 <= target < 8 and 0 <= centre < 2**31):
                    raise ValueError(f"target {target}, center {centre}")
                parts[row["fold"]].append((path, target, centre))
            except (KeyError, ValueError, TypeError) as error:
                raise UserError(
                    f"data.name: {self.name}: {table}: line {line} has no image, target (0 to 7), center "
                    f"and fold (train or test): {truncate_repr(error)}"
                ) from None
        if empty := [part for part, found in parts.items() if not found]:
            raise UserError(f"data.name: {self.name}: {table} lists no image of fold {empty[0]}")
        rows = parts["train"] + parts["test"]
        for path, _, _ in rows:
            if not path.exists():
                raise self.make_missing(str(path.relative_to(get_data_dir())))
        arrays = cache_arrays(
            self.name,
            f"1 {self.size}",
            [table, *(path for path, _, _ in rows)],
            lambda: {
                f"x_{part}": decode_pictures(self.name, [path for path, _, _ in found], self.size, crop=True)
                for part, found in parts.items()
            },
        )
        labels, centres = (
            {part: np.array([row[k] for row in found], dtype=np.int64) for part, found in parts.items()} for k in (1, 2)
        )
        return Dataset(
            self.name,
            arrays["x_train"],
            labels["train"],
            arrays["x_test"],
            labels["test"],
            8,
            client_train=centres["train"],
            client_test=centres["test"],
        )

    def get_expected(self) -> Published:
        return Published(18_597, 4_650, 8, (3, self.size, self.size), clients=6)
