"""Words and their numbers; next-word samples of LEAF's Shakespeare, whose files hold 80 characters and the next one."""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

VOCABULARY = 256
"""Number of words that have a number of their own, the most frequent of the training texts; 0 stands for all others. A
word's number is also its class, and FedGELA's simplex needs as many features as classes: `char_lstm` has 256."""
LENGTH = 10
"""Number of words before the predicted one, as LEAF uses for its Reddit data."""
WORD = re.compile(r"[a-z0-9']+")


def rebuild_passages(x: list[str], y: list[str]) -> list[str]:
    """Rebuild the texts of a role: LEAF's samples follow each other character by character.

    Returns:
        Texts; a new one begins at each sample that does not continue the one before.
    """
    found: list[list[str]] = []
    expected = ""
    for text, after in zip(x, y, strict=True):
        if text != expected:
            found.append([text])
        found[-1].append(after)
        expected = text[1:] + after
    return ["".join(parts) for parts in found]


def split_words(passage: str) -> list[str]:
    """Return the words of a text in lower case, without the first and the last, which may be cut off."""
    return WORD.findall(passage.lower())[1:-1]


def number_words(roles: Iterable[tuple[list[str], list[str]]]) -> dict[str, int]:
    """Number the most frequent words of all roles' samples (x, y) from 1 on; ties in alphabetical order."""
    counts = Counter(word for x, y in roles for passage in rebuild_passages(x, y) for word in split_words(passage))
    return number_frequent(counts, VOCABULARY - 1, first=1)


def number_frequent(counts: Counter[str], count: int, first: int) -> dict[str, int]:
    """Number the `count` most frequent words from `first` on; ties in alphabetical order."""
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:count]
    return {word: number for number, word in enumerate(frequent, first)}


def make_samples(x: list[str], y: list[str], numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers uint8 `(n, LENGTH)` and the next word's number int64 `(n,)`, at every word of a role's
    texts.
    """
    windows = [np.empty((0, LENGTH + 1), dtype=np.uint8)]
    for passage in rebuild_passages(x, y):
        found = np.array([numbers.get(word, 0) for word in split_words(passage)], dtype=np.uint8)
        if len(found) > LENGTH:
            windows.append(np.lib.stride_tricks.sliding_window_view(found, LENGTH + 1))
    joined = np.concatenate(windows)
    return joined[:, :-1].copy(), joined[:, -1].astype(np.int64)
