"""Handling of the signals that stop a run."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def treat_sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM (a batch system's warning) end a run or sweep like Ctrl-C, so that everything gets its final status.

    This works in the main thread only; in another thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
