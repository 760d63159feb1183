"""Pictures in folders, decoded once and cached, and the sets read so: CINIC-10, Tiny-ImageNet, Fed-ISIC2019."""

import contextlib
import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate, truncate_repr
from fedray.common.whole_files import open_file, read_file
from fedray.datasets.augment import Crop, Flip
from fedray.datasets.base import Images, Published, Recipe, get_data_dir, list_entries
from fedray.datasets.cache import cache_arrays, check_md5, download, unpack
from fedray.datasets.dataset import Dataset

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger("fedray")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Pillow's readers that may open a picture; one of the others starts a program, Ghostscript."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pnm")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CINIC_COLOURS = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))


def open_picture(file: Path | BinaryIO, mode: str | None = None, upright: bool = True) -> "Image.Image":
    """Read a picture with 8 bits per channel. Raises a dozen types if it has more, or cannot be read."""
    from PIL import Image, ImageOps

    source = open_file(file) if isinstance(file, Path) else contextlib.nullcontext(file)
    with source as content, Image.open(content, formats=FORMATS) as opened:
        picture = ImageOps.exif_transpose(opened) if upright else opened
        if opened.mode[0] in "FI":
            raise ValueError(f"its pixels have Pillow's mode {opened.mode}; 8 bits per channel are required")
        return picture.convert(mode or ("L" if picture.mode in ("1", "L") else "RGB"))


@dataclass(frozen=True)
class Picture:
    """A file with the names of its class and of the folder above the class, if that counts: a client, or a domain."""

    path: Path
    kind: str
    above: str = ""


