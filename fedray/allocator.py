"""glibc's allocator told to keep memory: training frees and asks for the same megabytes at every step."""

import ctypes
import ctypes.util
import platform
from functools import cache

# <malloc.h>: parameter numbers. 32 MiB is the largest threshold glibc accepts on 64-bit machines.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 1 << 30
PAD = 64 << 20
MMAP = 32 << 20


@cache
def keep_memory() -> bool:
    """Tune this process's malloc; whether that was possible (False where the C library is not glibc).

    Without it every vector above 128 KiB is mapped, faulted in page by page and given back, at each operation.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    settings = ((M_MMAP_THRESHOLD, MMAP), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, PAD))
    return all([libc.mallopt(name, value) for name, value in settings])
