"""glibc's allocator told to keep memory: training frees and asks for the same megabytes at every step."""

import ctypes
import ctypes.util
import os
import platform
from dataclasses import dataclass
from functools import cache

import torch

from fedray.common.errors import UserError

# <malloc.h>: parameter numbers. 32 MiB is the largest threshold glibc accepts on 64-bit machines.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 1 << 30
PAD = 64 << 20
MMAP = 32 << 20


@cache
def keep_memory() -> bool:
    """Tune this process's malloc to keep the memory that it frees.

    Without it every vector above 128 KiB is mapped, faulted in page by page and given back, at each operation.

    Returns:
        Whether that was possible; False where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    settings = ((M_MMAP_THRESHOLD, MMAP), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, PAD))
    return all([libc.mallopt(name, value) for name, value in settings])


def refuse_missing(device: str) -> None:
    """Raise UserError where this process cannot see the device that the configuration asks for."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device: no CUDA device is visible to PyTorch here; set runtime.device: cpu")


def prepare(tf32: bool, deterministic: bool) -> None:
    """Choose the kernels of this process, before its first one.

    Args:
        tf32: allow TensorFloat-32.
        deterministic: the same bits from the same numbers. An operation that has no such kernel raises RuntimeError
            when it is used.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32  # torch allows convolutions TF32 unless told not to
    torch.backends.cudnn.allow_tf32 = tf32
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    # Filling new tensors would be a pass over each; nothing reads them before they are written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Peak:
    """Bytes of a GPU: the most that this process ever held, its CUDA context included, and all there are."""

    used: int
    total: int


def peak() -> Peak:
    """Of the current device, which no other process uses meanwhile."""
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    return Peak(context + torch.cuda.max_memory_reserved(), total)
