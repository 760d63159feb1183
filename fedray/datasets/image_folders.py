"""Data sets whose images are files in folders, decoded once and cached: CINIC-10, Tiny-ImageNet, Fed-ISIC2019."""

import contextlib
import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, join_lines, truncate_repr
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
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CINIC_COLOURS = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))


def open_picture(file: Path | BinaryIO, mode: str | None = None, upright: bool = True) -> "Image.Image":
    """Read a picture with 8 bits per channel. Grey of more bits is scaled from its whole range: 65,535 becomes 255.

    Args:
        file: a picture in one of FORMATS.
        mode: Pillow's `L` or `RGB`; None: `L` for grey pictures, otherwise `RGB`.
        upright: turn it as its EXIF orientation says.

    Raises:
        Exception: of a dozen types: it cannot be read (some files unpack to gigabytes), or its range is not known.
    """
    from PIL import Image, ImageOps

    source = open_file(file) if isinstance(file, Path) else contextlib.nullcontext(file)
    with source as content, Image.open(content, formats=FORMATS) as opened:
        picture = ImageOps.exif_transpose(opened) if upright else opened
        if opened.mode == "F":
            raise ValueError("its pixels are floating-point numbers, whose range is not known; save 8 or 16 bits")
        if opened.mode.startswith("I"):
            tags = getattr(opened, "tag_v2", {})  # of a TIFF
            picture = Image.fromarray(_scale_grey(np.asarray(picture), tags.get(258, (16,))[0], tags.get(262, 1)))
        return picture.convert(mode or ("L" if picture.mode in ("1", "L") else "RGB"))


