"""Rounds of several systems in turn, so that drift of the machine cancels; ratios, their intervals, and memory."""

import contextlib
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.systems.protocol import MALLOC

ROOT = Path(__file__).parent.parent
DRAWS = 10_000
"""Number of bootstrap resamples."""
NO_BF16 = "not measured: this CPU has no instructions for bfloat16 (avx512_bf16 or AMX)"
LOOK = 2.0
"""Seconds between checks that a silent system still exists."""


class Ended(RuntimeError):
    """Raised if a system, or one of its processes, ended too early."""


class System(contextlib.AbstractContextManager["System"]):
    """A process that makes rounds (`systems.protocol`), started here and ended at the end of the block."""

    def __init__(
        self, name: str, command: Sequence[str], env: dict[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.name, self.log = name, log
        with log.open("w") if log else contextlib.nullcontext() as errors:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                bufsize=1,
                env=os.environ | MALLOC | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | (env or {}),
            )
        self._in: Any = self.process.stdin
        self.workers: list[int] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def started(self) -> Self:
        """Wait until it is ready, and return it."""
        self.told = json.loads(self._answer().removeprefix("ready "))
        self.workers = self.told["workers"]
        return self

    def round(self) -> float:
        """Make one round and return its seconds."""
        began = time.perf_counter()
        with contextlib.suppress(OSError):  # if its process has ended, `_answer` raises
            self._in.write("round\n")
            self._in.flush()
        self._answer()
        return time.perf_counter() - began

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)

    def _answer(self) -> str:
        """Return the next line. Raises Ended if its process, or one that trains for it, is gone."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=LOOK).strip()
            gone = [pid for pid in self.workers if not _lives(pid)]
            if self.process.poll() is not None or gone:
                who = f"its process {gone[0]}" if gone else f"it, with exit code {self.process.returncode},"
                said = self.log.read_text()[-1500:] if self.log and self.log.exists() else ""
                raise Ended(f"{self.name}: {who} has ended {said}".strip())

    def memory(self) -> dict[str, float]:
        """Return PSS in MB: of the processes that train, and of all others below and including this one."""
        everyone = {self.process.pid, *descendants(self.process.pid)}
        parts = {"workers": self.workers, "others": everyone - set(self.workers)}
        return {part: sum(rollup(pid, "Pss") for pid in pids) for part, pids in parts.items()}


def ours(work: str, actors: int | str, algorithm: str = "fedavg", precision: str = "fp32") -> System:
    """Return fedray as a system."""
    label = (
        "fedray"
        + (f" {algorithm}" if algorithm != "fedavg" else "")
        + (f" {precision}" if precision != "fp32" else "")
        + {0: " inline", 1: ", one process", "auto": " auto"}.get(actors, "")
    )
    module = "benchmarks.systems.ours"
    return System(label, [sys.executable, "-m", module, work, str(actors), algorithm, precision])


def floor(work: str, processes: int, name: str = "floor") -> System:
    """Return plain PyTorch as a system."""
    return System(name, [sys.executable, "-m", "benchmarks.systems.floor", work, str(processes)])


def started(systems: Sequence[System]) -> tuple[list[System], dict[str, str]]:
    """Wait until the systems are ready; return the ready ones, and for the others why not."""
    ready, ended = [], {}
    for system in systems:
        try:
            ready.append(system.started())
        except Ended as error:
            ended[system.name] = str(error)
    return ready, ended


def interleaved(
    systems: Sequence[System], pairs: int, progress: bool = True
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Make rounds in turn, every other turn in reverse order; return the seconds of each round, for systems that made
    all of them, and why the others did not."""
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    ended: dict[str, str] = {}
    for k in range(pairs):
        for system in systems if k % 2 == 0 else systems[::-1]:
            if system.name not in ended:
                try:
                    seconds[system.name].append(system.round())
                except Ended as error:
                    ended[system.name] = str(error)
                    print(f"{error}; going on without {system.name}", file=sys.stderr, flush=True)
        if progress:
            print(f"\r{k + 1}/{pairs}", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    return {name: rounds for name, rounds in seconds.items() if name not in ended}, ended


@dataclass(frozen=True)
class Ratio:
    """Median of the pairs' ratios, and the 95 % bootstrap interval of that median."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}], {self.pairs} pairs"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return ours / theirs, pair by pair."""
    each = np.asarray(ours) / np.asarray(theirs)
    drawn = np.random.default_rng(0).choice(each, (DRAWS, len(each)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Ratio(float(np.median(each)), float(low), float(high), len(each))


def paired(first: Callable[[], object], second: Callable[[], object], pairs: int, warmups: int = 2) -> Ratio:
    """Return the ratio of the seconds of two calls in this process, made in turn."""
    calls = first, second
    for _ in range(warmups):
        first()
        second()
    seconds: tuple[list[float], list[float]] = ([], [])
    for k in range(pairs):
        for which in (0, 1) if k % 2 == 0 else (1, 0):
            began = time.perf_counter()
            calls[which]()
            seconds[which].append(time.perf_counter() - began)
    return ratio(*seconds)


@dataclass
class Report:
    """Results of a benchmark (`lines`), printed line by line and, if asked for, kept as JSON; facts: the machine's."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, figure: str, measured: object, goal: str = "", **more: Any) -> None:
        """Add one figure: a Ratio, a number or a text; the goal is the text to print."""
        print(f"{figure}: {measured}{f' (goal: {goal})' if goal else ''}", flush=True)
        for key, value in more.items():
            print(f"    {key}: {value}", flush=True)
        kept = vars(measured) if isinstance(measured, Ratio) else measured
        self.lines.append({"figure": figure, "measured": kept, "goal": goal, **more})


@contextlib.contextmanager
def report(name: str, out: Path | None) -> Iterator[Report]:
    """Yield a benchmark's report: first the machine, last the duration; written to `out` if given."""
    made, began = Report(name, machine()), time.monotonic()
    print(f"{name} | " + ", ".join(f"{key} {value}" for key, value in made.facts.items()), flush=True)
    yield made
    took = round(time.monotonic() - began)
    print(f"took {took} s", flush=True)
    if out is not None:
        parts = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("").parts
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps(
                {
                    "benchmark": name,
                    "command": " ".join(["python -m", ".".join(parts).removesuffix(".__main__"), *sys.argv[1:]]),
                    "machine": made.facts,
                    "seconds": took,
                    "figures": made.lines,
                },
                indent=1,
            )
            + "\n"
        )


def machine() -> dict[str, str]:
    """Return the facts about machine and commit that accompany every number."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False).stdout

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        told = file.read()
    model = next(line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name"))
    features = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if f" {flag}" in told]
    installed = {one.name: one.version for one in metadata.distributions()}
    changes = "+changes" if git("status", "--porcelain", "--", "fedray", "benchmarks").strip() else ""
    return {
        "commit": git("rev-parse", "--short", "HEAD").strip() + changes,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": f"{model} x {os.cpu_count()} ({' '.join(features)})",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: installed[name] for name in ("torch", "ray", "numpy") if name in installed},
    }


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                below.setdefault(parent, []).append(int(entry))
    found, rest = [], [pid]
    while rest:
        found += (children := below.get(rest.pop(), []))
        rest += children
    return found


def find_titled(pid: int, title: str) -> list[int]:
    """Return the ids of the processes below `pid` whose command line contains a text, such as an actor's class."""
    found = []
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            if title in Path(f"/proc/{one}/cmdline").read_text(encoding="utf-8"):
                found.append(one)
    return found


def _lives(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def rollup(pid: int, field: str) -> float:
    """Return a field of a process's smaps_rollup, in MB of 10^6 bytes; 0 without the process.

    Pss: shared pages are divided among the processes that share them. Anonymous: neither shared nor file-backed.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:")) * 1024 / 1e6
