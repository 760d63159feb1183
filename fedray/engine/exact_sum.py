"""Sums that do not depend on order or grouping, so that actors can reduce before they send.

A floating-point sum changes with its order. Here every weighted vector is rounded to a multiple of 2^-44 and summed as
64-bit integers, which is associative. 2^-44 = 5.7e-14 is below float32's own resolution for entries above 5e-7.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedray.common.transfer import download

SCALE = 2.0**44
LIMIT = 2.0**62
BLOCK = 1 << 16
"""Entries of a vector processed at a time: 512 KiB of float64 fit a processor's cache, which takes 0.6 of the time."""


class NotSummable(Exception):
    """Raised if a vector is not finite or too large for the fixed-point range; the message says which."""


class Accumulator:
    """Named exact sums: int64 tensors in units of 2^-44, on the device of the vectors."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, name: str, vector: Tensor, weight: float, terms: int) -> None:
        """Add weight x vector.

        Args:
            name: name of the sum.
            vector: any shape.
            weight: factor of the vector.
            terms: number of vectors in the whole sum (the cohort's size).

        Raises:
            NotSummable: |vector| x weight x terms reaches 2^18, or an entry is not finite. Then nothing is added, so
                the sums cannot overflow.
        """
        factor, vector = weight * SCALE, vector.detach()
        if vector.numel() == 1:  # such as a loss: the operations below would take longer than the step
            number = float(vector) * factor
            refuse_inexact(name, abs(number), 1.0, terms)
            self._add(name, torch.full(vector.shape, round(number), dtype=torch.int64))
            return
        refuse_inexact(name, _find_largest(vector), abs(factor), terms)
        self.add_unchecked(name, vector, factor)

    def add_unchecked(self, name: str, vector: Tensor, factor: float) -> None:
        """Add factor x vector, in units of 2^-44, on the vector's device; the caller checks the vector.

        Args:
            name: name of the sum.
            vector: any shape, without gradient.
            factor: weight x 2^44.
        """
        if vector.numel() <= BLOCK or not vector.is_cpu:
            self._add(name, _scale(vector, factor).to(torch.int64))
            return
        if name not in self.sums:
            self.sums[name] = torch.zeros(vector.shape, dtype=torch.int64)
        for part, summed in zip(vector.reshape(-1).split(BLOCK), self.sums[name].view(-1).split(BLOCK), strict=True):
            summed.add_(_scale(part, factor).to(torch.int64))

    def add_rows(self, name: str, rows: Tensor, factors: Sequence[float]) -> None:
        """Add several small vectors, as `add_unchecked` would one by one.

        Args:
            name: name of the sum.
            rows: `(n, ...)`; overwritten if they are float64.
            factors: each vector's weight x 2^44.
        """
        if len(rows) == 1:
            self.add_unchecked(name, rows[0], factors[0])
            return
        scaled = rows.to(torch.float64)
        if len(set(factors)) == 1:
            scaled.mul_(factors[0])
        else:
            for row, factor in zip(scaled, factors, strict=True):
                row.mul_(factor)
        self._add(name, scaled.round_().to(torch.int64).sum(0))

    def fetch(self) -> dict[str, Tensor]:
        """Return the sums on the CPU, in one wait."""
        return dict(zip(self.sums, download(list(self.sums.values())), strict=True))

    def _add(self, name: str, quantised: Tensor) -> None:
        self.sums[name] = self.sums[name].add_(quantised) if name in self.sums else quantised


def refuse_inexact(name: str, largest: float, factor: float, terms: int) -> None:
    """Refuse a vector that cannot be summed exactly.

    Args:
        name: of the vector, for the message.
        largest: its largest magnitude; NaN if an entry is.
        factor: weight x 2^44; 0 for a vector that only has to be finite.
        terms: number of vectors in the whole sum.

    Raises:
        NotSummable: an entry is not finite, or the sum might overflow.
    """
    if not math.isfinite(scaled := largest * factor) or not math.isfinite(largest):
        raise NotSummable(f"{name} is not finite")
    if not scaled * terms < LIMIT:
        raise NotSummable(f"{name} is too large to be summed exactly ({scaled / SCALE:.3g})")


def add_up(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Add the sums of several accumulators.

    This works block by block: int64 and float64 copies of whole vectors would take three times as long.

    Args:
        parts: name -> sum, of each accumulator. The tensors may be in read-only memory.

    Returns:
        name -> float32.
    """
    result: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        summands = [part[name] for part in parts if name in part]
        result[name] = torch.empty(summands[0].shape)
        blocks = zip(result[name].view(-1).split(BLOCK), *(v.reshape(-1).split(BLOCK) for v in summands), strict=True)
        for block, first, *others in blocks:
            for other in others:
                first = first + other
            block.copy_(first.to(torch.float64).div_(SCALE))
    return result


def is_finite(vector: Tensor) -> bool:
    """Return True if every entry is finite; one pass that allocates no memory."""
    return math.isfinite(_find_largest(vector))


def _find_largest(vector: Tensor) -> float:
    """Return the largest magnitude; NaN if there is one."""
    if not vector.numel():
        return 0.0
    low, high = torch.aminmax(vector)
    return max(-float(low), float(high))


def _scale(vector: Tensor, factor: float) -> Tensor:
    return vector.to(torch.float64, copy=True).mul_(factor).round_()
