"""Generated images: as requested, always the same, and learnable."""

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.dataset import Dataset


def load(**options: object) -> Dataset:
    return make_data_source({"name": "synthetic", **options}).load()


def test_is_what_was_asked_for_and_always_the_same() -> None:
    """230 labels of 100 classes in turn: 3 of each of the first 30 classes, 2 of the others."""
    data = load(classes=100, shape=[1, 28, 20], train_samples=230, test_samples=100)
    assert data.x_train.shape == (230, 1, 28, 20)
    assert data.x_train.dtype == np.uint8
    assert np.bincount(data.y_train).tolist() == [3] * 30 + [2] * 70
    assert (len(data.y_test), data.num_classes) == (100, 100)
    assert data.digest == load(classes=100, shape=[1, 28, 20], train_samples=230, test_samples=100).digest
    assert (data.x_train[:100] != data.x_test).any(), "train and test have noise of their own"


def test_without_noise_an_image_is_its_class_of_4x4_patches() -> None:
    """8 x 8 pixels are 2 x 2 per patch; noise 0 makes train and test of a class equal, and classes differ."""
    data = load(classes=3, shape=[1, 8, 8], train_samples=6, test_samples=3, noise=0)
    x = data.x_train[:, 0]
    np.testing.assert_array_equal(x, np.repeat(np.repeat(x[:, ::2, ::2], 2, axis=1), 2, axis=2))
    np.testing.assert_array_equal(data.x_train[:3], data.x_test)
    np.testing.assert_array_equal(data.x_train[:3], data.x_train[3:])
    assert len(np.unique(x.reshape(6, -1), axis=0)) == 3


@pytest.mark.parametrize(("key", "value"), [("classes", 1), ("shape", [3, 32]), ("shape", [0, 8, 8]), ("noise", -1)])
def test_refuses(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"data\.{key}"):
        load(**{key: value})


def test_natural_clients_all_have_samples_and_differ_in_size() -> None:
    data = load(classes=4, shape=[1, 8, 8], train_samples=400, test_samples=40, clients=20)
    sizes = np.bincount(data.client_train, minlength=20)
    assert sizes.min() >= 1
    assert sizes.max() > 3 * np.median(sizes)
    assert np.bincount(data.client_test, minlength=20).min() >= 1
    assert load(classes=4, shape=[1, 8, 8], train_samples=400, test_samples=40).client_train is None


def test_text_goes_on_by_one_to_three() -> None:
    data = make_data_source(
        {"name": "synthetic_text", "classes": 9, "length": 5, "train_samples": 300, "test_samples": 20, "clients": 7}
    ).load()
    assert data.tokens
    assert (data.x_train.shape, data.num_classes) == ((300, 5), 9)
    whole = np.concatenate([data.x_train, data.y_train[:, None]], axis=1)
    assert set(np.unique(np.diff(whole.astype(int), axis=1) % 9)) == {1, 2, 3}
    assert set(np.unique(data.client_train)) == set(range(7))


def test_fewer_samples_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.test_samples: found 3; 5 clients need a sample each"):
        load(train_samples=10, test_samples=3, clients=5)
