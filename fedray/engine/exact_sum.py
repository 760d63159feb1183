"""Sums that do not depend on order or grouping, so that actors can reduce before they send.

A floating-point sum changes with its order. Here every weighted vector is rounded to a multiple of 2^-44 and summed as
64-bit integers, which is associative. 2^-44 = 5.7e-14 is below float32's own resolution for entries above 5e-7. Cohort
x |weighted entry| has to stay below 2^18.

A wide sum (`Sum.wide`) rounds to 2^-32 and adds what that leaves as a second integer, in units of 2^-71 = 4e-22; it
holds values up to 2^30. Each upload and the smallest value of it that matters, for a cohort of M = 100:

| upload | method | smallest value that matters | sum |
|---|---|---|---|
| update, buffers, head, body | all | 1e-9: float32's spacing at a parameter of 0.01 | plain |
| h_change, dual | FedDyn's H_i, FedGMT | 1e-9: the mean is added to x | plain |
| mean_step | FedNova | 1e-11: 1e-9 over 100 steps | plain |
| c_change, apart, delta, full_gradient | variates, Δ, MimeLite | 1e-10: x moves by K η = 10 times that | plain |
| momentum | FedMuon | 7e-11: a matrix is divided by ||M||_F + 1e-7; an entry of 2 million at 1e-7 | plain |
| mu | FedSMOO | 1e-6: divided by its norm; an entry of 10^8 at ρ = 0.01 | plain |
| prototypes | FedProto | 1e-10: a feature of 1e-3 times n_ic/Σ n = 1e-7 | plain |
| parts, samples | FedProto, SCAFFOLD | 1e-7: one of 10^7 samples; 0 means none | plain |
| value, train_loss | FedWMSAM, all | 0.01 | plain |
| v | FedAdamW, FedLADA | 1e-16: ε², next to √v or its floor; a gradient of 255 gives 65,025 | wide |
| steps, tau | FedAdamW, FedNova | 1; but M K reaches 2^18 with 1,000 clients and 263 steps | wide |
| squared_norm | FedExP | 1e-5: compared with ε (η_t/η_0)²; 2^18 with large steps | wide |
| weighted, information | FedAS | 1e-12: F_i = 1e-9 of the mean, or of 1 in round 0; 1e7 times the mean | wide |
| counts of a test | `process.evaluate` | 1; but 2^18 samples of a class are too many for a plain sum | wide |

A sum of v has to resolve π_i v_i = 1e-18 (ε² in one of a hundred clients) and to hold M π_i v_i = 5e5 (65,025 in a
client of eight times the mean weight): a factor of 2^79, more than one integer holds, whatever its unit. If all terms
round alike, a mean is off by M/2 units: 2.8e-12, or 2e-20. Sums of weight 1 are divided by M or N: half a unit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

SCALE = 2.0**44
WIDE = 2.0**32
"""Units of a wide sum's integer in 1; rounding to it leaves up to half a unit."""
REST, FINER = " rest", 2.0**39
"""Suffix of the sum of what this leaves, in units of 2^-39 of a wide sum's: 2^24 terms of a half stay below `LIMIT`."""
LIMIT = 2.0**62
BLOCK = 1 << 16
"""Entries of a vector processed at a time: 512 KiB of float64 fit a processor's cache, which takes 0.6 of the time."""


class Accumulator:
    """Named exact sums: int64 tensors on the device of the vectors; of a wide sum two, the second named with `REST`."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add_unchecked(self, name: str, vector: Tensor, factor: float) -> None:
        """Add factor x vector, rounded, on the vector's device; the caller checks it. factor: weight x scale."""
        if vector.numel() <= BLOCK or not vector.is_cpu:
            self._add(name, _scale(vector, factor).to(torch.int64))
            return
        if name not in self.sums:
            self.sums[name] = torch.zeros(vector.shape, dtype=torch.int64)
        for part, summed in zip(vector.reshape(-1).split(BLOCK), self.sums[name].view(-1).split(BLOCK), strict=True):
            summed.add_(_scale(part, factor).to(torch.int64))

    def add_rows(self, name: str, rows: Tensor, factors: Sequence[float]) -> None:
        """Add small vectors `(n, ...)`, as `add_unchecked` would one by one."""
        if len(rows) == 1:
            self.add_unchecked(name, rows[0], factors[0])
            return
        scaled = rows.to(torch.float64, copy=True)
        if len(set(factors)) == 1:
            scaled.mul_(factors[0])
        else:
            for row, factor in zip(scaled, factors, strict=True):
                row.mul_(factor)
        self._add(name, scaled.round_().to(torch.int64).sum(0))

    def _add(self, name: str, quantised: Tensor) -> None:
        self.sums[name] = self.sums[name].add_(quantised) if name in self.sums else quantised


def split(name: str, vector: Tensor, weight: float) -> list[tuple[str, Tensor, float, float]]:
    """Return the two integer sums of weight x vector in a wide sum: name, vector, weight and scale (1/unit) of each."""
    rest = torch.empty(vector.shape, dtype=torch.float32, device=vector.device)
    size = BLOCK if vector.is_cpu else max(vector.numel(), 1)
    for part, left in zip(vector.reshape(-1).split(size), rest.view(-1).split(size), strict=True):
        scaled = part.to(torch.float64, copy=True).mul_(weight * WIDE)
        left.copy_(scaled.sub_(scaled.round()))
    return [(name, vector, weight, WIDE), (name + REST, rest, 1.0, FINER)]


def describe_inexact(name: str, largest: float, factor: float, terms: int, scale: float) -> str:
    """Return what is wrong if an entry of a vector is not finite, or if the sum of `terms` vectors might overflow.

    `largest`: the vector's largest magnitude, NaN if an entry is; `factor`: weight x scale, 0 for a vector that only
    has to be finite; `scale`: units of the sum in 1. Empty for a vector that can be summed.
    """
    if not math.isfinite(scaled := largest * factor) or not math.isfinite(largest):
        return f"{name} is not finite"
    if scaled * terms < LIMIT:
        return ""
    reason = ": running statistics of inputs that are not normalised" if name == "buffers" else ""
    return f"{name} is too large to be summed exactly ({scaled / scale:.3g}){reason}"


def add_up(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Add the sums of several accumulators, whose tensors may be in read-only memory: name -> float32.

    This works block by block: int64 and float64 copies of whole vectors would take three times as long.
    """
    result: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for part in parts for name in part if not name.endswith(REST)):
        summands, rests = ([part[each] for part in parts if each in part] for each in (name, name + REST))
        result[name] = torch.empty(summands[0].shape)
        blocks, totals = result[name].view(-1).split(BLOCK), _iter_blocks(summands)
        if not rests:
            for block, total in zip(blocks, totals, strict=True):
                block.copy_(total.to(torch.float64).div_(SCALE))
            continue
        for block, total, rest in zip(blocks, totals, _iter_blocks(rests), strict=True):
            block.copy_(total.to(torch.float64).add_(rest.to(torch.float64), alpha=1 / FINER).div_(WIDE))
    return result


def _iter_blocks(summands: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the sum of int64 vectors of one shape block by block."""
    for first, *others in zip(*(v.reshape(-1).split(BLOCK) for v in summands), strict=True):
        for other in others:
            first = first + other
        yield first


def is_finite(vector: Tensor) -> bool:
    """Return True if every entry is finite; one pass that allocates no memory."""
    return not vector.numel() or all(math.isfinite(float(end)) for end in torch.aminmax(vector))  # NaN is both ends


def _scale(vector: Tensor, factor: float) -> Tensor:
    return vector.to(torch.float64, copy=True).mul_(factor).round_()
