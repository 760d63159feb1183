"""Entry point of `fedray`, also as `python -m fedray`."""

import sys

if sys.argv[0].endswith("__main__.py") and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working folder first, where `socket.py` or `yaml.py` may be anyone's

import atexit
import contextlib
import os

try:
    from fedray.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)


def run() -> None:
    """Run `fedray`, and end the process immediately afterwards.

    Otherwise Python would first free the objects of torch, Ray and MLflow one by one, for up to a second and a half.
    """
    ended: list[int] = []

    @atexit.register  # the first one registered is the last one called
    def leave() -> None:
        if ended:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):  # the reader is gone
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
