"""Training-time augmentation, batched on the training device.

Every transform only moves or covers pixels, so an augmentation is a map from each pixel of the result to the
pixel of the image it shows, and the image is gathered once, after the last transform. Two values beyond the image stand
for black (0 before normalisation: what padding a decoded image gives) and for the mean colour (0 after normalisation:
what padding or cutting out of a normalised tensor gives); the code bases differ in which they use.

The draws are NumPy's, on the CPU, so that they are the same on every device.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from fedray.common.errors import UserError, truncate_repr, unknown
from fedray.components.base import Checked, describe

Fill = Literal["black", "mean", "reflect"]


class Transform(Checked):
    """Base of the transforms: `draw` draws for a batch, `move` composes one more transform onto a map of pixels.

    draws: number of arrays that `draw` returns.
    """

    draws: ClassVar[int] = 1

    def draw(self, b: int, h: int, w: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the draws for a batch of b images of h x w pixels. Every image gets its own."""
        raise NotImplementedError

    def move(self, source: Tensor, *drawn: Tensor) -> Tensor:
        """Return the source of each pixel of the transformed images, int64 `(b, h, w)`, from that before.

        A source is the pixel `row * w + column` shown at a position; h*w for black, h*w + 1 for mean. `drawn` is what
        `draw` returned, on the device of `source`.
        """
        raise NotImplementedError


class Flip(Transform):
    """Mirror images left to right with probability 1/2."""

    flip: Literal[True] = True

    def draw(self, b: int, h: int, w: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return (rng.random(b) < 0.5,)

    def move(self, source: Tensor, *drawn: Tensor) -> Tensor:
        return torch.where(drawn[0][:, None, None], source.flip(-1), source)


class Crop(Transform):
    """Pad images by `crop` pixels on every side and cut them back at a uniformly drawn position."""

    crop: int = Field(gt=0, description="pixels of padding on every side")
    fill: Fill = Field("black", description="content of the padding")
    chance: float = Field(1.0, gt=0, le=1, description="probability per image; FL-Simulator 0.5")
    draws: ClassVar[int] = 2

    def draw(self, b: int, h: int, w: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        shift = rng.integers(-self.crop, self.crop + 1, size=(2, b, 1)) * (rng.random((b, 1)) < self.chance)
        return shift[0], shift[1]

    def move(self, source: Tensor, *drawn: Tensor) -> Tensor:
        h, w = source.shape[1:]
        rows, columns = (torch.arange(n, device=source.device) + s for n, s in ((h, drawn[0]), (w, drawn[1])))
        if self.fill == "reflect":
            # mirrored at the first and last pixel, which are not repeated
            rows, columns = ((n - 1) - ((n - 1) - i.abs()).abs() for i, n in ((rows, h), (columns, w)))
        return _look_up(source, rows[:, :, None], columns[:, None, :], self.fill)


class Rotate(Transform):
    """Rotate images about their centre by an angle uniform in ±`rotate` degrees; nearest pixel, black corners."""

    rotate: float = Field(gt=0, le=180, description="largest angle, degrees")

    def draw(self, b: int, h: int, w: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return (np.radians(rng.uniform(-self.rotate, self.rotate, size=(b, 1, 1))),)

    def move(self, source: Tensor, *drawn: Tensor) -> Tensor:
        (h, w), angle = source.shape[1:], drawn[0]
        y = torch.arange(h, device=source.device)[:, None] - (h - 1) / 2
        x = torch.arange(w, device=source.device)[None, :] - (w - 1) / 2
        rows = angle.cos() * y + angle.sin() * x + (h - 1) / 2
        columns = angle.cos() * x - angle.sin() * y + (w - 1) / 2
        return _look_up(source, rows.round().long(), columns.round().long(), "black")


class Cutout(Transform):
    """Cover a square of `cutout` pixels around a uniformly drawn pixel with the mean colour; it may cross the edge."""

    cutout: int = Field(gt=0, multiple_of=2, description="side of the square, pixels; even")
    draws: ClassVar[int] = 2

    def draw(self, b: int, h: int, w: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        half = self.cutout // 2
        return tuple(rng.integers(n, size=(b, 1)) - half for n in (h, w))

    def move(self, source: Tensor, *drawn: Tensor) -> Tensor:
        h, w = source.shape[1:]
        covered = []
        for n, start in zip((h, w), drawn, strict=True):
            place = torch.arange(n, device=source.device)
            covered.append((place >= start) & (place < start + self.cutout))
        return source.masked_fill(covered[0][:, :, None] & covered[1][:, None, :], h * w + 1)


TRANSFORMS: dict[str, type[Transform]] = {"flip": Flip, "crop": Crop, "rotate": Rotate, "cutout": Cutout}


def parse_transforms(key: str, value: Any) -> tuple[Transform, ...]:
    """Parse `[flip, {crop: 4, fill: mean}, {cutout: 16}]`, in the order they are applied.

    Raises UserError if a transform or an option is unknown.
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise UserError(
            f"{key}: found {truncate_repr(value)}; a list of transforms is required, "
            f"of: {', '.join(sorted(TRANSFORMS))}"
        )
    transforms = list[Transform]()
    for entry in value:
        options = {entry: True} if entry == "flip" else entry
        name = next((str(k) for k in options if k in TRANSFORMS), None) if isinstance(options, Mapping) else None
        if isinstance(entry, Transform):
            transforms.append(entry)
        elif name is not None:
            try:
                transforms.append(TRANSFORMS[name].model_validate(dict(options)))
            except ValidationError as error:
                raise describe(error, key, TRANSFORMS[name]) from None
        elif isinstance(entry, str) and entry in TRANSFORMS:
            raise UserError(f"{key}: found {entry}; it needs a number: {{{entry}: 4}}")
        else:
            raise unknown(key, str(entry), TRANSFORMS)
    return tuple(transforms)


def augment_batch(x: Tensor, chain: Sequence[Transform], black: Tensor, rng: np.random.Generator) -> Tensor:
    """Augment each image of a batch independently, with draws from `rng`; the rest is as for `apply_draws`."""
    b, _, h, w = x.shape
    drawn = [transform.draw(b, h, w, rng) for transform in chain]
    return apply_draws(x, chain, black, [[torch.from_numpy(a).to(x.device) for a in each] for each in drawn])


def apply_draws(x: Tensor, chain: Sequence[Transform], black: Tensor, drawn: Sequence[Sequence[Tensor]]) -> Tensor:
    """Augment each image of a batch, float32 `(b, c, h, w)`, normalised, by the draws of each transform, in order.

    black: the value of a black pixel after normalisation, `(1, c, 1, 1)`.
    """
    b, c, h, w = x.shape
    source = torch.arange(h * w, device=x.device).view(1, h, w).expand(b, h, w)
    for transform, own in zip(chain, drawn, strict=True):
        source = transform.move(source, *own)
    colours = torch.stack([black.view(c), torch.zeros_like(black.view(c))], dim=1)
    pixels = torch.cat([x.flatten(2), colours.expand(b, c, 2)], dim=2)
    return pixels.gather(2, source.reshape(b, 1, h * w).expand(b, c, h * w)).view(b, c, h, w)


def _look_up(source: Tensor, rows: Tensor, columns: Tensor, fill: Fill) -> Tensor:
    b, h, w = source.shape
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    flat = rows.clamp(0, h - 1) * w + columns.clamp(0, w - 1)
    moved = source.reshape(b, h * w).gather(1, flat.view(b, h * w)).view(b, h, w)
    return torch.where(inside, moved, h * w + (fill == "mean"))
