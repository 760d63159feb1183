"""Protocol of benchmark and system: a round at a time, by lines through the system's standard input and output.

A system prints `ready {...}` once it has imported, loaded and warmed up. For each line `round` that it reads, it then
makes one round and prints `done`. At the end of its input it ends. Only these lines go to its standard output.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""glibc's allocator as fedray.engine.process.device sets it, for every system."""
NICENESS = int(os.environ.setdefault("RAY_worker_niceness", "0"))
"""Niceness of Ray's workers (its variable, fedray's default); all systems use it, so that they compete equally."""


def lines() -> TextIO:
    """Return the protocol's stream; other output goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stream


def wait(out: TextIO) -> bool:
    """Wait for the next round's line; return False at the end."""
    return sys.stdin.readline().strip() == "round"


def ready(out: TextIO, workers: list[int], **more: object) -> None:
    """Announce that rounds can be requested. workers: ids of the processes that train."""
    print("ready", json.dumps({"workers": workers, "pid": os.getpid(), **more}), file=out)


def serve(round: Callable[[], None], workers: list[int], out: TextIO, warmups: int = 2, **more: object) -> None:
    """Serve rounds until the input ends."""
    for _ in range(warmups):
        round()
    ready(out, workers, **more)
    with contextlib.suppress(BrokenPipeError):
        while wait(out):
            round()
            print("done", file=out)
