"""Pictures of your own in class folders: `data: {name: folder, path: ..., size: 64}`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.common.yaml_files import locate
from fedray.datasets.base import Images
from fedray.datasets.cache import cache_arrays
from fedray.datasets.dataset import Dataset
from fedray.datasets.image_folders import read_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


@dataclass(frozen=True)
class Picture:
    """A file with the names of its class and, with `client: folder`, of its client."""

    path: Path
    kind: str
    client: str = ""


class Folder(Images):
    """Pictures in one folder per class: `PATH/train/CLASS/*.jpg` and `PATH/test/CLASS/*.jpg`, or `PATH/CLASS/*.jpg`
    with `split`.

    Labels follow the sorted names of the classes. With `client: folder` there is a folder per client above the classes:
    `PATH/CLIENT/CLASS/*.jpg` or `PATH/train/CLIENT/CLASS/*.jpg`; `partition: natural` uses these clients.
    """

    name = "folder"
    path: str = Field(description="the folder")
    size: int = Field(gt=0, le=4096, description="side in pixels: pictures are scaled, and their centre is cut out")
    split: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of each class, and of each client, that is the test set; required unless `path` holds "
        "the folders train and test",
    )
    client: Literal["folder"] | None = Field(None, description="folder: class folders are in client folders")
    channels: Literal[1, 3] = Field(3, description="3: RGB; 1: grey")

    def read(self) -> Dataset:
        root = locate("data.path", self.path)
        if not root.is_dir():
            raise UserError(f"data.path: {root} is not a folder")
        has_parts = (root / "train").is_dir() and (root / "test").is_dir()
        if has_parts and self.split is not None:
            raise UserError(f"data.split: found {self.split:g}; {root} holds the folders train and test")
        if not has_parts and self.split is None:
            raise UserError(f"data.split is required: {root} does not hold the folders train and test")
        train = list(self._list_pictures(root / "train" if has_parts else root))
        test = list(self._list_pictures(root / "test")) if has_parts else []
        if self.split is not None:
            train, test = _split(train, self.split)
        kinds, clients = (sorted({getattr(one, key) for one in train}) for key in ("kind", "client"))
        for one in test:
            if one.kind not in kinds or one.client not in clients:
                raise UserError(f"data.path: {one.path}: no training picture is of that class and client")
        arrays = cache_arrays(
            self.name,
            f"1 {self.size} {self.channels} {len(train)}",
            [one.path for one in (*train, *test)],
            lambda: {
                f"x_{part}": np.stack([read_picture(one.path, self.size, self.channels) for one in found])
                for part, found in (("train", train), ("test", test))
                if found
            },
        )
        if not test:
            raise UserError(f"data.split: found {self.split:g}, which leaves no picture for the test set")
        y_train, y_test = (np.array([kinds.index(one.kind) for one in part]) for part in (train, test))
        c_train, c_test = (
            np.array([clients.index(one.client) for one in part]) if self.client else None for part in (train, test)
        )
        return Dataset(
            self.name, arrays["x_train"], y_train, arrays["x_test"], y_test, len(kinds), (), (), c_train, c_test
        )

    def _list_pictures(self, root: Path) -> Iterator[Picture]:
        for client in _list_folders(root) if self.client else [root]:
            for kind in _list_folders(client):
                files = sorted(file for file in kind.iterdir() if file.suffix.lower() in SUFFIXES)
                if not files:
                    client_hint = (
                        "" if self.client else "; a folder per client above the classes needs `client: folder`"
                    )
                    raise UserError(f"data.path: {kind} holds no picture{client_hint}")
                for file in files:
                    yield Picture(file, kind.name, client.name if self.client else "")


def _list_folders(root: Path) -> list[Path]:
    found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise UserError(f"data.path: {root} holds no folder; a folder per class is required")
    return found


def _split(pictures: list[Picture], fraction: float) -> tuple[list[Picture], list[Picture]]:
    """Return the pictures for training and for testing: a fixed fraction of each class of each client."""
    groups: dict[tuple[str, str], list[Picture]] = {}
    for one in pictures:
        groups.setdefault((one.client, one.kind), []).append(one)
    train: list[Picture] = []
    test: list[Picture] = []
    for (client, kind), group in groups.items():
        order = generator(0, f"folder/split/{client}/{kind}").permutation(len(group))
        held = set(order[: round(fraction * len(group))].tolist())
        for place, one in enumerate(group):
            (test if place in held else train).append(one)
    return train, test
