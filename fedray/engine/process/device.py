"""PyTorch's and glibc's settings of a process: memory allocation, isolation of a run, CUDA kernels."""

import contextlib
import ctypes
import ctypes.util
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import torch

from fedray.common.errors import UserError, warn_once
from fedray.common.process import has_bf16

T = TypeVar("T")
log = logging.getLogger("fedray")

# <malloc.h>: parameter numbers. 32 MiB is the largest threshold glibc accepts on 64-bit machines.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MIB = 1 << 20
CONTEXT = 600 * MIB
"""A CUDA context with the kernels that PyTorch loads, and the memory that cuBLAS and cuDNN allocate themselves."""

PRECISIONS = (
    "",
    *("cudnn", "mkldnn"),
    *("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
)
"""Where `torch.backends` has a string `fp32_precision`: for all, for a backend, for its operations."""


def keep_memory() -> None:
    """Tune this process's malloc, if it is glibc's, to keep freed memory, for a process that trains.

    Otherwise every vector above 128 KiB is mapped, faulted in page by page and unmapped, at each operation.
    """
    _tune_malloc({M_MMAP_THRESHOLD: 32 * MIB, M_TRIM_THRESHOLD: 1024 * MIB, M_TOP_PAD: 64 * MIB})


def map_vectors() -> None:
    """Tune this process's malloc to map every vector of 1 MiB or more separately; for a process that keeps references.

    Otherwise thousands of small, long-lived objects allocated between short-lived vectors would each keep a hole of a
    vector's size from being reused (100 KB for each client with a state, at a million parameters).
    """
    _tune_malloc({M_MMAP_THRESHOLD: MIB, M_TRIM_THRESHOLD: MIB, M_TOP_PAD: 0})


def _tune_malloc(settings: Mapping[int, int]) -> None:
    if (libc := _load_glibc()) is not None:
        for name, value in settings.items():
            libc.mallopt(name, value)


@cache
def _load_glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(ctypes.util.find_library("c")) if platform.libc_ver()[0] == "glibc" else None


_ONE_RUN = threading.RLock()


@contextlib.contextmanager
def isolate_run() -> Iterator[None]:
    """Give a run PyTorch's default settings within a block, and restore the caller's afterwards.

    Gradients are on, autocast is off, numbers are float32 in full precision, new tensors are on the CPU. The random
    generator and the number of threads belong to the process, so a run in another thread waits. A block within a run's
    block leaves the run its settings, even if the inner one changes them.
    """
    with _ONE_RUN, contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(_use_full_precision())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(_keep_cpu)
        stack.callback(_choose_kernels, *_get_kernels())
        yield


@contextlib.contextmanager
def _use_full_precision() -> Iterator[None]:
    """Let no operation round float32 within a block; the caller may have allowed it in either of PyTorch's two ways.

    The old way is a precision of products and a flag of cuDNN's; reading one raises RuntimeError if the strings of the
    new way contradict it.
    """
    found = {path: value for path in PRECISIONS if (value := _get_precision(path)) is not None}
    precision = _read(torch.get_float32_matmul_precision, "")
    for path in found:
        _set_precision(path, "none")
    precision = precision or _read(torch.get_float32_matmul_precision, "high")
    allows = _read(lambda: torch.backends.cudnn.allow_tf32, True)  # without strings it raises if it is True
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = allows  # until `prepare`
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = allows
        for path in found:
            _set_precision(path, "none")
        for path, value in found.items():
            if _get_precision(path) != value:  # a backend's string is also that of its operations
                _set_precision(path, value)


def _read(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except RuntimeError:
        return otherwise


def _get_precision(path: str) -> str | None:
    """Return one of PyTorch's strings of `PRECISIONS`; None if this version lacks it."""
    value: str | None = getattr(_find_backend(path), "fp32_precision", None)
    return value


def _set_precision(path: str, value: str) -> None:
    _find_backend(path).fp32_precision = value


def _find_backend(path: str) -> Any:
    found: Any = torch.backends
    for name in path.split(".") if path else ():
        found = getattr(found, name, None)
    return found


def _keep_cpu() -> None:
    """Undo `torch.set_default_device` of a block that began with the CPU."""
    if torch.get_default_device().type != "cpu":
        torch.set_default_device(None)


def refuse_missing(device: str) -> None:
    """Raise UserError if this process cannot see the device that the configuration asks for."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device: no CUDA device is visible to PyTorch here; set runtime.device: cpu")


def warn_of_slow_precision(precision: str, device: str) -> None:
    """Warn once per process if `training.precision` is bf16 and this machine's CPU would have to emulate it."""
    if precision == "bf16" and device == "cpu" and has_bf16() is False:
        warn_once(
            "training.precision: bf16: this machine's CPU has no instructions for it (avx512_bf16 or AMX), so it is "
            "about 8 times slower than fp32"
        )


def prepare(tf32: bool, deterministic: bool) -> None:
    """Choose the kernels of this process, before its first one: allow TensorFloat-32, or only the same bits each time.

    With `deterministic` an operation without such a kernel raises RuntimeError when it is used.
    """
    # cuBLAS, also within cuDNN's LSTM, gives the same bits each time if its workspace has buffers of one size. This is
    # PyTorch's own choice on an H200; without it cuDNN has two sizes. A setting of the user's stays.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # By default torch allows TF32 in convolutions. Filling new tensors would be a pass over each; nothing reads them
    # before they are written.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    _choose_kernels(deterministic, False, False)


def _get_kernels() -> tuple[bool, bool, bool]:
    """Return this process's choice of kernels, as `_choose_kernels` takes it."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


def _choose_kernels(deterministic: bool, warn_only: bool, fill: bool) -> None:
    if _get_kernels()[:2] != (deterministic, warn_only):  # the call imports TorchInductor, for seconds
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def count_memory(share: float) -> tuple[int, int]:
    """Return the bytes of its GPU that this process holds, and how many more it may take."""
    free, total = torch.cuda.mem_get_info()
    held = torch.cuda.memory_reserved()
    return held, min(free, int(share * total) - held)


def limit_share(share: float) -> None:
    """Cap the memory that this process takes of its GPU at a share in (0, 1], so that it cannot take a neighbour's.

    PyTorch's limit leaves out the CUDA context, which therefore is taken off: at most half of a share.
    """
    context = CONTEXT / torch.cuda.get_device_properties().total_memory if share < 1 else 0.0
    torch.cuda.set_per_process_memory_fraction(max(share - context, share / 2))
