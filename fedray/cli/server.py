"""The processes of `fedray ui`: MLflow's server, and one that says its address. Run as a file, to start at once."""

import os
import signal
import subprocess
import sys
import time
import webbrowser
from urllib.request import urlopen


def announce(host: str, page: str, more: str) -> None:
    """Say and open the address once the server answers; a process of its own, because the server replaces its parent.

    Ctrl-C is for the server, whose end it notices.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = os.getppid()
    while os.getppid() == server:
        try:
            urlopen(f"http://{host}/health", timeout=5).close()
        except OSError:
            time.sleep(0.2)
            continue
        print(f"MLflow shows the runs at {page} (Ctrl-C ends it){more}", flush=True)
        if sys.stdout.isatty():
            webbrowser.open(page)
        return


def serve(*words: str) -> int:
    """Serve MLflow's UI with a command line's words; return the exit code.

    Its processes are a group of their own, because Ctrl-C while they import is a traceback or `Aborted!`: they get
    SIGTERM instead, and SIGKILL the second time.
    """
    asked, server = list[int](), None

    def end(number: int, _: object) -> None:
        asked.append(number)
        if server is not None and server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL if asked[1:] else signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if not asked:
        command = [sys.executable, "-P", "-c", "from mlflow.cli import cli; cli()", *words]
        server = subprocess.Popen(command, process_group=0)  # noqa: S603
        if asked:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    return 128 + asked[0] if asked or server is None else server.returncode


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(*sys.argv[2:]))
    announce(*sys.argv[2:])
