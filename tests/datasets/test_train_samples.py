"""`train_samples`: which training images are kept."""

import numpy as np

from fedray.common.rng import generator
from fedray.datasets.torchvision_sets import draw_in_proportion


def test_each_class_keeps_its_share() -> None:
    """50, 30 and 20 of 100 labels; 11 samples: 5.5, 3.3, 2.2 are 5, 3, 2 and one more for the largest remainder."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    kept = draw_in_proportion(labels, 11, generator(0, "test"))
    assert np.bincount(labels[kept]).tolist() == [6, 3, 2]
    assert (np.diff(kept) > 0).all()
    assert (kept == draw_in_proportion(labels, 11, generator(0, "test"))).all()


def test_all_samples_are_all_in_order() -> None:
    labels = np.array([2, 0, 1, 0])
    assert draw_in_proportion(labels, 4, generator(0, "test")).tolist() == [0, 1, 2, 3]
