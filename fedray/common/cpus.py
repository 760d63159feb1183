"""The CPUs of this machine that are this process's to use."""

import os


def usable_cpus() -> int:
    """How many CPUs this process may run on: with `taskset`, or in a job of a batch system, not all there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
