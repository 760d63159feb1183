"""LEAF's json files (Caldas et al., LEAF: a benchmark for federated settings, 2019): FEMNIST and Shakespeare.

LEAF's scripts write `train/*.json` and `test/*.json`, each `{"users": [...], "num_samples": [...], "user_data":
{user: {"x": [...], "y": [...]}}}`. Users are the natural clients, numbered in the order of their sorted names over both
splits.
"""

import json
import string
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate, truncate_repr
from fedray.common.whole_files import MEMORY, read_file
from fedray.datasets import text as words
from fedray.datasets.arrays import KEYS
from fedray.datasets.base import DataSource, Images, Published, Recipe, get_data_dir, list_entries
from fedray.datasets.cache import cache_arrays
from fedray.datasets.dataset import Dataset

LETTERS = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's alphabet; a character's number is its position."""
LENGTH = 80
Decode = Callable[[list[Any], list[Any], str], tuple[np.ndarray, np.ndarray]]
"""Function from one user's x and y to arrays; the text names their origin, for messages."""


def load_leaf(source: DataSource, version: str, decoder: Callable[[list[Path]], Decode]) -> Dataset:
    """Read the two splits of a LEAF data set. decoder: makes the function that decodes a user of the training files."""
    root = get_data_dir() / source.name
    folder = root / "data" if (root / "data" / "train").is_dir() else root
    files = {part: list_entries(folder / part, "*.json") for part in ("train", "test")}
    for part, paths in files.items():
        if not paths:
            raise source.make_missing(str((folder / part / "*.json").relative_to(get_data_dir())))
    facts = source.get_expected()
    assert facts is not None  # noqa: S101
    arrays = cache_arrays(
        source.name,
        version,
        [*files["train"], *files["test"]],
        KEYS,
        lambda: _decode(source.name, files, decoder(files["train"]), facts.classes),
    )
    return Dataset(source.name, num_classes=facts.classes, **arrays)


def _decode(name: str, files: dict[str, list[Path]], decode: Decode, classes: int) -> dict[str, np.ndarray]:
    parts: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {
        part: [
            (user, *decode(x, y, f"{path}: user {user}")) for path in found for user, x, y in _read_users(name, path)
        ]
        for part, found in files.items()
    }
    users = sorted({user for rows in parts.values() for user, _, _ in rows})
    number = {user: i for i, user in enumerate(users)}
    arrays: dict[str, Any] = {}
    for part, rows in parts.items():
        if not any(len(y) for _, _, y in rows):
            raise UserError(f"data.name: {name}: no user has samples in {files[part][0].parent}")
        arrays[f"x_{part}"] = np.concatenate([x for _, x, _ in rows])
        arrays[f"y_{part}"] = np.concatenate([y for _, _, y in rows])
        arrays[f"client_{part}"] = np.repeat([number[user] for user, _, _ in rows], [len(y) for _, _, y in rows])
    # Checked before anything is cached: arrays that a Dataset refuses are not kept.
    Dataset(name, num_classes=classes, **arrays)
    return arrays


