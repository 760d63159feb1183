"""A system whose process dies does not block a benchmark; the page shows the results as they are."""

import os
import signal
import sys
import time

import pytest

from benchmarks import pairs as p
from benchmarks.table import PAGE, fill_page, is_met, load_runs

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


def test_the_page_is_made_from_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == fill_page(text, load_runs()), "run: python -m benchmarks.table"


@pytest.mark.parametrize(
    ("goal", "measured", "met"),
    [
        ("<= 1.05", {"median": 1.05, "low": 1.0, "high": 1.2}, True),
        ("< 1", 1, False),
        (">= 2.5", 2.2, False),
        ("<= 1/20", 0.055, False),
        ("<= 1.10, the same layout", 1.09, True),
        ("<= the step's + 0.1 = 2.59", 2.58, True),
        ("step <= 2.1: see step.py", 9, None),
        ("", 9, None),
    ],
)
def test_a_goal_is_met_or_missed_or_none(goal: str, measured: object, met: bool | None) -> None:
    assert is_met({"goal": goal, "measured": measured}) is met
