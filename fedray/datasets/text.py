"""Words and their numbers: AG News, and next-word samples of LEAF's Shakespeare, whose files hold 80 characters and the
next one.
"""

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate, truncate_repr
from fedray.common.whole_files import open_file
from fedray.datasets.arrays import KEYS
from fedray.datasets.base import DataSource, Published, get_data_dir
from fedray.datasets.cache import cache_arrays, download
from fedray.datasets.dataset import Dataset

VOCABULARY = 256
"""Number of words that have a number of their own, the most frequent of the training texts; 0 stands for all others. A
word's number is also its class, and FedGELA's simplex needs as many features as classes: `char_lstm` has 256."""
LENGTH = 10
"""Number of words before the predicted one, as LEAF uses for its Reddit data."""
WORD = re.compile(r"[a-z0-9']+")


def split_passages(x: list[str], y: list[str]) -> list[list[str]]:
    """Return the words of each text of a role in lower case, without the first and the last, which may be cut off.

    LEAF's samples follow each other character by character; a text begins at each that does not continue the one
    before.
    """
    passages: list[list[str]] = []
    expected = ""
    for text, after in zip(x, y, strict=True):
        if text != expected:
            passages.append([text])
        passages[-1].append(after)
        expected = text[1:] + after
    return [WORD.findall("".join(parts).lower())[1:-1] for parts in passages]


def number_frequent(counts: Counter[str], count: int, first: int) -> dict[str, int]:
    """Number the `count` most frequent words from `first` on; ties in alphabetical order."""
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:count]
    return {word: number for number, word in enumerate(frequent, first)}


def make_samples(x: list[str], y: list[str], numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers uint8 `(n, LENGTH)` and the next word's number int64 `(n,)`, at every word of a role's
    texts.
    """
    windows = [np.empty((0, LENGTH + 1), dtype=np.uint8)]
    for passage in split_passages(x, y):
        tokens = np.array([numbers.get(word, 0) for word in passage], dtype=np.uint8)
        if len(tokens) > LENGTH:
            windows.append(np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1))
    joined = np.concatenate(windows)
    return joined[:, :-1].copy(), joined[:, -1].astype(np.int64)


URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
MD5 = {"train": "b1a00f826fdfbd249f79597b59e1dc12", "test": "d52ea96a97a2d943681189a97654912d"}
"""Sums of Zhang, Zhao and LeCun's files, as torchtext lists them."""
CLASSES = 4
Articles = list[tuple[list[str], int]]
"""Words and class of each article."""


class AGNews(DataSource):
    """AG News, 120,000 / 7,600 articles on world, sports, business or technology: the first words of title and
    description.

    Words are letters, digits and apostrophes, in lower case. Id 0 fills short articles up, 1 is a word outside the
    vocabulary; the most frequent words of the training articles follow, ties by the alphabet.
    """

    name = "ag_news"
    paper = "Zhang, Zhao and LeCun, Character-level convolutional networks for text classification, NeurIPS 2015"
    licence = "research and other non-commercial use"
    files = "ag_news_csv/train.csv, ag_news_csv/test.csv"
    published = Published(120_000, 7_600, CLASSES, (50,), size="31 MB")
    vocabulary: int = Field(10_000, ge=CLASSES, le=1_000_000, description="number of different ids, 0 and 1 included")
    length: int = Field(50, gt=0, le=10_000, description="number of words of an article")

    def get_expected(self) -> Published:
        return replace(self.published, shape=(self.length,))

    def fetch(self) -> None:
        for part, md5 in MD5.items():
            download(self.name, f"{URL}/{part}.csv", _locate(part), md5)

    def load(self) -> Dataset:
        version, paths = f"1 {self.vocabulary} {self.length}", [self.require(f"ag_news_csv/{part}.csv") for part in MD5]
        arrays = cache_arrays(self.name, version, paths, KEYS[:4], self._decode)
        return Dataset(self.name, num_classes=CLASSES, **arrays)

    def _decode(self) -> dict[str, np.ndarray]:
        parts = {part: self._read(_locate(part)) for part in MD5}
        counts = Counter(word for words, _ in parts["train"] for word in words)
        ids = number_frequent(counts, self.vocabulary - 2, first=2)
        arrays: dict[str, np.ndarray] = {}
        for part, articles in parts.items():
            tokens = np.zeros((len(articles), self.length), dtype=np.int64)
            for row, (words, _) in zip(tokens, articles, strict=True):
                found = [ids.get(word, 1) for word in words[: self.length]]
                row[: len(found)] = found
            arrays |= {f"x_{part}": tokens, f"y_{part}": np.array([kind for _, kind in articles], dtype=np.int64)}
        return arrays

    def _read(self, path: Path) -> Articles:
        articles: Articles = []
        with (
            restate(f"data.name: {self.name}: {path} cannot be read", OSError, ValueError, csv.Error),
            io.TextIOWrapper(open_file(path), newline="", encoding="utf-8") as file,
        ):
            for number, row in enumerate(csv.reader(file), 1):
                if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                    raise UserError(
                        f"data.name: {self.name}: {path}: row {number}: found {truncate_repr(row)}; a class from 1 "
                        "to 4, a title and a description are required"
                    )
                articles.append((WORD.findall(f"{row[1]} {row[2]}".lower()), int(row[0]) - 1))
        if not articles:
            raise UserError(f"data.name: {self.name}: {path} has no articles")
        return articles


def _locate(part: str) -> Path:
    return get_data_dir() / "ag_news_csv" / f"{part}.csv"
