"""Sums whose value depends neither on order nor on grouping, so that actors can reduce before they send.

A floating-point sum changes with its order. Here every weighted vector is rounded to a multiple of 2^-44 and summed as
64-bit integers, which is associative. 2^-44 = 5.7e-14 is below float32's own resolution for entries above 5e-7.
"""

import torch
from torch import Tensor

SCALE = 2.0**44
LIMIT = 2.0**62


class NotSummable(Exception):
    """A vector is not finite or too large for the fixed-point range; the argument says which."""


class Accumulator:
    """Named exact sums: int64 tensors in units of 2^-44, on the CPU."""

    def __init__(self, sums: dict[str, Tensor] | None = None) -> None:
        self.sums: dict[str, Tensor] = dict(sums or {})

    def add(self, name: str, vector: Tensor, weight: float, terms: int) -> None:
        """Add weight x vector; `terms` is how many vectors the whole sum will have (the cohort).

        Raises NotSummable where |vector| x weight x terms reaches 2^18 or an entry is not finite: nothing is added,
        and nothing can wrap around.
        """
        scaled = vector.detach().to(torch.float64, copy=True).mul_(weight * SCALE).round_()
        largest = float(scaled.abs().max()) if scaled.numel() else 0.0
        if not largest * terms < LIMIT:
            raise NotSummable(f"{name} is not finite" if largest != largest or largest == float("inf") else
                              f"{name} is too large to be summed exactly ({largest / SCALE:.3g})")
        quantised = scaled.to(torch.int64).cpu()
        self.sums[name] = self.sums[name].add_(quantised) if name in self.sums else quantised

    def merge(self, sums: dict[str, Tensor]) -> None:
        """Add another accumulator's sums."""
        for name, value in sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def result(self) -> dict[str, Tensor]:
        """The sums as float32."""
        return {name: value.to(torch.float64).div_(SCALE).to(torch.float32) for name, value in self.sums.items()}
