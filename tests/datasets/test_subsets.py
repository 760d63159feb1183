"""`train_samples` and `imbalance`: which training samples are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets import make_data_source
from fedray.datasets.arrays import draw_in_proportion
from fedray.datasets.torchvision_sets import count_long_tail
from tests.conftest import Call
from tests.datasets import files
from tests.datasets.files import load


def test_each_class_keeps_its_share() -> None:
    """50, 30 and 20 of 100 labels; 11 samples: 5.5, 3.3, 2.2 are 5, 3, 2 and one more for the largest remainder."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    kept = draw_in_proportion(labels, 11, generator(0, "test"))
    assert np.bincount(labels[kept]).tolist() == [6, 3, 2]
    assert (np.diff(kept) > 0).all()
    assert (kept == draw_in_proportion(labels, 11, generator(0, "test"))).all()


def test_a_part_of_an_npz_file(tmp_path: Path, call: Call) -> None:
    """Of 8 and 4 samples 6 are 4 and 2, each with its label and client; the test set stays."""
    y, clients = np.repeat([0, 1], [8, 4]), np.arange(12)
    x = clients[:, None].astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=clients, client_test=clients)
    whole, part = (
        make_data_source({"name": "npz", "path": str(tmp_path / "own.npz"), "train_samples": samples}).load()
        for samples in (None, 6)
    )
    assert np.bincount(part.y_train).tolist() == [4, 2]
    assert (part.x_train[:, 0] == part.client_train).all()
    assert (part.y_train == y[part.client_train]).all()
    np.testing.assert_array_equal(part.x_test, whole.x_test)
    given = ("--set", f"data.path={tmp_path / 'own.npz'}", "--set", "data.train_samples=6")
    assert "6 training and 12 test samples" in call("data", "check", "npz", *given).out
    with pytest.raises(
        UserError, match=r"^data\.train_samples: found 13; at most 12, all training samples, is allowed$"
    ):
        make_data_source({"name": "npz", "path": str(tmp_path / "own.npz"), "train_samples": 13}).load()


def test_a_long_tail_has_the_published_sizes() -> None:
    """CIFAR-10-LT and CIFAR-100-LT at ratio 100, as LDAM-DRW's code gives them with imb_factor 0.01."""
    assert count_long_tail(5000, 10, 100) == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sum(count_long_tail(5000, 10, 100)) == 12_406
    assert sum(count_long_tail(500, 100, 100)) == 10_847
    assert count_long_tail(500, 100, 1) == [500] * 100


def test_imbalance_keeps_a_long_tail_of_the_training_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images of each class: 5^(1 - c/9) is 5, 4.2, 3.5, 2.9, 2.4, 2.0, 1.7, 1.4, 1.2, 1."""
    files.cifar(root, monkeypatch, "CIFAR10", labels=list(range(10)))
    whole, tail = load("cifar10"), load("cifar10", imbalance=5)
    assert np.bincount(tail.y_train).tolist() == [5, 4, 3, 2, 2, 2, 1, 1, 1, 1]
    held = {(image.tobytes(), int(label)) for image, label in zip(whole.x_train, whole.y_train, strict=True)}
    kept = {(image.tobytes(), int(label)) for image, label in zip(tail.x_train, tail.y_train, strict=True)}
    assert kept < held
    assert len(kept) == 22
    np.testing.assert_array_equal(tail.x_test, whole.x_test)
    assert tail.digest == load("cifar10", imbalance=5).digest != whole.digest
    assert load("cifar10", imbalance=1).digest == whole.digest


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"imbalance": 10, "train_samples": 100}, "data.imbalance: found 10 and train_samples 100; one of them is allowed"),
    ({"imbalance": 501}, "data.imbalance: found 501, which leaves the last class no image; the largest allowed is 500"),
    ({"imbalance": 0.01}, "data.imbalance: found 0.01; input should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        make_data_source({"name": "cifar100", **options})
    assert str(refused.value) == message
