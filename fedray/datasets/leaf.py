"""LEAF's json files (Caldas et al., LEAF: a benchmark for federated settings, 2019): FEMNIST and Shakespeare.

LEAF's scripts write `train/*.json` and `test/*.json`, each `{"users": [...], "num_samples": [...], "user_data":
{user: {"x": [...], "y": [...]}}}`. Users are the natural clients, numbered in the order of their sorted names over both
splits.
"""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedray.common.errors import UserError, one_line, truncated_repr
from fedray.datasets.base import DataSource, Images, Published, Recipe, data_dir
from fedray.datasets.cache import cached
from fedray.datasets.dataset import Dataset

LETTERS = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's alphabet; a character's number is its place."""
LENGTH = 80


def leaf_arrays(source: DataSource) -> Dataset:
    """The two splits of a LEAF data set; `source` has `published` and a method `decode(x, y, where)`."""
    folder = _folder(source)
    files = {part: sorted((folder / part).glob("*.json")) for part in ("train", "test")}
    for part, found in files.items():
        if not found:
            raise source.missing(str((folder / part / "*.json").relative_to(data_dir())))
    arrays = cached(source.name, "1", [*files["train"], *files["test"]], lambda: _decode(source, files))
    assert source.published is not None  # noqa: S101
    return Dataset(
        source.name,
        arrays["x_train"],
        arrays["y_train"],
        arrays["x_test"],
        arrays["y_test"],
        source.published.classes,
        client_train=arrays["client_train"],
        client_test=arrays["client_test"],
    )


def _folder(source: DataSource) -> Path:
    folder = data_dir() / source.name
    return folder / "data" if (folder / "data" / "train").is_dir() else folder


def _decode(source: Any, files: dict[str, list[Path]]) -> dict[str, np.ndarray]:
    parts: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {
        part: [
            (user, *source.decode(x, y, f"{path}: user {user}"))
            for path in found
            for user, x, y in _users(source.name, path)
        ]
        for part, found in files.items()
    }
    users = sorted({user for rows in parts.values() for user, _, _ in rows})
    number = {user: i for i, user in enumerate(users)}
    arrays: dict[str, np.ndarray] = {}
    for part, rows in parts.items():
        if not rows:
            raise UserError(f"data.name: {source.name}: no user has samples in {files[part][0].parent}")
        arrays[f"x_{part}"] = np.concatenate([x for _, x, _ in rows])
        arrays[f"y_{part}"] = np.concatenate([y for _, _, y in rows])
        arrays[f"client_{part}"] = np.repeat([number[user] for user, _, _ in rows], [len(y) for _, _, y in rows])
    # Checked before anything is cached: what a Dataset refuses is not kept.
    Dataset(
        source.name, arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], source.published.classes
    )
    return arrays


def _users(name: str, path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    try:
        content = json.loads(path.read_bytes())
        rows = [
            (user, content["user_data"][user]["x"], content["user_data"][user]["y"], count)
            for user, count in zip(content["users"], content["num_samples"], strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"data.name: {name}: {path} is not a LEAF json: {one_line(error)}") from None
    for user, x, y, count in rows:
        if not (isinstance(user, str) and isinstance(x, list) and isinstance(y, list)):
            raise UserError(f"data.name: {name}: {path}: user {truncated_repr(user)} has no lists x and y")
        if len(x) != count or len(y) != count:
            raise UserError(
                f"data.name: {name}: {path}: user {user} has {len(x)} x and {len(y)} y, "
                f"num_samples says {truncated_repr(count)}"
            )
        if count:
            yield user, x, y


class FEMNIST(Images):
    """FEMNIST, EMNIST by class with its writers as clients: 62 classes, grey 28x28, on white (1.0) as LEAF has it."""

    name = "femnist"
    paper = "Caldas et al., LEAF, arXiv 1812.01097, 2019"
    used_by = "FedGELA (50 writers)"
    files = "femnist/train/*.json, femnist/test/*.json (LEAF's output folders)"
    published = Published(None, None, 62, (1, 28, 28), size="LEAF's scripts make them, up to 3,597 writers")
    recipes: ClassVar[dict[str, Recipe]] = {"plain": Recipe()}

    def read(self) -> Dataset:
        return leaf_arrays(self)

    @staticmethod
    def decode(x: list[Any], y: list[Any], where: str) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 `(n, 1, 28, 28)` from lists of 784 numbers in [0, 1], labels int64 `(n,)`."""
        wrong = UserError(f"data.name: femnist: {where}: lists of 784 numbers in [0, 1] and integers are required")
        try:
            images, labels = np.array(x, dtype=np.float64), np.array(y, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            raise wrong from None
        if not all(type(label) is int for label in y):  # NumPy would cut 1.5 to 1
            raise wrong
        if images.shape != (len(x), 784) or not (images.min() >= 0 and images.max() <= 1):
            raise wrong
        return np.round(images * 255).astype(np.uint8).reshape(-1, 1, 28, 28), labels


class Shakespeare(DataSource):
    """Next-character prediction, one client per speaking role: 80 characters in, 80 classes."""

    name = "shakespeare"
    paper = "McMahan et al., FedAvg, AISTATS 2017; files by Caldas et al., LEAF, arXiv 1812.01097, 2019"
    used_by = "FedGELA (50 roles)"
    files = "shakespeare/train/*.json, shakespeare/test/*.json (LEAF's output folders)"
    published = Published(None, None, len(LETTERS), (LENGTH,), size="LEAF's scripts make them, up to 1,129 roles")

    def load(self) -> Dataset:
        return leaf_arrays(self)

    @staticmethod
    def decode(x: list[Any], y: list[Any], where: str) -> tuple[np.ndarray, np.ndarray]:
        """Token ids uint8 `(n, 80)` of the characters, the next character's id int64 `(n,)`."""
        numbers = {letter: i for i, letter in enumerate(LETTERS)}
        if not all(isinstance(text, str) and len(text) == LENGTH for text in x):
            raise UserError(f"data.name: shakespeare: {where}: texts of {LENGTH} characters are required")
        try:
            tokens = np.array([[numbers[letter] for letter in text] for text in x], dtype=np.uint8)
            labels = np.array([numbers[letter] for letter in y], dtype=np.int64)
        except KeyError as error:
            raise UserError(
                f"data.name: shakespeare: {where}: {truncated_repr(error.args[0])} is not one of LEAF's "
                f"{len(LETTERS)} characters"
            ) from None
        except TypeError:
            raise UserError(f"data.name: shakespeare: {where}: y holds something else than characters") from None
        return tokens, labels