def list_class(folder: Path, kind: str, above: str = "", pattern: str = "*", *, empty: UserError) -> list[Picture]:
    """Return the pictures in a class's folder; raise `empty` if there are none."""
    paths = [path for path in list_entries(folder, pattern) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise empty
    return [Picture(path, kind, above) for path in paths]


Cut = Literal["no", "centre", "scaled"]


def decode_pictures(where: str, paths: Sequence[Path], size: int, channels: int = 3, cut: Cut = "no") -> np.ndarray:
    """Read pictures, uint8 `(n, channels, size, size)`. Raises UserError for a file of another size or that cannot be
    read.

    cut: no: every picture must have that size; centre: take the centre of larger pictures; scaled: turn a picture
    upright, scale it until its shorter side has `size` pixels, and take its centre.
    """
    from PIL import Image, ImageOps

    images = np.empty((len(paths), channels, size, size), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        with restate(f"{where}: {path} cannot be read", Exception):
            picture = open_picture(path, "RGB" if channels == 3 else "L", upright=cut == "scaled")
            if cut == "scaled":
                picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
        height, width = pixels.shape[:2]
        if (min(height, width) < size) if cut == "centre" else (height, width) != (size, size):
            raise UserError(
                f"{where}: {path} has {width}x{height} pixels, "
                f"{'at least ' if cut == 'centre' else ''}{size}x{size} are required"
            )
        top, left = (height - size) // 2, (width - size) // 2
        image[:] = pixels[top : top + size, left : left + size].reshape(size, size, channels).transpose(2, 0, 1)
    return images


def read_pictures(
    name: str,
    where: str,
    version: str,
    parts: Mapping[str, Sequence[Picture]],
    kinds: Sequence[str],
    size: int,
    channels: int = 3,
    cut: Cut = "no",
    clients: Mapping[str, np.ndarray | None] | None = None,
) -> Dataset:
    """Return the data set of the pictures of train and test, decoded once (`decode_pictures`) and cached.

    `version` is that of the decoder and its options, `kinds` are the classes in the order of their labels, `clients`
    each picture's natural client.
    """
    every = [picture.path for pictures in parts.values() for picture in pictures]
    if twice := [path for path, count in Counter(every).items() if count > 1]:
        raise UserError(f"data: {name}: {twice[0]} is listed twice")
    labels = {kind: label for label, kind in enumerate(kinds)}
    facts = {f"y_{part}": np.array([labels[one.kind] for one in parts[part]], dtype=np.int64) for part in parts}
    facts |= {f"client_{part}": numbers for part, numbers in (clients or {}).items() if numbers is not None}

    def decode_all() -> dict[str, np.ndarray]:
        paths = {part: [picture.path for picture in pictures] for part, pictures in parts.items()}
        x = {f"x_{part}": decode_pictures(where, paths[part], size, channels, cut) for part in parts}
        return {**x, **facts}

    listed = {key: array.tolist() for key, array in facts.items()}  # labels and clients are part of the key
    names = [*facts, *(f"x_{part}" for part in parts)]
    arrays: dict[str, Any] = cache_arrays(name, f"{version} {listed}", every, names, decode_all)
    return Dataset(name, num_classes=len(kinds), **arrays)


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
        folders = {"train": ("train", "valid") if self.validation_images == "train" else ("train",), "test": ("test",)}
        parts = {part: list(self._list_pictures(folders[part])) for part in folders}
        return read_pictures(self.name, f"data.name: {self.name}", "2", parts, CIFAR_CLASSES, 32)

    def get_expected(self) -> Published:
        return replace(self.published, train=180_000) if self.validation_images == "train" else self.published

    def _list_pictures(self, folders: Sequence[str]) -> Iterator[Picture]:
        for folder in folders:
            root = get_data_dir() / "cinic-10" / folder
            for kind in CIFAR_CLASSES:
                missing = self.make_missing(f"cinic-10/{folder}/{kind}/*.png")
                yield from list_class(root / kind, kind, pattern="*.png", empty=missing)
            strange = {path.name for path in list_entries(root) if path.is_dir()} - set(CIFAR_CLASSES)
            if strange:
                raise UserError(
                    f"data.name: {self.name}: cinic-10/{folder} has a folder {min(strange)!r}; allowed are "
                    f"{', '.join(CIFAR_CLASSES)}"
                )


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
        folder, archive = (get_data_dir() / f"tiny-imagenet-200{end}" for end in ("", ".zip"))
        if folder.is_dir():
            return
        is_own = archive.exists()
        download(self.name, self.url, archive, self.md5)
        check_md5(self.name, str(archive), archive, self.md5)
        unpack(self.name, archive, folder)
        if not is_own:
            archive.unlink()

    def read(self) -> Dataset:
        kinds = sorted(self._read_lines("wnids.txt"))
        parts: dict[str, list[Picture]] = {"train": [], "test": []}
        for kind in kinds:
            if not re.fullmatch(r"n\d+", kind):
                raise UserError(f"data.name: {self.name}: wnids.txt: {truncate_repr(kind)} is not a WordNet id")
            folder = f"tiny-imagenet-200/train/{kind}/images"
            missing = self.make_missing(f"{folder}/*.JPEG")
            parts["train"] += list_class(get_data_dir() / folder, kind, pattern="*.JPEG", empty=missing)
        for number, line in enumerate(self._read_lines("val/val_annotations.txt"), 1):
            name, kind = [*line.split("\t"), "", ""][:2]
            if not re.fullmatch(r"\w+\.JPEG", name) or kind not in kinds:
                raise UserError(
                    f"data.name: {self.name}: val_annotations.txt: line {number}: found {truncate_repr(line)}; a file, "
                    "a tab and a class of wnids.txt are required"
                )
            parts["test"].append(Picture(self.require(f"tiny-imagenet-200/val/images/{name}"), kind))
        return read_pictures(self.name, f"data.name: {self.name}", "2", parts, kinds, 64)

    def _read_lines(self, file: str) -> list[str]:
        path = self.require(f"tiny-imagenet-200/{file}")
        with restate(f"data.name: {self.name}: {path} cannot be read", OSError, UnicodeDecodeError):
            lines = read_file(path).decode().splitlines()
        if not lines:
            raise UserError(f"data.name: {self.name}: {path} is empty")
        return lines


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
        "plain": Recipe((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's, for weights trained there
    }
    published = Published(18_597, 4_650, 8, (3, 200, 200), clients=6, size="9 GB, 23,247 images after preprocessing")
    size: int = Field(200, gt=0, le=4096, description="side of the central square, pixels; FLamby's 200")

    def read(self) -> Dataset:
        table, pictures = self.require("fed_isic2019/train_test_split"), "ISIC_2019_Training_Input_preprocessed"
        parts: dict[str, list[Picture]] = {"train": [], "test": []}
        with (
            restate(f"data.name: {self.name}: {table} cannot be read", OSError, UnicodeDecodeError, csv.Error),
            io.TextIOWrapper(open_file(table), newline="", encoding="utf-8") as file,
        ):
            lines = list(csv.DictReader(file))
        for line, row in enumerate(lines, 2):
            try:
                if not re.fullmatch(r"\w[\w.-]*", row["image"]):
                    raise ValueError(f"{row['image']!r} is not the name of an image")
                if not (re.fullmatch("[0-7]", row["target"]) and re.fullmatch("[0-9]{1,9}", row["center"])):
                    raise ValueError(f"target {row['target']}, center {row['center']}")
                part, picture = parts[row["fold"]], f"fed_isic2019/{pictures}/{row['image']}.jpg"
            except (KeyError, ValueError, TypeError) as error:
                raise UserError(
                    f"data.name: {self.name}: {table}: line {line} has no image, target (0 to 7), center "
                    f"and fold (train or test): {truncate_repr(error)}"
                ) from None
            part.append(Picture(self.require(picture), row["target"], row["center"]))
        if empty := [part for part, found in parts.items() if not found]:
            raise UserError(f"data.name: {self.name}: {table} lists no image of fold {empty[0]}")
        centres = {part: np.array([int(picture.above) for picture in parts[part]]) for part in parts}
        where, version = f"data.name: {self.name}", f"2 {self.size}"
        return read_pictures(self.name, where, version, parts, "01234567", self.size, cut="centre", clients=centres)

    def get_expected(self) -> Published:
        return replace(self.published, shape=(3, self.size, self.size))
