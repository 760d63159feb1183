"""A system whose process dies does not block a benchmark."""

import os
import signal
import sys
import time

from benchmarks import pairs as p

PEER = """
import os, subprocess, sys
from benchmarks.systems.protocol import lines, serve
out = lines()
child = subprocess.Popen(["sleep", "1000"])
rounds = 0
def round():
    global rounds
    rounds += 1
    if sys.argv[1] == "dies" and rounds == 4:
        os._exit(7)  # the child keeps the pipe open
    if sys.argv[1] == "waits" and rounds == 4:
        child.kill()
        child.wait()
        import time
        time.sleep(1000)  # for an answer that never comes
try:
    serve(round, [child.pid], out)
finally:
    child.kill()
"""


def test_what_ended_is_named_and_the_others_go_on() -> None:
    """Two warm-ups and two measured rounds: one dies in the fourth while its child holds its output open, one waits for
    a child that has died. Without a limit, the benchmark would wait for both for ever."""
    began = time.monotonic()
    systems = [p.System(kind, [sys.executable, "-c", PEER, kind]) for kind in ("dies", "waits", "lives")]
    children: list[int] = []
    try:
        ready, ended = p.started(systems)
        assert (len(ready), ended) == (3, {})
        children = [pid for system in systems for pid in system.workers]
        seconds, ended = p.interleaved(ready, 3, progress=False)
        assert {name: len(rounds) for name, rounds in seconds.items()} == {"lives": 3}
        assert ended["dies"] == "dies: it, with exit code 7, has ended"
        assert ended["waits"] == f"waits: its process {systems[1].workers[0]} has ended"
        assert time.monotonic() - began < 60
    finally:
        for system in systems:
            system.process.kill()
            system.process.wait()
        for pid in children:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
