"""The base of data sets: a name, the location of the files, published facts, and the papers' recipes."""

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, SerializeAsAny, field_validator, model_validator

from fedray.common.errors import DataMissing, UserError, truncate_repr, unknown
from fedray.common.rng import key_draws
from fedray.common.yaml_files import locate
from fedray.components.base import Checked, Component, describe_owners
from fedray.components.identity import list_files, make_entry
from fedray.components.plugins import blame
from fedray.datasets.augment import Transform, parse_transforms
from fedray.datasets.dataset import Dataset, describe_empty, describe_repeated

log = logging.getLogger("fedray")
LITTER = {"__MACOSX", "@eaDir", "@Recycle", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"}
LITTER |= {"Thumbs.db", "desktop.ini"}
"""Folders of macOS, of network storage, of Windows and of Linux, and files of Windows."""


def get_data_dir() -> Path:
    """Return the folder of data files: `$FEDRAY_DATA`, else ~/.cache/fedray."""
    return locate("FEDRAY_DATA", os.environ.get("FEDRAY_DATA") or "~/.cache/fedray")


def list_entries(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a folder in order, without what systems leave there: `._1.png`, `__MACOSX`, `@eaDir`."""
    return sorted(path for path in folder.glob(pattern) if path.name[0] != "." and path.name not in LITTER)


@dataclass(frozen=True)
class Published:
    """Facts about a data set before its files are read; None if they depend on how the files were made.

    train, test, clients: numbers of samples and natural clients; shape: of one sample as read; size: of the download.
    """

    train: int | None
    test: int | None
    classes: int
    shape: tuple[int, ...]
    clients: int | None = None
    size: str = ""


class Validation(Checked):
    """Samples held out of training, on which configurations and rounds are selected.

    They are drawn class by class in proportion, keyed by the run's seed.
    """

    fraction: float = Field(0.1, gt=0, lt=1, description="fraction of the samples that is held out")
    source: Literal["clients", "pool"] = Field(
        "clients",
        alias="from",
        description="clients: that share of every client's shard, rounded; pool: of the training set, before "
        "it is split",
    )


class Test(Checked):
    """Each client's own test samples, drawn from its shard, instead of the official test set.

    Training and test set are merged, in this order, and dealt to the clients; each client's samples are then split at
    random, keyed by the run's seed, as PFLlib and FL-bench do.
    """

    __test__ = False  # not a class of pytest's

    source: Literal["clients"] = Field("clients", alias="from", description="from every client's samples")
    fraction: float = Field(
        0.25, gt=0, lt=1, description="fraction of each client's different samples, rounded up; one is left to train on"
    )
    stratify: bool = Field(False, description="draw them class by class in proportion")


class DataSource(Component):
    """Base of the data sets: `load()` returns the arrays or raises UserError that names the missing file and its
    folder.
    """

    section = "data"
    hint = (
        "; your own data: {name: folder, path: FOLDER, size: PIXELS}, {name: npz, path: FILE} or a class, "
        "`package.module:Class`"
    )
    validation: Validation | None = Field(
        None, description="hold samples out of training, to select on them: `{}`, or its keys"
    )
    test: Test | None = Field(
        None, description="test on samples of the clients instead of the official test set: `{}`, or its keys"
    )

    def list_identity_entries(self) -> dict[str, Any]:
        asked = {"validation": self.validation, "test": self.test}
        held_out = {key: make_entry(value) for key, value in asked.items() if value is not None}
        return {"name": self.name, **held_out}  # the arrays enter by digest, so the options that make them do not

    files: ClassVar[str] = ""
    """The required files, relative to `get_data_dir()`."""
    used_by: ClassVar[str] = ""
    """The papers whose experiments use it."""
    published: ClassVar[Published | None] = None
    needs_files: ClassVar[bool] = True
    """False if the samples are given or computed, so that there is nothing to fetch."""
    licence: ClassVar[str] = ""
    """The licence as its publisher states it, an SPDX identifier or words; empty if none is known."""

    @classmethod
    def make_row(cls) -> tuple[str, str, str]:
        options, what, paper = super().make_row()
        facts = {"Used by": cls.used_by, "Files": cls.files, "Download": cls.published.size if cls.published else ""}
        facts |= {"Licence": cls.licence}
        return options, " ".join([what, *(f"{key}: {value}." for key, value in facts.items() if value)]), paper

    def load(self) -> Dataset:
        """Read the arrays."""
        raise NotImplementedError

    def list_loading_options(self) -> dict[str, Any]:
        """Return the options, in JSON types, that decide what `load` returns."""
        return {key: value for key, value in self.list_options().items() if key not in ("validation", "test")}

    def refuse_other(self, data: Dataset) -> None:
        """Raise UserError if a data set is not what this section loads, as far as it tells."""
        if ":" not in self.name and data.name != self.name:
            raise UserError(f"simulate: data: found the data set {data.name}; data.name is {self.name}")
        files = list_files(type(self))
        for key, value in self.list_loading_options().items():
            if data.options is not None:
                given = data.options.get(key)
                places = {locate("data.path", str(one)).resolve() for one in (given, value) if key in files}
                if given != value and len(places) != 1:
                    found = f"{key} {truncate_repr(given)}; data.{key} is {truncate_repr(value)}"
                    raise UserError(f"simulate: data: was loaded with {found}")
                continue
            default = type(self).model_fields.get(key)
            if default and not default.is_required() and value != make_entry(default.default):
                raise UserError(
                    f"simulate: data: found arrays of your own, which data.{key} does not change; give it to the "
                    "Dataset, or leave it out"
                )

    def fetch(self) -> None:
        """Download the files into `get_data_dir()`. Raises UserError if that is not possible."""
        if self.needs_files:
            raise UserError(
                f"data.name: {self.name} cannot be downloaded by fedray; put {self.files or 'its files'} in "
                f"{get_data_dir()}"
            )

    def get_expected(self) -> Published | None:
        """Return the published facts under these options, for `fedray data check`."""
        return self.published

    def require(self, file: str) -> Path:
        """Return the path of a file below `get_data_dir()`. Raises DataMissing if there is none."""
        path = get_data_dir() / file
        if not path.exists():
            raise self.make_missing(file)
        return path

    def make_missing(self, what: str) -> DataMissing:
        """Return the error for missing files."""
        return DataMissing(
            f"data.name: {self.name} is not in {get_data_dir()}: {what} is missing; `fedray data fetch "
            f"{self.name}` gets it or tells how, FEDRAY_DATA names another folder"
        )


@dataclass(frozen=True)
class Recipe:
    """A paper's preparation of the images: normalisation constants per channel, transforms, 3 channels for grey to
    RGB.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: tuple[Transform, ...] = ()
    channels: int | None = None


def load_data(source: DataSource) -> Dataset:
    """Read a data set; warn if samples of your own are trained on and tested on, or an output has none.

    Raises UserError if that is not possible, or a user's own class raises or returns no data.
    """
    with blame(source), key_draws(True, 0, "data"):  # a class that draws them by numpy.random has the same each time
        data = _refuse_other(source, "load", source.load())
    if source.published is None:
        pooled = source.test is not None
        labels = np.concatenate([data.y_train, data.y_test]) if pooled else data.y_train
        for line in (describe_repeated(data.x_train, data.x_test, pooled), describe_empty(labels, data.num_classes)):
            if line:
                log.warning("data: %s", line)
    return replace(data, options=source.list_loading_options())


def _refuse_other(source: DataSource, method: str, found: object) -> Dataset:
    if not isinstance(found, Dataset):
        raise UserError(f"data: {source.name}.{method} returns a {type(found).__name__}; a Dataset is required")
    return found


class Images(DataSource):
    """Base of the image data sets: a recipe by name, and overrides of it."""

    recipes: ClassVar[dict[str, Recipe]] = {"plain": Recipe()}
    preset: str = Field("plain", description="a paper's normalisation and augmentation; plain: no augmentation")
    augment: tuple[SerializeAsAny[Transform], ...] | None = Field(
        None, description="transforms in order, of flip, crop, rotate, cutout, instead of the preset's; [] for none"
    )
    channels: Literal[1, 3] | None = Field(None, description="3: grey images become RGB; default: the preset's")
    mean: tuple[float, ...] = Field((), description="per channel, of images in [0, 1]; default: the preset's")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="per channel, of images in [0, 1]; default: the preset's"
    )

    @field_validator("augment", mode="before")
    @classmethod
    def _transforms(cls, value: Any) -> Any:
        return value if value is None else parse_transforms("data.augment", value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.preset not in self.recipes:
            from fedray.datasets import DATASETS  # here: it imports this module

            owners = [name for name, kind in DATASETS.items() if self.preset in getattr(kind, "recipes", ())]
            error = unknown(f"data.preset of {self.name}", self.preset, self.recipes)
            raise UserError(f"{error}{describe_owners(self.preset, owners)}")
        return self

    def read(self) -> Dataset:
        """Return the arrays as the files have them, without normalisation."""
        raise NotImplementedError

    def load(self) -> Dataset:
        data, recipe = _refuse_other(self, "read", self.read()), self.recipes[self.preset]
        channels = self.channels or recipe.channels
        if channels is not None and channels != data.input_shape[0]:
            if data.x_train.ndim != 4 or data.input_shape[0] != 1:
                found = f"found {channels}; {data.name} has samples of shape {data.input_shape}"
                raise UserError(f"data.channels: {found}, only grey images are repeated")
            parts = (data.x_train, data.x_test)
            x_train, x_test = (np.broadcast_to(x, (len(x), channels, *x.shape[2:])) for x in parts)  # without a copy
            data = replace(data, x_train=x_train, x_test=x_test)
        width = data.input_shape[0] if data.x_train.dtype == np.uint8 else 0
        if not width and (self.mean or self.std):
            raise UserError(f"data.mean: only uint8 images are normalised; x_train is {data.x_train.dtype}")
        mean, std = (
            tuple(values) * width if len(values) == 1 else tuple(values)
            for values in (self.mean or recipe.mean, self.std or recipe.std)
        )
        if len(mean) != len(std) or (mean and len(mean) != width):
            raise UserError(f"data.mean: found {len(mean)} means and {len(std)} stds; the images have {width} channels")
        return replace(data, mean=mean, std=std, augment=recipe.augment if self.augment is None else self.augment)
