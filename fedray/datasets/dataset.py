"""A data set in memory, independent of its files."""

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.common.calls import fits
from fedray.common.errors import UserError, truncate_repr
from fedray.common.vectors import mark_read, upload
from fedray.datasets.augment import Transform, apply_draws, augment_batch

ALIGNED = 64
"""Batches that are gathered together begin at multiples of this many bytes, as tensors of their own do: the last bit of
a matrix product may depend on it."""
TOGETHER = 1 << 25
"""Bytes of inputs that are gathered together on a device, at most: a launch there takes longer than its work."""
TYPES = ("int64", "uint8", "float32")
"""Types of inputs; labels and clients' ids have the first."""


@dataclass(frozen=True)
class Dataset:
    """Arrays of one data set.

    Attributes:
        x_train, x_test: uint8 images `(n, channels, height, width)`, scaled by 1/255 and normalised when a batch is
            gathered; or float32 `(n, ...)`, used as they are; or uint8 or int64 token ids `(n, length)`, int64 when
            gathered.
        y_train, y_test: int64 labels `(n,)` in `[0, num_classes)`.
        mean, std: one number per channel (of images in [0, 1]), or empty for no normalisation.
        client_train, client_test: int64 natural client id of each sample, or None.
        augment: transforms of the training images, in the order they are applied.
        options: the options of the section that loaded it, in JSON types; None for arrays of your own.
        natural_ids: the natural clients' ids before training samples were left out; None if all are here.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    augment: tuple[Transform, ...] = ()
    options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    natural_ids: np.ndarray | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._refuse_types()
        for key in ("mean", "std"):
            if not fits(value := getattr(self, key), Sequence[float]):
                raise UserError(f"data {self.name}: {key} is {truncate_repr(value)}; a number per channel is required")
        if not isinstance(self.num_classes, Integral) or self.num_classes < 1:
            raise UserError(f"data {self.name}: num_classes is {self.num_classes!r}; an integer from 1 is required")
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            clients = getattr(self, f"client_{part}")
            if len(x) != len(y):
                raise UserError(f"data {self.name}: x_{part} has {len(x)} samples, y_{part} has {len(y)} labels")
            if len(y) == 0 and part == "train":
                raise UserError(f"data {self.name}: the training set is empty")
            if len(y) and (y.min() < 0 or y.max() >= self.num_classes):
                raise UserError(
                    f"data {self.name}: y_{part} holds labels {y.min()}..{y.max()}, "
                    f"allowed are 0..{self.num_classes - 1}"
                )
            if clients is not None and len(clients) != len(y):
                raise UserError(f"data {self.name}: client_{part} has {len(clients)} ids, y_{part} {len(y)} labels")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise UserError(
                f"data {self.name}: x_train samples have shape {self.x_train.shape[1:]}, "
                f"x_test samples {self.x_test.shape[1:]}"
            )
        if (self.mean or self.std) and self.x_train.dtype != np.uint8:
            raise UserError(
                f"data {self.name}: mean and std are of uint8 images; x_train is {self.x_train.dtype}, used as it is"
            )
        if largest := next((value for value in (*self.mean, *self.std) if value > 1), None):
            raise UserError(
                f"data {self.name}: mean and std hold {largest:g}; they are of images in [0, 1], so divide them by 255"
            )
        if self.augment and self.x_train.ndim != 4:
            raise UserError(
                f"data.augment: data {self.name} are not images; their samples have shape {self.x_train.shape[1:]}"
            )

    def _refuse_types(self) -> None:
        for key in ("x_train", "x_test", "y_train", "y_test", "client_train", "client_test"):
            value, types = getattr(self, key), TYPES if key.startswith("x") else TYPES[:1]
            if not isinstance(value, np.ndarray) and (value is not None or not key.startswith("client")):
                raise UserError(f"data {self.name}: {key} is a {type(value).__name__}; a NumPy array is required")
            if value is not None and value.dtype not in types:
                raise UserError(f"data {self.name}: {key} is {value.dtype}; {' or '.join(types)} is required")
            if value is not None and (value.ndim < 2 if key.startswith("x") else value.ndim != 1):
                wanted = "(n, ...)" if key.startswith("x") else "(n,)"
                raise UserError(f"data {self.name}: {key} has shape {value.shape}; {wanted} is required")
        if self.x_train.dtype == np.uint8 and self.x_train.ndim not in (2, 4):
            found = f"data {self.name}: x_train is uint8 {self.x_train.shape}"
            raise UserError(f"{found}; images (n, channels, height, width), or token ids (n, length), are required")
        if self.x_train.dtype != self.x_test.dtype:  # only uint8 is scaled
            found = f"x_train is {self.x_train.dtype}, x_test {self.x_test.dtype}"
            raise UserError(f"data {self.name}: {found}; one type is required, since only uint8 is scaled")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as a model receives it."""
        return tuple(self.x_train.shape[1:])

    @property
    def tokens(self) -> bool:
        """True if the inputs are token ids."""
        return self.x_train.dtype.kind == "i" or (self.x_train.dtype == np.uint8 and self.x_train.ndim == 2)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 over arrays, classes and transforms; with it data enter the identity of a cell."""
        with np.printoptions(legacy=False):  # NumPy's numbers as NumPy 2 writes them, under any print options
            hashed = hashlib.sha256(repr((self.num_classes, self.mean, self.std)).encode())
            hashed.update("".join(map(repr, self.augment)).encode())
        for name in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test", "natural_ids"):
            array = getattr(self, name)
            if array is not None:
                hashed.update(f"{name}{array.dtype}{array.shape}".encode())
                hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    @property
    def labels_digest(self) -> str:
        """Return the SHA-256 over the labels, training before test samples, merged or not, as little-endian int64.

        A split fits any version of the same samples in the same order: resized, normalised, in colour.
        """
        labels = [self.y_train] if self.is_merged else [self.y_train, self.y_test]
        return hashlib.sha256(b"".join(y.astype("<i8").tobytes() for y in labels)).hexdigest()

    @property
    def is_merged(self) -> bool:
        """True if training and test set are one (`merge`)."""
        return self.x_test is self.x_train and self.y_test is self.y_train

    def merge(self) -> "Dataset":
        """Return training and then test samples as one set, which is both the training and the test set; one copy."""
        if self.is_merged:
            return self
        x, y = np.concatenate([self.x_train, self.x_test]), np.concatenate([self.y_train, self.y_test])
        clients = None
        if self.client_train is not None and self.client_test is not None:
            clients = np.concatenate([self.client_train, self.client_test])
        return replace(self, x_train=x, y_train=y, x_test=x, y_test=y, client_train=clients, client_test=clients)

    def resize(self, size: int) -> "Dataset":
        """Return the same images at `size` x `size` pixels (bilinear, anti-aliased), for models with a fixed input
        size.
        """
        x = _resize(self.x_train, size)
        return replace(self, x_train=x, x_test=x if self.is_merged else _resize(self.x_test, size))


def take_train(data: Dataset, kept: np.ndarray) -> Dataset:
    """Return a data set with the training samples at some positions, and all natural clients, emptied ones too."""
    clients, ids = data.client_train, data.natural_ids
    if clients is not None:
        clients, ids = clients[kept], np.unique(clients) if ids is None else ids
    return replace(data, x_train=data.x_train[kept], y_train=data.y_train[kept], client_train=clients, natural_ids=ids)


def describe_repeated(x_train: np.ndarray, x_test: np.ndarray, pooled: bool) -> str:
    """Return a line about test samples whose inputs are, byte for byte, those of another sample; empty if none.

    pooled: training and test samples are dealt together (`data.test`); otherwise only training samples count.
    """
    known = {hash(x.tobytes()) for x in x_train}
    if pooled:
        count = len(x_train) + len(x_test) - len(known | {hash(x.tobytes()) for x in x_test})
    else:
        count = sum(hash(x.tobytes()) in known for x in x_test)
    what = "samples" if pooled else "test samples"
    return f"{count} {what} repeat the inputs of others; accuracy on them is not that on new samples" * bool(count)


def describe_empty(labels: np.ndarray, classes: int) -> str:
    """Return a line about outputs for which there is no training sample; empty if there are none."""
    empty = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if not len(empty):
        return ""
    shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
    return f"{len(empty)} of {classes} outputs of the model have no training sample: {shown}"


def _resize(images: np.ndarray, size: int) -> np.ndarray:
    pieces = []
    for start in range(0, len(images), 1000):
        x = torch.from_numpy(np.ascontiguousarray(images[start : start + 1000])).float()
        x = torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
        pieces.append((x.round().clamp(0, 255).to(torch.uint8) if images.dtype == np.uint8 else x).numpy())
    return np.concatenate(pieces)


def as_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over the same memory, which may be read-only (shared with other processes)."""
    array = array.copy() if any(step < 0 for step in array.strides) else array  # PyTorch takes no negative strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class Samples:
    """One split of a data set; uint8 images become float32, scaled to [0, 1] and normalised, when gathered.

    Batches go to `device`; the samples stay on `held`, by default the same.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        data: Dataset,
        device: torch.device | str,
        held: torch.device | str | None = None,
    ) -> None:
        self.device = torch.device(device)
        self._x = as_tensor(x).to(device if held is None else held)
        self._y = as_tensor(y).to(self._x.device)
        self._travels = self._x.device.type != self.device.type
        self._scale = self._shift = None
        self.augment = data.augment
        self._tokens = x.dtype == np.uint8 and x.ndim == 2
        if x.dtype == np.uint8 and not self._tokens:
            mean, std = (
                torch.tensor(value or [default], dtype=torch.float32, device=device).view(1, -1, 1, 1)
                for value, default in ((data.mean, 0.0), (data.std, 1.0))
            )
            self._scale, self._shift = 1 / (255 * std), -mean / std

    def __len__(self) -> int:
        return len(self._y)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return tuple(self._x.shape[1:])

    @property
    def bytes_each(self) -> int:
        """Bytes of one input and its label, as they are held."""
        return self._x[:1].numel() * self._x.element_size() + self._y.element_size()

    def get_labels(self, indices: np.ndarray) -> Tensor:
        """Labels int64 `(b,)`."""
        return self._y.index_select(0, torch.from_numpy(indices).to(self._y.device)).to(self.device)

    def make_batch(self, indices: np.ndarray, augment: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs float32 `(b, ...)` (token ids int64), augmented if a generator is given, and labels int64
        `(b,)`.
        """
        index = torch.from_numpy(indices).to(self._x.device)
        x, y = self._x.index_select(0, index), self._y.index_select(0, index)
        if self._travels:
            x, y = upload([x.numpy(), y.numpy()], self.device)
        x = self.prepare(x)
        if augment is not None and self.augment:
            x = augment_batch(x, self.augment, self._get_black(x), augment)
        return x, y

    @property
    def input_bytes(self) -> int:
        """Bytes of one input as a model receives it."""
        return math.prod(self.input_shape) * (8 if self._tokens else 4)

    def make_batches(self, parts: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what `make_batch` returns for each array of positions; all are gathered in one call.

        The tensors share memory, but for autograd they are no views of one: a method may write into its batch.
        """
        if not parts:
            return
        filled = self.fill(parts)
        yield from _split(*self.make_batch(np.concatenate(filled)), parts, filled)

    def fill(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return arrays of positions, repeated until the inputs of each, side by side, begin at aligned memory."""
        step = ALIGNED // math.gcd(ALIGNED, self.input_bytes)
        return [part if len(part) % step == 0 else np.resize(part, -(-len(part) // step) * step) for part in parts]

    def gather(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return inputs and labels as they are held, on the device, in one copy."""
        index = torch.from_numpy(indices).to(self._x.device)
        x, y = self._x.index_select(0, index), self._y.index_select(0, index)
        if self._x.is_cpu:
            x, y = upload([x.numpy(), y.numpy()], self.device)
        return x, y

    def prepare(self, x: Tensor, drawn: Sequence[Sequence[Tensor]] | None = None) -> Tensor:
        """Return a model's inputs, float32 (token ids int64), on the device of `x`; augmented if draws are given."""
        if self._tokens:
            x = x.long()
        elif self._scale is not None and self._shift is not None:
            x = x.float().mul_(self._scale).add_(self._shift)
        return x if drawn is None else apply_draws(x, self.augment, self._get_black(x), drawn)

    def _get_black(self, x: Tensor) -> Tensor:
        """Return the value of a black pixel, float32 `(1, c, 1, 1)`."""
        black = x.new_zeros(1, x.shape[1], 1, 1) if self._shift is None else self._shift
        return black.expand(1, x.shape[1], 1, 1)


class ClientSamples:
    """A client's training samples, by their positions in the training set; they are gathered where that is."""

    def __init__(self, samples: Samples, indices: np.ndarray) -> None:
        self._samples, self._indices = samples, indices

    def get_labels(self) -> Tensor:
        """Return all labels, int64 `(n_i,)`."""
        return self._samples.get_labels(self._indices)

    def cut(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the samples from `start` to before `stop`, as a batch."""
        return self._samples.make_batch(self._indices[start:stop])

    def iter_batches(
        self, order: Iterable[np.ndarray], augment: np.random.Generator | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a batch for each array of positions, as `Samples.make_batch`."""
        for positions in order:
            yield self._samples.make_batch(self._indices[positions], augment)


class ResidentSamples(ClientSamples):
    """A client's training samples on the training device: inputs as they are held, and labels.

    Positions and draws of all batches go there in one copy.
    """

    def __init__(self, samples: Samples, x: Tensor, y: Tensor) -> None:
        self._samples, self._x, self._y = samples, x, y

    def mark_read(self) -> "ResidentSamples":
        """Return itself, for the current stream to read (`vectors.mark_read`)."""
        mark_read([self._x, self._y])
        return self

    def get_labels(self) -> Tensor:
        return self._y

    def cut(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        # A copy: a method may write into its batch.
        return self._samples.prepare(self._x[start:stop].clone()), self._y[start:stop]

    def iter_batches(
        self, order: Iterable[np.ndarray], augment: np.random.Generator | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order = list(order)
        if not order:
            return
        chain = self._samples.augment if augment is not None else ()
        filled = order if chain else self._samples.fill(order)
        arrays = [np.concatenate(filled)]
        for positions in order:
            if augment is not None and chain:
                _, h, w = self._samples.input_shape
                arrays += [array for one in chain for array in one.draw(len(positions), h, w, augment)]
        index, *others = upload(arrays, self._samples.device)
        draws = iter(others)
        together = 1 if chain else max(TOGETHER // (self._samples.input_bytes * max(map(len, filled))), 1)
        groups = [slice(begin, begin + together) for begin in range(0, len(order), together)]
        for group, rows in zip(groups, index.split([sum(map(len, filled[group])) for group in groups]), strict=True):
            x, y = self._x.index_select(0, rows), self._y.index_select(0, rows)
            drawn = [[next(draws) for _ in range(transform.draws)] for transform in chain] if chain else None
            yield from _split(self._samples.prepare(x, drawn), y, order[group], filled[group])


def _split(
    x: Tensor, y: Tensor, parts: Sequence[np.ndarray], filled: Sequence[np.ndarray]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of arrays of positions from the samples of the filled arrays (`Samples.fill`)."""
    rooms = [len(room) for room in filled]
    for part, xs, ys in zip(parts, *(t.unsafe_split_with_sizes(rooms) for t in (x, y)), strict=True):
        yield (xs, ys) if len(xs) == len(part) else (xs[: len(part)], ys[: len(part)])
