"""Augmentation moves pixels exactly as configured, in training only, and is the same however a run is scheduled."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.datasets.augment import Crop, Cutout, Flip, Rotate, augment_batch
from fedray.datasets.dataset import Dataset, Samples
from tests import small

BLACK = torch.tensor([-2.0, -3.0]).view(1, 2, 1, 1)


def images(n: int = 400, size: int = 6) -> torch.Tensor:
    """Pixels that differ from each other, from black and from the mean colour (0); images are wider than high."""
    return torch.arange(1, n * 2 * size * (size + 1) + 1, dtype=torch.float32).view(n, 2, size, size + 1)


def rng(seed: int = 0) -> np.random.Generator:
    return generator(seed, "augment")


@pytest.mark.parametrize(("fill", "mode"), [("black", "constant"), ("mean", "constant"), ("reflect", "reflect")])
def test_crop_is_a_window_of_the_padded_image(fill: str, mode: str) -> None:
    """Every image equals one of the 5 x 5 windows of its padded self (padding 2), and each window occurs.

    With black, the padding is each channel's value of a black pixel; with mean it is 0."""
    x = images()
    if mode == "reflect":
        padded = pad(x, (2, 2, 2, 2), mode="reflect")
    else:
        colour = BLACK if fill == "black" else torch.zeros_like(BLACK)
        padded = pad(x - colour, (2, 2, 2, 2)) + colour
    found = augment_batch(x, [Crop(crop=2, fill=fill)], BLACK, rng())
    windows = {
        (i, j): (found == padded[:, :, i : i + 6, j : j + 7]).flatten(1).all(1)
        for i, j in itertools.product(range(5), range(5))
    }
    assert torch.stack(list(windows.values())).sum(0).eq(1).all()
    assert all(hit.any() for hit in windows.values())


def test_crops_and_flips_happen_by_chance() -> None:
    """With chance 1/2 an image stays with probability 1/2 + 1/2 · 1/25 = 0.52: 1040 of 2000, deviation 22."""
    x = images(2000)
    found = augment_batch(x, [Crop(crop=2, chance=0.5)], BLACK, rng())
    assert abs(int((found == x).flatten(1).all(1).sum()) - 1040) < 4 * 22
    # Each image is itself or its mirror image; 200 of 400 with deviation 10.
    x = images()
    found = augment_batch(x, [Flip()], BLACK, rng())
    same, mirrored = ((found == y).flatten(1).all(1) for y in (x, x.flip(-1)))
    assert (same ^ mirrored).all()
    assert abs(int(mirrored.sum()) - 200) < 40


class Angle:
    """A generator that only ever draws one angle."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> np.ndarray:
        assert low == -high
        return np.full(size, self.degrees)


def test_rotate_agrees_with_torchvision() -> None:
    """15 degrees, nearest neighbour, zeros outside: the same picture except for ties (under 2 % of pixels)."""
    from torchvision.transforms.v2.functional import rotate

    x = images(2, 32)
    found = augment_batch(x, [Rotate(rotate=15)], torch.zeros(1, 2, 1, 1), Angle(15.0))  # type: ignore[arg-type]
    assert (found != rotate(x, 15.0)).float().mean() < 0.02


def test_cutout_covers_one_square_with_the_mean_colour() -> None:
    """Side 4 in 6x7: rows i-2..i+1 about a uniform pixel, cut at the edges, so 2..4 rows and columns are covered.

    About the row 0 two rows remain (0, 1), about 1 three, about 2, 3, 4 four, about 5, the last one, three."""
    x = images(2000)
    covered = augment_batch(x, [Cutout(cutout=4)], BLACK, rng()) == 0
    assert (covered[:, 0] == covered[:, 1]).all()
    rows, columns = covered[:, 0].any(2).sum(1), covered[:, 0].any(1).sum(1)
    assert (covered[:, 0].sum((1, 2)) == rows * columns).all()
    assert not covered[rows == 2, 0, 2:].any(), "the first two, never the last two"
    for counts, n in ((rows, 6), (columns, 7)):
        shares = torch.bincount(counts, minlength=7) / 2000
        torch.testing.assert_close(shares, torch.tensor([0, 0, 1, 2, n - 3, 0, 0]) / n, rtol=0, atol=0.05)
    assert (augment_batch(x, [Cutout(cutout=4)], BLACK, rng())[~covered] == x[~covered]).all()


def dataset(**options: object) -> Dataset:
    x, y = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8), np.arange(40) % 4
    return Dataset("d", x, y, x, y, 4, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), **options)  # type: ignore[arg-type]


def test_only_batches_with_a_generator_are_augmented() -> None:
    """And a black pixel of the padding is what pixel 0 becomes: (0 - mean) / std."""
    data = dataset(augment=(Crop(crop=8),))
    samples = Samples(data.x_train, data.y_train, data, "cpu")
    plain, _ = Samples(data.x_train, data.y_train, dataset(), "cpu").make_batch(np.arange(40))
    assert torch.equal(samples.make_batch(np.arange(40))[0], plain)
    moved, labels = samples.make_batch(np.arange(40), rng())
    assert (moved != plain).flatten(1).any(1).sum() > 35
    assert torch.equal(labels, torch.from_numpy(data.y_train))
    black = torch.tensor([-0.5 / 0.2, -0.4 / 0.3, -0.3 / 0.4]).view(1, 3, 1, 1)
    assert (torch.isclose(moved, black).all(1)).float().mean() > 0.3


def test_augmentation_needs_images_and_a_mirror_is_no_wider() -> None:
    x, y = np.zeros((4, 5), np.float32), np.zeros(4, np.int64)
    with pytest.raises(UserError, match="are not images"):
        Dataset("table", x, y, x, y, 1, augment=(Flip(),))
    # Eight pixels have seven others to mirror at either edge.
    built = small.problem(clients=(2, 2), data={"name": "digits", "augment": [{"crop": 8, "fill": "reflect"}]})
    with small.refused("data.augment: found crop 8 with fill reflect; at most 7 is allowed"):
        built.build_network("cpu")


def test_transforms_are_applied_in_order_with_keyed_draws() -> None:
    """A cutout made first can be moved out of the image by the crop; made last, it never shows padding."""
    x = images(300)
    last = augment_batch(x, [Crop(crop=2), Cutout(cutout=14)], BLACK, rng())
    first = augment_batch(x, [Cutout(cutout=14), Crop(crop=2)], BLACK, rng())
    assert (last == 0).flatten(1).all(1).any()
    assert (first == BLACK).any()
    assert (first == 0).all(1).flatten(1).all(1).sum() < (last == 0).all(1).flatten(1).all(1).sum()
    # The same key gives the same batch, another round, client or seed another one.
    data = dataset(augment=(Crop(crop=2), Flip(), Cutout(cutout=4)))
    samples = Samples(data.x_train, data.y_train, data, "cpu")

    def batch(*key: int) -> torch.Tensor:
        return samples.make_batch(np.arange(40), generator(key[0], "augment", key[1], key[2]))[0]

    assert torch.equal(batch(0, 0, 0), batch(0, 0, 0))
    assert not any(torch.equal(batch(0, 0, 0), batch(*other)) for other in [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
