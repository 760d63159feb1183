"""Data sets of Hugging Face as the arrays of an npz file: `fedray data import hf:NAME out.npz`.

The package `datasets` is an optional extra, `fedray[hf]`. From version 4 on it runs no code of a data set.
"""

import io
import itertools
import os
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedray.common.errors import UserError, join_lines, refuse_missing_package, unknown
from fedray.datasets.arrays import check_arrays
from fedray.datasets.image_folders import open_picture
from fedray.datasets.own.tables import refuse_two_spellings

PATIENCE = 5.0
"""Seconds in which the hub has to answer."""
NUMBERS = ("int", "uint", "float", "bool")
"""Beginnings of the column types that become features."""


@dataclass(frozen=True)
class Columns:
    """Parts to read: names of splits (slices such as `train[:80%]` too) and columns; None: found by their types.

    size: side in pixels to which pictures are scaled and cropped; None if all are of one size.
    """

    train: str = "train"
    test: str = "test"
    label: str | None = None
    client: str | None = None
    size: int | None = None


def read_hub(name: str, columns: Columns) -> dict[str, np.ndarray]:
    """Return the arrays of an npz data set: x_train, y_train, x_test, y_test and, with a client column, client_*.

    Pictures become uint8 `(n, h, w)` or `(n, h, w, 3)`. Without a column of pictures every column of numbers is a
    feature, float32 `(n, d)`. Classes are numbered as the data set has them, or by their sorted values.

    Args:
        name: on the hub, or a folder.
        columns: which splits and columns.

    Raises:
        UserError: `datasets` is not installed, or the data set cannot be read or used.
    """
    refuse_missing_package("hf", "datasets", "hf")
    if not Path(name).exists():
        _note_missing_network()
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    parts = {}
    for key, split in (("train", columns.train), ("test", columns.test)):
        try:
            parts[key] = datasets.load_dataset(name, split=split)
        except Exception as error:  # of the network, the hub, pyarrow and datasets itself
            raise UserError(f"hf:{name}: --{key} {split} cannot be read: {join_lines(error)}") from None
    _refuse_shared(name, columns, parts["train"])
    kinds = parts["train"].features
    pictures = [column for column, kind in kinds.items() if isinstance(kind, datasets.Image)]
    classes = [column for column, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    label = _choose_label(name, columns, classes, kinds)
    if columns.client is not None and columns.client not in kinds:
        raise unknown("--client", columns.client, list(kinds))
    if len(pictures) > 1:
        raise UserError(f"hf:{name} has several columns of pictures: {', '.join(pictures)}; one is required")
    arrays = {}
    for key, part in parts.items():
        where = f"hf:{name}: {key}"
        arrays[f"x_{key}"] = (
            _stack_pictures(
                where,
                part.cast_column(pictures[0], datasets.Image(decode=False))[pictures[0]],
                kinds[pictures[0]].mode,
                columns.size,
            )
            if pictures
            else _stack_numbers(where, part, {label, columns.client})
        )
    named = {"y": label} | ({"client": columns.client} if columns.client is not None else {})
    for short, column in named.items():
        values = [list(parts[key][column]) for key in ("train", "test")]
        numbered = _number_classes(f"hf:{name}: column {column}", values, keeps_integers=short == "y")
        arrays |= {f"{short}_{key}": values for key, values in zip(("train", "test"), numbered, strict=True)}
    check_arrays("npz", f"hf:{name}", arrays)
    return arrays


def _note_missing_network() -> None:
    """Tell `datasets`, before it is imported, if the hub cannot be reached: it would retry for long, and warn."""
    hub = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if {hub.scheme, "all"} & urllib.request.getproxies().keys():
        return
    try:
        socket.create_connection((hub.hostname, hub.port or {"http": 80}.get(hub.scheme, 443)), PATIENCE).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"  # what it has in its cache, it reads


def _refuse_shared(name: str, columns: Columns, part: Any) -> None:
    """Refuse splits or slices that share rows. part: a data set that knows the sizes of all splits."""
    from datasets import ReadInstruction

    sizes = {split: held.num_examples for split, held in (part.info.splits or {}).items()}
    both = [
        ReadInstruction.from_spec("+".join(sizes) if spec == "all" else spec).to_absolute(sizes) if sizes else []
        for spec in (columns.train, columns.test)
    ]
    for one, other in itertools.product(*both):
        split, first = one.splitname, max(one.from_, other.from_)
        if split == other.splitname and first < min(one.to, other.to):
            raise UserError(
                f"hf:{name}: --train {columns.train} and --test {columns.test} share row {first} of {split}; slices "
                f"such as '{split}[:80%]' and '{split}[80%:]' do not"
            )


def _choose_label(name: str, columns: Columns, classes: Sequence[str], kinds: Mapping[str, Any]) -> str:
    """Return the column of the classes."""
    if columns.label is not None:
        if columns.label not in kinds:
            raise unknown("--label", columns.label, list(kinds))
        return columns.label
    found = list(classes) or [column for column in kinds if column == "label"]
    if len(found) != 1:
        raise UserError(f"--label is required: hf:{name} has the columns {', '.join(kinds)}")
    return found[0]


def _stack_pictures(where: str, pictures: Any, mode: str | None, size: int | None) -> np.ndarray:
    """Return uint8 `(n, h, w)` of grey pictures, otherwise `(n, h, w, 3)`.

    mode: Pillow's mode that the column declares; None: that of the first picture.
    """
    from PIL import Image, ImageOps

    found: list[np.ndarray] = []
    mode = mode and ("L" if mode in ("1", "L") else "RGB")
    for number, held in enumerate(pictures):
        if held is None:
            raise UserError(f"{where}: picture {number} is empty")
        file = Path(held["path"]) if held["bytes"] is None else io.BytesIO(held["bytes"])
        try:
            picture = open_picture(file, mode)
        except Exception as error:
            raise UserError(f"{where}: picture {number} ({held['path']}) cannot be read: {join_lines(error)}") from None
        mode = mode or picture.mode
        if size is not None:
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
        found.append(np.asarray(picture))
        if found[-1].shape != found[0].shape:
            (h, w), (h0, w0) = found[-1].shape[:2], found[0].shape[:2]
            raise UserError(f"--size is required: {where}: picture {number} has {w}x{h} pixels, the first {w0}x{h0}")
    return np.stack(found) if found else np.zeros((0, 0, 0), np.uint8)


def _stack_numbers(where: str, part: Any, others: set[str | None]) -> np.ndarray:
    """Return float32 `(n, d)` of all columns of numbers, lists of numbers included."""
    columns = []
    for column, kind in part.features.items():
        if column in others:
            continue
        inner = getattr(kind, "feature", kind)
        if not str(getattr(inner, "dtype", "")).startswith(NUMBERS):
            raise UserError(
                f"{where}: column {column} holds neither numbers nor pictures; a data set of pictures or of numbers is "
                "required"
            )
        try:
            columns.append(np.asarray(list(part[column]), dtype=np.float32).reshape(len(part), -1))
        except (ValueError, TypeError) as error:
            raise UserError(f"{where}: column {column}: {join_lines(error)}") from None
    if not columns:
        raise UserError(f"{where}: there is no column of pictures or numbers")
    return np.concatenate(columns, axis=1)


def _number_classes(where: str, parts: Sequence[list[Any]], keeps_integers: bool) -> list[np.ndarray]:
    """Return each part's values as numbers, int64: integers themselves if they are kept, others by their order."""
    if empty := [value for part in parts for value in part if value is None]:
        raise UserError(f"{where}: {len(empty)} rows have no value")
    values = sorted({value for part in parts for value in part})
    refuse_two_spellings(where, [value for value in values if isinstance(value, str)])
    if keeps_integers and values and isinstance(values[0], int):
        if values[0] < 0:
            raise UserError(f"{where}: found {values[0]}, which marks samples without a class; choose another split")
        return [np.array(part, dtype=np.int64) for part in parts]
    numbers = {value: number for number, value in enumerate(values)}
    return [np.array([numbers[value] for value in part], dtype=np.int64) for part in parts]
