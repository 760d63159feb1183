"""Copies between the host's memory and a training device: the only places where fedray makes them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNED = 512
"""Arrays begin at multiples of this many bytes within an upload, as CUDA's own allocations do."""


def upload(arrays: Sequence[np.ndarray], device: torch.device | str) -> list[Tensor]:
    """Copy arrays to a device, all in one copy that the caller does not wait for.

    Args:
        arrays: of any dtypes and shapes that torch has.
        device: the target.

    Returns:
        Tensors on the device: views of one block of memory, which lives as long as any of them.
    """
    starts, total = [], 0
    for array in arrays:
        starts.append(total)
        total += -(-array.nbytes // ALIGNED) * ALIGNED
    packed = torch.empty(total, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    flat = packed.numpy()
    for array, start in zip(arrays, starts, strict=True):
        flat[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = copy_to(packed, device)
    return [
        there[start : start + array.nbytes]
        .view(torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype)
        .view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


def copy_to(packed: Tensor, device: torch.device | str) -> Tensor:
    """Copy one block to a device, without waiting if it is pinned."""
    return packed.to(device, non_blocking=True)


def download(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the CPU and wait once, for all of them. Tensors that are there already are not copied."""
    copies = [tensor.detach().to("cpu", non_blocking=True) for tensor in tensors]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream().synchronize()
    return copies
