"""AG News: which ids its words become, and a run of the text CNN on them."""

from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.common.errors import UserError
from tests.datasets import files
from tests.datasets.files import load


def test_the_most_frequent_words_have_ids_from_2(root: Path) -> None:
    """Bears occurs 3 times ("bears'" is another word); band, chips, of and the twice, in alphabetical order.

    With 6 ids, "the" and the words that occur once are outside.
    """
    files.ag_news(root)
    data = load("ag_news", vocabulary=6, length=8)
    bears, band, chips, of = 2, 3, 4, 5
    assert data.x_train.tolist() == [
        [1, 1, bears, 1, 1, band, of, bears],  # wall st bears reuters the band of bears, and the rest is cut off
        [1, chips, 1, chips, 1, 1, 0, 0],  # bears' chips the chips 39 s, and padding
    ]
    assert data.x_test.tolist() == [[1, of, bears, 0, 0, 0, 0, 0]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([2, 3], [0], 4)
    assert (data.x_train.dtype, data.tokens) == (np.int64, True)
    assert load("ag_news").x_train.max() == 2 + 12 - 1  # twelve different words


def run(**model: object) -> fedray.Result:
    return fedray.simulate(
        {
            "data": {"name": "ag_news", "vocabulary": 50, "length": 6},
            "partition": "iid",
            "clients": {"total": 2, "per_round": 2},
            "model": {"name": "text_cnn", "embedding": 8, "filters": 8, "dropout": 0.0, **model},
            "algorithm": "fedavg",
            "training": {"rounds": 10, "batch_size": 8, "lr": 0.5},
            "runtime": {"backend": "inline"},
        }
    )


def articles(seed: int) -> str:
    """40 articles of random words, one of which tells the class."""
    rng = np.random.default_rng(seed)
    words = [[f"w{i}" for i in rng.integers(0, 20, 3)] for _ in range(40)]
    return "".join(f'"{i % 4 + 1}","{" ".join(w)}","topic{i % 4} end"\n' for i, w in enumerate(words))


def test_the_text_cnn_learns_which_word_tells_the_class(root: Path) -> None:
    files.ag_news(root, articles(0), articles(1))
    assert run(vocabulary=50).history[-1]["test_accuracy"] > 90


def test_a_vocabulary_that_is_too_small_is_refused(root: Path) -> None:
    files.ag_news(root, articles(0), articles(1))
    with pytest.raises(
        UserError, match=r"text_cnn takes token ids below 20, the data have ids up to 26; set model\.vocabulary"
    ):
        run(vocabulary=20)