def _scale_grey(pixels: np.ndarray, bits: int, black: int) -> np.ndarray:
    """Return grey values of more than 8 bits as uint8. black: TIFF's interpretation, 1 if zero is black."""
    largest = (1 << min(bits, 16)) - 1
    low, high = int(pixels.min()), int(pixels.max())
    if black != 1:
        raise ValueError(f"its grey values have TIFF's interpretation {black}; 1 is required, zero as black")
    if low < 0 or high > largest or (bits > 16 and 0 < high <= 255):  # 32 bits are taken for 16, as Pillow writes them
        raise ValueError(f"its pixels are {low} to {high} in {bits} bits, whose range is not known; save 8 or 16")
    return np.round(pixels * (255 / largest)).astype(np.uint8)


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
    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        try:
            pixels = np.asarray(open_picture(path, "RGB", upright=False))
        except Exception as error:
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
        picture = open_picture(path, "RGB" if channels == 3 else "L")
        pixels = np.asarray(ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR))
    except Exception as error:
        raise UserError(f"data.path: {path} cannot be read: {join_lines(error)}") from None
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def cache_pictures(
    name: str,
    version: str,
    paths: Mapping[str, Sequence[Path]],
    facts: Mapping[str, np.ndarray],
    decode: Callable[[Sequence[Path]], np.ndarray],
) -> dict[str, Any]:
    """Return the pictures of each part together with their labels and clients, as `cache_arrays` does.

    Args:
        name: of the data set.
        version: of the decoder and its options.
        paths: part (train, test) -> the files.
        facts: labels and natural clients by their names in a `Dataset`; they are part of the key.
        decode: makes uint8 `(n, channels, size, size)` of n files.
    """
    every = [path for found in paths.values() for path in found]
    if twice := [path for path, count in Counter(every).items() if count > 1]:
        raise UserError(f"data: {name}: {twice[0]} is listed twice")
    listed = {key: array.tolist() for key, array in facts.items()}

    def decode_all() -> dict[str, np.ndarray]:
        x = {f"x_{part}": decode(found) for part, found in paths.items()}
        if (largest := max(int(array.max()) for array in x.values())) < 32:
            log.warning(
                "%s: the largest of all pixels is %d of 255; 16 bits are scaled from 65,535, even if 12 are in use",
                name,
                largest,
            )
        return {**x, **facts}

    return cache_arrays(name, f"{version} {listed}", every, decode_all)


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
        arrays = cache_pictures(
            self.name,
            "2",
            {part: [path for path, _ in found] for part, found in files.items()},
            {f"y_{part}": np.array([label for _, label in found]) for part, found in files.items()},
            lambda paths: decode_pictures(self.name, paths, 32),
        )
        return Dataset(self.name, num_classes=10, **arrays)

    def get_expected(self) -> Published:
        return Published(180_000 if self.validation_images == "train" else 90_000, 90_000, 10, (3, 32, 32))

    def _list_files(self, folders: Sequence[str]) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        for folder in folders:
            for label, kind in enumerate(CIFAR_CLASSES):
                paths = list_entries(get_data_dir() / "cinic-10" / folder / kind, "*.png")
                if not paths:
                    raise self.make_missing(f"cinic-10/{folder}/{kind}/*.png")
                found += [(path, label) for path in paths]
            strange = {path.name for path in list_entries(get_data_dir() / "cinic-10" / folder) if path.is_dir()}
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
        arrays = cache_pictures(
            self.name,
            "2",
            {part: [path for path, _ in found] for part, found in parts.items()},
            {f"y_{part}": np.array([label for _, label in found]) for part, found in parts.items()},
            lambda paths: decode_pictures(self.name, paths, 64),
        )
        return Dataset(self.name, num_classes=len(kinds), **arrays)

    def _read_lines(self, file: str) -> list[str]:
        path = _get_tiny_folder() / file
        if not path.exists():
            raise self.make_missing(f"tiny-imagenet-200/{file}")
        try:
            lines = read_file(path).decode().splitlines()
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
            paths = list_entries(root / kind / "images", "*.JPEG")
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
    size: int = Field(200, gt=0, le=4096, description="side of the central square, pixels; FLamby's 200")

    def read(self) -> Dataset:
        root = get_data_dir() / "fed_isic2019"
        table = root / "train_test_split"
        if not table.exists():
            raise self.make_missing("fed_isic2019/train_test_split")
        parts: dict[str, list[tuple[Path, int, int]]] = {"train": [], "test": []}
        try:
            with io.TextIOWrapper(open_file(table), newline="", encoding="utf-8") as file:
                lines = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"data.name: {self.name}: {table} cannot be read: {join_lines(error)}") from None
        for line, row in enumerate(lines, 2):
            try:
                if not re.fullmatch(r"\w[\w.-]*", row["image"]):
                    raise ValueError(f"{row['image']!r} is not the name of an image")
                path = root / "ISIC_2019_Training_Input_preprocessed" / f"{row['image']}.jpg"
                if not (re.fullmatch("[0-7]", row["target"]) and re.fullmatch("[0-9]{1,9}", row["center"])):
                    raise ValueError(f"target {row['target']}, center {row['center']}")
                target, centre = int(row["target"]), int(row["center"])
                parts[row["fold"]].append((path, target, centre))
            except (KeyError, ValueError, TypeError) as error:
                raise UserError(
                    f"data.name: {self.name}: {table}: line {line} has no image, target (0 to 7), center "
                    f"and fold (train or test): {truncate_repr(error)}"
                ) from None
        if empty := [part for part, found in parts.items() if not found]:
            raise UserError(f"data.name: {self.name}: {table} lists no image of fold {empty[0]}")
        for path, _, _ in parts["train"] + parts["test"]:
            if not path.exists():
                raise self.make_missing(str(path.relative_to(get_data_dir())))
        arrays = cache_pictures(
            self.name,
            f"2 {self.size}",
            {part: [path for path, _, _ in found] for part, found in parts.items()},
            {
                f"{key}_{part}": np.array([row[k] for row in found])
                for part, found in parts.items()
                for k, key in ((1, "y"), (2, "client"))
            },
            lambda paths: decode_pictures(self.name, paths, self.size, crop=True),
        )
        return Dataset(self.name, num_classes=8, **arrays)

    def get_expected(self) -> Published:
        return Published(18_597, 4_650, 8, (3, self.size, self.size), clients=6)
