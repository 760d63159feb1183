"""Results of one process's share of a round: exact sums and checks, which are read once, when the share is done.

A check that read its result at once would make the process wait for the device at every vector of every client.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.common.transfer import download
from fedray.engine.exact_sum import SCALE, Accumulator, NotSummable, refuse_inexact


class _Check(NamedTuple):
    """What has to hold for a vector: the positions of its extremes among the scalars that are read."""

    client: int
    what: str
    factor: float
    terms: int
    low: int
    high: int


class Reduction:
    """Adds vectors up on the device where they are, and notes what must hold for them.

    Nothing is read back from the device before `settle` or `finish`. The sums are valid only if nobody is refused.
    """

    def __init__(self) -> None:
        self._sums = Accumulator()
        self._scalars: list[Tensor] = []
        self._checks: list[_Check] = []
        self._numbers: list[tuple[str, torch.Size, float, int]] = []
        self._totals: dict[str, tuple[torch.Size, int]] = {}

    def check(self, client: int, what: str, vector: Tensor) -> None:
        """Note that a vector must be finite. what: its name in the message."""
        if vector.numel():
            self._checks.append(_Check(client, what, 0.0, 1, *self._measure(vector.detach())))

    def add(self, client: int, name: str, vector: Tensor, weight: float, terms: int) -> None:
        """Add weight x vector to a sum, and note that it must be finite and not too large, as `Accumulator.add`.

        Args:
            client: whose vector it is.
            name: name of the sum.
            vector: any shape.
            weight: factor of the vector.
            terms: number of vectors in the whole sum.
        """
        vector, factor = vector.detach(), weight * SCALE
        if not vector.numel():
            self._sums.add(name, vector, weight, terms)
            return
        low, high = self._measure(vector)
        self._checks.append(_Check(client, name, abs(factor), terms, low, high))
        if vector.numel() == 1:  # such as a loss: operations on tensors would take longer than the step
            self._numbers.append((name, vector.shape, factor, low))
        else:
            self._sums.add_unchecked(name, vector, factor)

    def settle(self) -> dict[int, str]:
        """Read what was noted since the last call, in one copy.

        Returns:
            client -> the first reason why its vectors cannot be used; empty if all can.
        """
        return self._judge(download(self._stack_scalars()))

    def finish(self, also: Sequence[Tensor] = ()) -> tuple[dict[int, str], dict[str, Tensor], list[Tensor]]:
        """Settle, and fetch the sums; one wait for everything.

        Args:
            also: more tensors to fetch.

        Returns:
            As `settle`; the exact sums on the CPU, int64 in units of 2^-44; and the tensors of `also` on the CPU.
        """
        stacked, sums = self._stack_scalars(), self._sums.sums
        copies = download([*stacked, *sums.values(), *also])
        refused = self._judge(copies[: len(stacked)])
        fetched = dict(zip(sums, copies[len(stacked) :], strict=False))
        fetched |= {name: torch.full(shape, n, dtype=torch.int64) for name, (shape, n) in self._totals.items()}
        return refused, fetched, copies[len(stacked) + len(sums) :]

    def _stack_scalars(self) -> list[Tensor]:
        scalars, self._scalars = self._scalars, []
        return [torch.stack(scalars)] if scalars else []

    def _judge(self, read: Sequence[Tensor]) -> dict[int, str]:
        values = read[0].tolist() if read else []
        refused: dict[int, str] = {}
        for check in self._checks:
            if check.client not in refused:
                try:
                    refuse_inexact(check.what, max(-values[check.low], values[check.high]), check.factor, check.terms)
                except NotSummable as reason:
                    refused[check.client] = str(reason)
        if not refused:
            for name, shape, factor, place in self._numbers:
                self._totals[name] = shape, self._totals.get(name, (shape, 0))[1] + round(values[place] * factor)
        self._checks, self._numbers = [], []
        return refused

    def _measure(self, vector: Tensor) -> tuple[int, int]:
        """Note a vector's least and largest entry to be read; return their positions. Both are NaN if one is."""
        place = len(self._scalars)
        extremes = [vector.reshape(())] if vector.numel() == 1 else list(torch.aminmax(vector))
        if vector.dtype is not torch.float32:
            extremes = [extreme.double() for extreme in extremes]
        self._scalars += extremes
        return place, place + len(extremes) - 1
