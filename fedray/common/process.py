"""This process: the CPUs that it may use, and the signals that stop it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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


INTERRUPTED = "interrupted; run the same command again to resume"
"""Message of an interrupted command or cell."""
GRACE = 10.0
"""Seconds that a process which is to end waits for a silent store. Batch systems kill it after about 30."""
ending = threading.Event()
"""Set after SIGTERM: what waits for a store waits no longer than GRACE."""


@contextlib.contextmanager
def treat_sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM (a batch system's warning) end a run or sweep like Ctrl-C, so that everything gets its final status.

    This works in the main thread only; in another thread nothing changes. Further ones are ignored: `timeout` sends
    two, and a second Ctrl-C would mean `at once`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        ending.set()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not callable(signal.getsignal(signal.SIGINT)):  # a shell's background job begins with SIGINT ignored
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)  # Tune's handler, while it has one

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        ending.clear()


@contextlib.contextmanager
def block_signal(number: int = signal.SIGTERM) -> Iterator[None]:
    """Let processes that are started in a block never receive a signal.

    `timeout`, Slurm and systemd send SIGTERM to all processes of a command at once. Without Ray's, the driver would
    hang in a call for a minute and then abort, with nothing written.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