def _read_users(name: str, path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    failure = f"data.name: {name}: {path} is not a LEAF json"
    with restate(failure, OSError, ValueError, KeyError, TypeError, RecursionError):
        content = json.loads(read_file(path, MEMORY))
        rows = [
            (user, content["user_data"][user]["x"], content["user_data"][user]["y"], count)
            for user, count in zip(content["users"], content["num_samples"], strict=True)
        ]
    for user, x, y, count in rows:
        if not (isinstance(user, str) and isinstance(x, list) and isinstance(y, list)):
            raise UserError(f"data.name: {name}: {path}: user {truncate_repr(user)} has no lists x and y")
        if len(x) != count or len(y) != count:
            raise UserError(
                f"data.name: {name}: {path}: user {user} has {len(x)} x and {len(y)} y, "
                f"num_samples says {truncate_repr(count)}"
            )
        if count:
            yield user, x, y


class FEMNIST(Images):
    """FEMNIST, EMNIST by class with its writers as clients: 62 classes, grey 28x28, on white (1.0) as LEAF has it."""

    name = "femnist"
    paper = "Caldas et al., LEAF: a benchmark for federated settings, 2019, arXiv 1812.01097"
    used_by = "FedGELA (50 writers)"
    files = "femnist/train/*.json, femnist/test/*.json (LEAF's output folders)"
    published = Published(None, None, 62, (1, 28, 28), size="LEAF's scripts make them, up to 3,597 writers")
    recipes: ClassVar[dict[str, Recipe]] = {"plain": Recipe()}

    def read(self) -> Dataset:
        return load_leaf(self, "1", lambda _: self.decode)

    @staticmethod
    def decode(x: list[Any], y: list[Any], where: str) -> tuple[np.ndarray, np.ndarray]:
        """Return images uint8 `(n, 1, 28, 28)` from lists of 784 numbers in [0, 1], labels int64 `(n,)`."""
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
    """Next-character prediction, one client per speaking role: 80 characters in, 80 classes.

    `predict: word`: 10 words in, the next word is one of the 255 most frequent ones of the training texts or any other
    (256 classes). Words are letters, digits and apostrophes, in lower case. FedGELA names the task and neither
    vocabulary nor length, which are ours (D-112).
    """

    name = "shakespeare"
    paper = (
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS "
        "2017; Caldas et al., LEAF: a benchmark for federated settings, 2019, arXiv 1812.01097 (its files)"
    )
    used_by = "FedGELA (50 roles)"
    files = "shakespeare/train/*.json, shakespeare/test/*.json (LEAF's output folders)"
    published = Published(None, None, len(LETTERS), (LENGTH,), size="LEAF's scripts make them, up to 1,129 roles")
    predict: Literal["character", "word"] = Field("character", description="what comes next")

    def get_expected(self) -> Published | None:
        if self.predict == "character" or self.published is None:
            return self.published
        return replace(self.published, classes=words.VOCABULARY, shape=(words.LENGTH,))

    def load(self) -> Dataset:
        if self.predict == "character":
            return load_leaf(self, "1", lambda _: self.decode)
        return load_leaf(self, "1 words", self._make_word_decoder)

    @classmethod
    def decode(cls, x: list[Any], y: list[Any], where: str) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids uint8 `(n, 80)` of the characters, and the next character's id int64 `(n,)`."""
        cls._check(x, y, where)
        numbers = {letter: i for i, letter in enumerate(LETTERS)}
        tokens = np.array([[numbers[letter] for letter in text] for text in x], dtype=np.uint8)
        return tokens, np.array([numbers[letter] for letter in y], dtype=np.int64)

    @classmethod
    def _make_word_decoder(cls, train: list[Path]) -> Decode:
        """Return the decoder of words, which numbers the most frequent ones of the training files."""
        counts = Counter[str]()
        for path in train:
            for user, x, y in _read_users(cls.name, path):
                cls._check(x, y, f"{path}: user {user}")
                counts.update(word for passage in words.split_passages(x, y) for word in passage)
        numbers = words.number_frequent(counts, words.VOCABULARY - 1, first=1)

        def decode(x: list[Any], y: list[Any], where: str) -> tuple[np.ndarray, np.ndarray]:
            cls._check(x, y, where)
            return words.make_samples(x, y, numbers)

        return decode

    @staticmethod
    def _check(x: list[Any], y: list[Any], where: str) -> None:
        """Raise UserError unless x are texts of 80 characters and y characters, all of LEAF's alphabet."""
        if not all(isinstance(text, str) and len(text) == LENGTH for text in x):
            raise UserError(f"data.name: shakespeare: {where}: texts of {LENGTH} characters are required")
        if not all(isinstance(letter, str) for letter in y):
            raise UserError(f"data.name: shakespeare: {where}: y holds something else than characters")
        allowed = frozenset(LETTERS)
        for text, letter in zip(x, y, strict=True):
            if letter not in allowed or not allowed.issuperset(text):
                wrong = next(character for character in (letter, *text) if character not in allowed)
                raise UserError(
                    f"data.name: shakespeare: {where}: {truncate_repr(wrong)} is not one of LEAF's "
                    f"{len(LETTERS)} characters"
                )
