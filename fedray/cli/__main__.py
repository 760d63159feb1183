"""`fedray` as a process of its own, also as `python -m fedray.cli`."""

import atexit
import contextlib
import os
import sys

from fedray.cli.main import main


def run() -> None:
    """`fedray`, whose process ends at once when all is said and done.

    Python would first free what torch, Ray and MLflow hold, object by object, for up to a second and a half.
    """
    ended: list[int] = []

    @atexit.register  # the first one registered is the last one called
    def leave() -> None:
        if ended:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):  # nobody reads any more
                    stream.flush()
            os._exit(ended[0])

    try:
        main()
    except SystemExit as exit_:
        if isinstance(exit_.code, int):
            ended.append(exit_.code)
        raise


if __name__ == "__main__":
    run()
