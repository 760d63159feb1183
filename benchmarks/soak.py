"""Many short cells while processes of the sweep are killed at random: no result is lost and no resource grows.

    python -m benchmarks.soak [CELLS [SECONDS [KIND]]]

CELLS (300) cells of about SECONDS (2) s, ten with one actor, ten with two, and so on. Every 30 s on average
(exponentially distributed) one process of the sweep is killed (SIGKILL) or, one time in four, suspended for a while
(SIGSTOP, 1 to 20 s, SIGCONT): the driver, one of Ray's daemons, a trial or a client actor (or, with KIND, only
processes of that name: `trial`, `ClientActor`, `driver`, ...). Whenever the driver is gone `fedray sweep` is called
again, until all cells are finished. Then the hashes must equal those of undisturbed runs, every round must be logged
once, and from the 50th to the last cell memory, file descriptors, processes and the object store must not have grown.
For that, moments are compared at which a trial with two actors is at work and all of Ray is up, without the files of
Ray's log monitor (at most 200 logs of past processes). Prints a line for each kill and a line of JSON at the end; the
exit code is 1 if any of this fails.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.sweep.running import REPOSITORY, SWEEP, logged_once, runs, state_hashes, undisturbed, write

MEAN = 30.0
"""Seconds between kills, on average."""
STOPPED, STILL = 0.25, (1.0, 20.0)
"""Part of the victims that are suspended instead of killed, and for how many seconds."""
NAMES = {
    "gcs_server": "gcs_server",
    "raylet/raylet": "raylet",
    "ray::_Inner": "trial",
    "ray::CellTrainable": "trial",
    "ClientActor": "ClientActor",
    "fedray.cli": "driver",
}
"""Part of a command line -> the process's name here. Tune wraps a Trainable with data in a class `_Inner`; between
two cells the trial has its own name."""
WHOLE = {name: 2 if name == "ClientActor" else 1 for name in NAMES.values()}
"""Number of processes of each kind at comparable moments; Ray does not restart some of its own."""
GROWTH = {"memory": 1.2, "descriptors": 1.1, "processes": 1.1, "store": 1.5}
"""Largest ratio of the medians of the last and the first quarter, from the 50th cell on.

