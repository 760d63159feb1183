"""Pictures of your own in class folders, for `data: {name: folder}`, and in folders of domains, for `domains`."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate, truncate_repr
from fedray.common.rng import generator
from fedray.common.whole_files import read_file
from fedray.common.yaml_files import locate
from fedray.components.identity import FILE
from fedray.datasets.base import Images, list_entries
from fedray.datasets.dataset import Dataset
from fedray.datasets.image_folders import SUFFIXES, Picture, list_class, read_pictures
from fedray.datasets.tables import refuse_two_spellings

log = logging.getLogger("fedray")


class Pictures(Images):
    """Base of pictures in class folders, which are below folders of clients or domains, or not."""

    level: ClassVar[str] = "client"
    """Meaning of a folder above the classes."""
    path: Annotated[str, FILE] = Field(description="the folder")
    size: int = Field(gt=0, le=4096, description="side in pixels: pictures are scaled, and their centre is cut out")
    split: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of each class of each client or domain that is the test set; required unless `path` "
        "holds the folders train and test, or with `data.test`",
    )
    channels: Literal[1, 3] = Field(3, description="3: RGB; 1: grey")

    def list_pictures(self, root: Path) -> Iterator[Picture]:
        """Yield the pictures of a folder, in a fixed order. Raises UserError."""
        raise NotImplementedError

    def name_classes(self, train: Sequence[Picture]) -> list[str]:
        """Return the classes in the order of their labels. Raises UserError."""
        return sorted({picture.kind for picture in train})

    def number_clients(self, part: str, pictures: Sequence[Picture], above: Sequence[str]) -> np.ndarray | None:
        """Return each picture's client, int64 `(n,)`, or None. part: train or test; above: the folders' names."""
        raise NotImplementedError

    def find(self, root: Path) -> tuple[list[Picture], list[Picture]]:
        """Return the pictures for training and for testing. Raises UserError."""
        has_parts = (root / "train").is_dir() and (root / "test").is_dir()
        if has_parts and self.split is not None:
            raise UserError(f"data.split: found {self.split:g}; {root} holds the folders train and test")
        if has_parts and (root / "train").samefile(root / "test"):
            raise UserError(f"data.path: {root / 'test'} is the folder {root / 'train'}; other pictures are required")
        if has_parts:
            return list(self.list_pictures(root / "train")), list(self.list_pictures(root / "test"))
        if self.split is None and self.test is None:
            raise UserError(f"data.split is required: {root} does not hold the folders train and test")
        pictures = list(self.list_pictures(root))
        if self.split is None:  # data.test makes a test set
            return pictures, []
        train, test = _split(pictures, self.split)
        if not test:
            raise UserError(f"data.split: found {self.split:g}, which leaves no picture for the test set")
        groups = {picture.path.parent for picture in train}
        if lost := [picture for picture in pictures if picture.path.parent not in groups]:
            raise UserError(
                f"data.split: found {self.split:g}, which leaves no picture of {lost[0].path.parent} for training"
            )
        return train, test

    def read(self) -> Dataset:
        root = locate("data.path", self.path)
        if not root.is_dir():
            raise UserError(f"data.path: {root} is not a folder{'' if root.is_absolute() else f' in {Path.cwd()}'}")
        train, test = self.find(root)
        if unread := _find_unread(root, [*train, *test]):
            told = "data.path: %s is not read, as %d in all: pictures lie in their class's folder, and end in %s"
            log.warning(told, unread[0], len(unread), ", ".join(SUFFIXES))
        kinds, above = self.name_classes(train), sorted({picture.above for picture in train})
        for what, names in (("classes", kinds), (f"{self.level}s", above)):
            refuse_two_spellings(f"data.path: {root}: {what}", names)
        for picture in test:
            if picture.kind not in kinds or picture.above not in above:
                raise UserError(f"data.path: {picture.path}: no training picture is of that class and {self.level}")
        parts, version = {"train": train, "test": test}, f"2 {self.size} {self.channels}"
        clients = {part: self.number_clients(part, pictures, above) for part, pictures in parts.items()}
        return read_pictures(
            self.name, "data.path", version, parts, kinds, self.size, self.channels, cut="scaled", clients=clients
        )


class Folder(Pictures):
    """Pictures in one folder per class: `PATH/train/CLASS/*.jpg` and `PATH/test/CLASS/*.jpg`, or `PATH/CLASS/*.jpg`
    with `split`.

    Labels follow the sorted names of the classes. With `client: folder` there is a folder per client above the classes:
    `PATH/CLIENT/CLASS/*.jpg` or `PATH/train/CLIENT/CLASS/*.jpg`; `partition: natural` uses these clients.
    """

    name = "folder"
    client: Literal["folder"] | None = Field(None, description="folder: class folders are in client folders")

    def list_pictures(self, root: Path) -> Iterator[Picture]:
        hint = "; CLIENT/CLASS/*.jpg is required, in `path` or in its folders train and test"
        hint = hint if self.client else "; a folder per client above the classes needs `client: folder`"
        for client in _list_folders(root) if self.client else [root]:
            for kind in _list_folders(client):
                missing = UserError(f"data.path: {kind} holds no picture{hint}")
                yield from list_class(kind, kind.name, client.name if self.client else "", empty=missing)

    def number_clients(self, part: str, pictures: Sequence[Picture], above: Sequence[str]) -> np.ndarray | None:
        return np.array([above.index(one.above) for one in pictures], dtype=np.int64) if self.client else None


class Domains(Pictures):
    """Pictures of the same classes in several domains: `PATH/DOMAIN/CLASS/*.jpg`, as Digits-5, Office-Caltech10, PACS
    and DomainNet.

    The test set is a fraction (`split`) of each class of each domain, or comes from the folders `PATH/train/DOMAIN` and
    `PATH/test/DOMAIN`, or from lists `PATH/DOMAIN_train.txt` and `PATH/DOMAIN_test.txt` of files, as DomainNet
    publishes them. Natural clients (`partition: natural`) are the domains in the order of their names, or
    `clients_per_domain` clients of each, among which its pictures are dealt at random, always in the same way.
    """

    name = "domains"
    level = "domain"
    clients_per_domain: int = Field(1, ge=1, description="natural clients of each domain, which share its pictures")
    classes: tuple[str, ...] | None = Field(
        None, min_length=2, description="the classes that are used, in the order of their labels; default all"
    )

    def list_pictures(self, root: Path) -> Iterator[Picture]:
        for domain in _list_folders(root):
            kinds = {kind.name: kind for kind in _list_folders(domain)}
            for name in self.classes or kinds:
                if name not in kinds:
                    raise UserError(f"data.classes: {domain} has no class {truncate_repr(name)}")
                hint = "DOMAIN/CLASS/*.jpg is required, in `path` or in its folders train and test"
                missing = UserError(f"data.path: {kinds[name]} holds no picture; {hint}")
                yield from list_class(kinds[name], name, domain.name, empty=missing)

    def name_classes(self, train: Sequence[Picture]) -> list[str]:
        kinds = list(self.classes or super().name_classes(train))
        if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
            raise UserError(f"data.classes: found {truncate_repr(twice[0])} twice")
        owners: dict[str, set[str]] = {}
        for picture in train:
            owners.setdefault(picture.above, set()).add(picture.kind)
        for domain in sorted(owners):
            for kind in kinds:
                if kind not in owners[domain]:
                    other = next(name for name in sorted(owners) if kind in owners[name])
                    raise UserError(
                        f"data.path: domain {domain} has no training picture of class {kind}, which {other} has; "
                        "`classes` names those to use"
                    )
        return kinds

    def number_clients(self, part: str, pictures: Sequence[Picture], above: Sequence[str]) -> np.ndarray:
        owner = np.array([above.index(one.above) for one in pictures])
        result = np.empty(len(owner), dtype=np.int64)
        for number, domain in enumerate(above):
            at = np.flatnonzero(owner == number)
            if len(at) < self.clients_per_domain and pictures:
                raise UserError(
                    f"data.clients_per_domain: found {self.clients_per_domain}; domain {domain} has {len(at)} {part} "
                    "pictures, and each client needs one"
                )
            order = generator(0, f"domains/{part}/{domain}").permutation(at)
            for share, dealt in enumerate(np.array_split(order, self.clients_per_domain)):
                result[dealt] = number * self.clients_per_domain + share
        return result

    def find(self, root: Path) -> tuple[list[Picture], list[Picture]]:
        lists = [root / f"{domain.name}_{part}.txt" for domain in _list_folders(root) for part in ("train", "test")]
        if not any(path.exists() for path in lists):
            return super().find(root)
        if self.split is not None:
            raise UserError(
                f"data.split: found {self.split:g}; {root} holds lists DOMAIN_train.txt and DOMAIN_test.txt"
            )
        parts = [[picture for path in lists[start::2] for picture in self._read_list(root, path)] for start in (0, 1)]
        return parts[0], parts[1]

    def _read_list(self, root: Path, path: Path) -> Iterator[Picture]:
        """Yield the pictures of a list: each line has a file below `root` and its label, which the folder gives too."""
        with restate(f"data.path: {path} cannot be read", OSError, UnicodeDecodeError):
            lines = read_file(path).decode().splitlines()
        listed = False
        for number, line in enumerate(lines, 1):
            parts = line.rpartition(" ")[0].split("/")
            if len(parts) != 3 or not all(parts) or {".", ".."} & set(parts):
                raise UserError(
                    f"data.path: {path}: line {number}: found {truncate_repr(line)}; DOMAIN/CLASS/FILE and a label are "
                    "required"
                )
            if self.classes is None or parts[1] in self.classes:
                listed = True
                yield Picture(root.joinpath(*parts), parts[1], parts[0])
        if not listed:
            raise UserError(f"data.path: {path} lists no picture" + " of the `classes`" * (self.classes is not None))


def _find_unread(root: Path, read: Sequence[Picture]) -> list[Path]:
    """Return what is no picture in the folders of classes, the files next to them, and the folders that none is in."""
    kinds = {picture.path.parent for picture in read}
    inside = [path for kind in kinds for path in list_entries(kind) if path.suffix.lower() not in SUFFIXES]
    beside = [path for home in {kind.parent for kind in kinds} for path in list_entries(home) if path.is_file()]
    tops = {root / picture.path.relative_to(root).parts[0] for picture in read}
    return sorted([*inside, *beside, *(path for path in list_entries(root) if path.is_dir() and path not in tops)])


def _list_folders(root: Path) -> list[Path]:
    folders = [path for path in list_entries(root) if path.is_dir()]
    if not folders:
        raise UserError(f"data.path: {root} holds no folder; a folder per class is required")
    return folders


def _split(pictures: list[Picture], fraction: float) -> tuple[list[Picture], list[Picture]]:
    """Return the pictures for training and for testing: a fixed fraction of each class of each folder."""
    groups: dict[tuple[str, str], list[Picture]] = {}
    for picture in pictures:
        groups.setdefault((picture.above, picture.kind), []).append(picture)
    train: list[Picture] = []
    test: list[Picture] = []
    for (above, kind), group in groups.items():
        order = generator(0, f"folder/split/{above}/{kind}").permutation(len(group))
        held = set(order[: round(fraction * len(group))].tolist())
        for place, picture in enumerate(group):
            (test if place in held else train).append(picture)
    return train, test
