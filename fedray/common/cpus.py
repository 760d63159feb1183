"""The CPUs that this process may use, and what they can do."""

import os
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of processors that compute in bfloat16: two of x86's, and Arm's."""


def count_usable_cpus() -> int:
    """Return the number of CPUs this process may run on; `taskset` or a batch system may allow fewer than exist."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")  # Slurm without cgroups does not bind a process to its CPUs
    return min(count, int(asked)) if asked.isdecimal() and int(asked) else count


@cache
def has_bf16() -> bool | None:
    """Return True if this machine's CPU has instructions for bfloat16, None if the system does not say (macOS)."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else not BF16.isdisjoint(flags.split())
