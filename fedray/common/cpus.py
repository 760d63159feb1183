"""The CPUs that this process may use."""

import os


def count_usable_cpus() -> int:
    """Return the number of CPUs this process may run on; `taskset` or a batch system may allow fewer than exist."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