All of the shared memory is 0.3 MB here, so that single pages count: without any kill it rises by about 0.3 kB a cell,
in pages that Ray's allocator keeps; no object stays.
One broadcast of 2.4 kB left behind by each cell doubles it within 120 cells.
"""


def soak(folder: Path, cells: int, seconds: float, only: str = "", seed: int = 0) -> dict[str, Any]:
    """Run it and return the observations. Raises AssertionError if a cell is lost, doubled or different."""
    nap = seconds / 30  # 10 rounds of 3 clients
    sweep = SWEEP | {
        "name": "soak",
        "grid": {},
        "cases": [
            {"algorithm": {"name": "tests.plugins:Slow", "nap": nap}, "seed": i, "runtime.actors": 1 + i // 10 % 2}
            for i in range(cells)
        ],
        "base": SWEEP["base"] | {"training": SWEEP["base"]["training"] | {"rounds": 10}},
    }
    write(folder, sweep)
    chance, began = random.Random(seed), time.monotonic()
    due = began + chance.expovariate(1 / MEAN)
    killed: dict[str, int] = {}
    resumed: list[tuple[float, int]] = []
    """Times at which suspended processes are continued."""
    samples: list[dict[str, float]] = []
    calls, driver = 0, None
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
    mark = str(os.getpid())
    environment |= {"PYTHONPATH": str(REPOSITORY), "FEDRAY_SOAK": mark}
    with (folder / "output").open("ab") as output:
        while True:
            if driver is None or driver.poll() is not None:
                if driver is not None and driver.returncode == 0:
                    break
                if driver is not None:
                    end(mark)
                calls += 1
                driver = subprocess.Popen(
                    [sys.executable, "-m", "fedray.cli", "sweep", "sweep.yaml"],
                    cwd=folder,
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            if time.monotonic() >= due:
                due = time.monotonic() + chance.expovariate(1 / MEAN)
                if victims := {pid: command for pid, command in processes(mark).items() if only in kind(command)}:
                    pid = chance.choice(sorted(victims))
                    still = chance.uniform(*STILL) if chance.random() < STOPPED else 0.0
                    name = f"{'SIGSTOP' if still else 'SIGKILL'} {kind(victims[pid])}"
                    killed[name] = killed.get(name, 0) + 1
                    print(f"{time.monotonic() - began:7.0f} s: {name}", flush=True)
                    if still:
                        send(pid, signal.SIGSTOP)
                        resumed.append((time.monotonic() + still, pid))
                    else:
                        send(pid, signal.SIGKILL)
            for at, pid in [*resumed]:
                if time.monotonic() >= at:
                    send(pid, signal.SIGCONT)
                    resumed.remove((at, pid))
            there = processes(mark)
            kinds = Counter(map(kind, there.values()))
            if all(kinds[name] == count for name, count in WHOLE.items()):
                samples.append(sample(there, folder))
            time.sleep(1.0)
    assert state_hashes(folder) == undisturbed(sweep), "the cells' states are not those of undisturbed runs"
    assert len(runs(folder)) == cells
    logged_once(folder, 10)
    left = [path.name for path in (folder / ".fedray/tune").iterdir() if path.is_dir()]
    assert not left, f"killed drivers have left {left}"
    report = {
        "cells": cells,
        "seconds": round(time.monotonic() - began),
        "calls": calls,
        "killed": killed,
        "compared": len(samples),
        "growth": growth([one for one in samples if min(50, cells // 4) <= one["cells"] < cells]),
    }
    grown = {name: report["growth"][name] for name, limit in GROWTH.items() if report["growth"][name] > limit}
    assert not grown, f"{grown} grew; {report}"
    return report


def processes(mark: str) -> dict[int, str]:
    """Return process id -> command line of every process of the sweep, recognised by the mark in its environment."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"FEDRAY_SOAK={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if command}


def kind(command: str) -> str:
    """Return a process's name for the report."""
    return next((name for mark, name in NAMES.items() if mark in command), command.strip()[:40])


def sample(there: dict[int, str], folder: Path) -> dict[str, float]:
    """Return the resources that these processes hold; memory and store (shared memory) in bytes, shared parts once.

    Ray's two agents overwrite their environment with their titles, so they are found only sometimes.
    """
    total = {"memory": 0.0, "descriptors": 0.0, "processes": 0.0, "store": 0.0}
    for pid, command in there.items():
        if "Agent" in command:
            continue
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes = {line.split()[0]: float(line.split()[1]) * 1024 for line in lines[1:]}
            total["memory"] += sizes["Pss:"] - sizes.get("Pss_Shmem:", 0.0)
            total["store"] += sizes.get("Pss_Shmem:", 0.0)
            total["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
            total["processes"] += 1
        except (OSError, KeyError):
            continue
    return total | {"cells": float(len(list((folder / ".fedray/cells").glob("*/checkpoint-10.json"))))}


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return the ratio of the medians of the last and the first quarter of the samples."""
    quarter = max(len(samples) // 4, 1)

    def median(part: list[dict[str, float]], name: str) -> float:
        return sorted(one[name] for one in part)[len(part) // 2]

    return {
        name: round(median(samples[-quarter:], name) / max(median(samples[:quarter], name), 1.0), 3) for name in GROWTH
    }


def send(pid: int, number: signal.Signals) -> None:
    """Send one process a signal, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(mark: str) -> None:
    """End the remaining processes of a dead driver; those that do not end by themselves within seconds are reported."""
    until = time.monotonic() + 60
    while left := processes(mark):
        if time.monotonic() > until:
            print(f"          left behind: {sorted(map(kind, left.values()))}", flush=True)
            for pid in left:
                send(pid, signal.SIGKILL)
        time.sleep(0.5)


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("300", "2", "")[len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as name:
        try:
            print(json.dumps(soak(Path(name), int(arguments[0]), float(arguments[1]), arguments[2])))
        except AssertionError as error:
            sys.exit(f"{error}\n{(Path(name) / 'output').read_text()[-5000:]}")
