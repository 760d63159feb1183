"""PyTorch's and glibc's settings of a process: memory allocation, isolation of a run, CUDA kernels."""

import contextlib
import ctypes
import ctypes.util
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from fedray.common.errors import UserError

# <malloc.h>: parameter numbers. 32 MiB is the largest threshold glibc accepts on 64-bit machines.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MIB = 1 << 20


def keep_memory() -> bool:
    """Tune this process's malloc to keep freed memory; for a process that trains.

    Otherwise every vector above 128 KiB is mapped, faulted in page by page and unmapped, at each operation.

    Returns:
        True if that was possible; False if the C library is not glibc.
    """
    return _tune_malloc({M_MMAP_THRESHOLD: 32 * MIB, M_TRIM_THRESHOLD: 1024 * MIB, M_TOP_PAD: 64 * MIB})


def map_vectors() -> bool:
    """Tune this process's malloc to map every vector of 1 MiB or more separately; for a process that keeps references.

    Otherwise thousands of small, long-lived objects allocated between short-lived vectors would each keep a hole of a
    vector's size from being reused (100 KB for each client with a state, at a million parameters).

    Returns:
        As `keep_memory`.
    """
    return _tune_malloc({M_MMAP_THRESHOLD: MIB, M_TRIM_THRESHOLD: MIB, M_TOP_PAD: 0})


def _tune_malloc(settings: Mapping[int, int]) -> bool:
    libc = _load_glibc()
    return libc is not None and all([libc.mallopt(name, value) for name, value in settings.items()])


@cache
def _load_glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(ctypes.util.find_library("c")) if platform.libc_ver()[0] == "glibc" else None


_ONE_RUN = threading.RLock()


@contextlib.contextmanager
def isolate_run() -> Iterator[None]:
    """Give a run PyTorch's default settings within a block, and restore the caller's afterwards.

    Gradients are on, autocast is off, numbers are float32 in full precision, new tensors are on the CPU. The random
    generator and the number of threads belong to the process, so a run in another thread waits.
    """
    with _ONE_RUN, contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        if (precision := torch.get_float32_matmul_precision()) != "highest":
            stack.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision("highest")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def refuse_missing(device: str) -> None:
    """Raise UserError if this process cannot see the device that the configuration asks for."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device: no CUDA device is visible to PyTorch here; set runtime.device: cpu")


def prepare(tf32: bool, deterministic: bool) -> None:
    """Choose the kernels of this process, before its first one.

    Args:
        tf32: allow TensorFloat-32.
        deterministic: use kernels that give the same bits for the same numbers. An operation without such a kernel
            raises RuntimeError when it is used.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32  # by default torch allows TF32 in convolutions
    torch.backends.cudnn.allow_tf32 = tf32
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    # Filling new tensors would be a pass over each; nothing reads them before they are written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Peak:
    """GPU memory in bytes: the most that this process has held, its CUDA context included, and the GPU's total."""

    used: int
    total: int


def measure_peak() -> Peak:
    """Measure the current device; no other process may use it meanwhile."""
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    return Peak(context + torch.cuda.max_memory_reserved(), total)
