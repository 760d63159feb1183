"""What each part of the GPU's measurements does."""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import pairs as p
from benchmarks.gpu_day.hashes import SMALL, build, describe, read_hashes
from benchmarks.gpu_day.processes import Processes
from benchmarks.workloads import CNN, WORKLOADS, Workload
from fedray.algorithms import ALGORITHMS
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation

W1, W2 = WORKLOADS["w1"], WORKLOADS["w2"]
FIRST = ("fedavg", "fedsam", "mofedsam", "scaffold", "feddyn", "fedsol", "fedgela", "fedtoga")
"""Methods whose hashes come before the others'."""
CHILDREN = 3
"""Number of methods hashed at a time, each by five processes."""
REFERENCE = 2.72
"""Seconds of FL-SAM's round with LeNet on a 4090."""
LATE = "not measured: the part's time was over"


@dataclass
class Part:
    """One part while it runs.

    Attributes:
        device: cuda or cpu.
        tiny: the smallest sizes.
        ends: when its time is over (`time.monotonic`).
        told: takes the figures.
        folder: of its files.
    """

    device: str
    tiny: bool
    ends: float
    told: p.Report
    folder: Path

    @property
    def is_over(self) -> bool:
        """True once its time is over."""
        return time.monotonic() >= self.ends

    def add(self, figure: str, measure: Callable[[], dict[str, Any]], goal: str = "") -> None:
        """Report what a function measures. Its exception costs this figure alone."""
        if self.is_over:
            self.told.add(figure, LATE, goal)
            return
        try:
            found = measure()
        except Exception as error:
            found = {"measured": f"not measured: {type(error).__name__}: {error}"}
        self.told.add(figure, found.pop("measured"), goal, **found)

    def time_rounds(
        self, made: Problem, rounds: int, count: int = 1, env: dict[str, str] | None = None, scale: float = 1
    ) -> dict[str, Any]:
        """Return the median seconds of rounds after a first one, and the GPU's use from that one to the last.

        Args:
            made: the run.
            rounds: number of rounds after the first.
            count: number of processes.
            env: environment variables that they get besides this process's.
            scale: factor of the seconds.
        """
        backend = Processes(count, env)
        try:
            simulation = Simulation(made, backend)
            simulation.step()
            seconds: list[float] = []
            with watch_gpu(self.device) as used:
                while len(seconds) < rounds and not (seconds and self.is_over):
                    began = time.perf_counter()
                    simulation.step()
                    seconds.append(time.perf_counter() - began)
        finally:
            backend.close()
        return {"measured": statistics.median(seconds) * scale, "rounds": len(seconds), "utilisation": used()}


@contextmanager
def watch_gpu(device: str) -> Iterator[Callable[[], float | str]]:
    """Yield a function that returns the GPU's mean utilisation in percent during the block, sampled by nvidia-smi."""
    samples: list[float] = []
    done = threading.Event()
    command = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]

    def look() -> None:
        while not done.wait(0.5):
            try:
                told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
            except (OSError, subprocess.SubprocessError):
                return
            if not done.is_set() and told.strip().isdigit():
                samples.append(float(told))

    thread = threading.Thread(target=look, daemon=True)
    if device == "cuda":
        thread.start()

    def mean() -> float | str:
        return round(statistics.mean(samples), 1) if samples else "not measured"

    try:
        yield mean
    finally:
        done.set()
        if device == "cuda":
            thread.join(15)


def measure_rounds(part: Part) -> None:
    """FL-SAM's round (10 clients, 50 steps of 50 images) in 1, 2 and 4 processes, a trace of 20 of its steps, an MLP's
    round one by one and in stacks, and the lengths of pfl-research's benchmark and of a cell of FedTOGA's table 1."""
    work, rounds = (SMALL, 1) if part.tiny else (replace(W2, epochs=5), 10)
    lenet, mlp = {"name": "lenet"}, {"name": "mlp", "hidden": [200]}

    def time_run(figure: str, made: Problem, count: int = 1, scale: float = 1, goal: str = "") -> None:
        part.add(figure, lambda: part.time_rounds(made, rounds, count, scale=scale), goal)

    for count in (1, 2) if part.tiny else (1, 2, 4):
        figure = f"seconds of a round of FedSAM, lenet, {describe_count(count)}"
        goal = "" if part.tiny else f"< {REFERENCE}"
        time_run(figure, build(part.device, work, "fedsam", lenet, count), count, goal=goal)
    part.told.add("seconds of a round of FedSAM, lenet, in stacks", "no stacks: convolutions train alone")
    part.add("trace of 20 steps of FedSAM, lenet", lambda: trace_steps(part))
    time_run("seconds of a round of FedSAM, mlp, one by one", build(part.device, work, "fedsam", mlp, stack=1))
    time_run("seconds of a round of FedSAM, mlp, in stacks", build(part.device, work, "fedsam", mlp))
    pfl = build(part.device, SMALL if part.tiny else W1, "fedavg", "benchmarks.workloads:CNN")
    time_run("minutes of 1,500 rounds of pfl-research's CIFAR-10 benchmark", pfl, scale=1500 / 60)
    time_run("minutes of 800 rounds of FedTOGA's table 1", build(part.device, work, "fedtoga", lenet), scale=800 / 60)


def describe_count(count: int) -> str:
    """Return a number of processes as text."""
    return "one process" if count == 1 else f"{count} processes"


def trace_steps(part: Part) -> dict[str, Any]:
    """Profile 20 steps of one client; the trace is written for chrome://tracing, the longest kernels are told."""
    work = Workload("w2", 2, 60 if part.tiny else 1000, (3, 32, 32), 1, 1, 3 if part.tiny else 50, CNN)
    simulation = Simulation(build(part.device, work, "fedsam", {"name": "lenet"}), InlineBackend())
    simulation.step()
    with torch.profiler.profile() as profile:
        simulation.step()
    file = part.folder / "gpu-trace.json.gz"
    profile.export_chrome_trace(str(file))
    key = "self_device_time_total" if part.device == "cuda" else "self_cpu_time_total"
    longest = sorted(profile.key_averages(), key=lambda one: -getattr(one, key))[:10]
    return {"measured": file.name, "longest": [f"{one.key}: {getattr(one, key) / 1000:.1f} ms" for one in longest]}


def measure_hashes(part: Part) -> None:
    """All methods: equal parameters run to run, and in one process and four. Called again, it goes on."""
    lines = part.folder / "gpu-hashes.jsonl"
    names = ["fedavg", "fedtoga"] if part.tiny else [*FIRST, *sorted(ALGORITHMS.keys() - set(FIRST))]
    children = []
    for share in filter(None, (names[k::CHILDREN] for k in range(CHILDREN))):
        command = [sys.executable, "-m", "benchmarks.gpu_day.hashes", ",".join(share), part.device, str(lines)]
        children.append(subprocess.Popen([*command, *(["--tiny"] if part.tiny else [])]))
    for child in children:
        try:
            child.wait(max(part.ends - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.returncode:
            print(f"{child.args}: ended with exit code {child.returncode}", flush=True)
    tell_hashes(part.told, read_hashes(lines), len(names))


def tell_hashes(told: p.Report, found: list[dict[str, Any]], methods: int) -> None:
    """Report what the lines of `hashes` say. methods: their number."""
    for what, key in (("run to run", "again"), ("four processes / one process", "four")):
        different = [describe(line) for line in found if line[key] not in (line["once"], None)]
        told.add(f"methods with other parameters: {what}", ", ".join(different) or "none", "none")
    hashed = Counter(f"{line['model']} {line['precision']}" for line in found if not line["error"])
    each = ", ".join(f"{kind} {count}" for kind, count in hashed.items())
    refused = {describe(line): line["error"] for line in found if line["error"]}
    told.add(f"methods hashed, of {methods}", each or "none", refused=refused)


def measure_sharing(part: Part) -> None:
    """Images per second of FedAvg with ResNet-18 in 1 to 8 processes on one GPU, without and with MPS."""
    base, counts, rounds = (SMALL, (1, 2), 1) if part.tiny else (replace(W2, samples=250, epochs=1), (1, 2, 4, 8), 3)
    for label, uses_mps in (("without MPS", False), ("with MPS", True)):
        with start_mps() if uses_mps and part.device == "cuda" else _no_mps(uses_mps) as env:
            for count in counts:
                work = replace(base, cohort=max(base.cohort, 2 * count))
                figure = f"images/s of {describe_count(count)}, {label}"
                if isinstance(env, str):
                    part.told.add(figure, f"not measured: {env}")
                else:
                    part.add(figure, partial(measure_speed, part, work, count, rounds, env))


def measure_speed(part: Part, work: Workload, count: int, rounds: int, env: dict[str, str]) -> dict[str, Any]:
    """Return images per second of a workload with ResNet-18."""
    made = build(part.device, work, "fedavg", {"name": "resnet18"}, count)
    found = part.time_rounds(made, rounds, count, env)
    return found | {"measured": round(work.cohort * work.samples * work.epochs / found["measured"])}


@contextmanager
def start_mps() -> Iterator[dict[str, str] | str]:
    """Run CUDA's multi-process service during a block; yield what its clients' environment needs, or why it is not."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        control = ["env", *(f"{name}={value}" for name, value in env.items()), "nvidia-cuda-mps-control"]
        try:
            subprocess.run([*control, "-d"], check=True, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            yield f"nvidia-cuda-mps-control does not start ({type(error).__name__})"
            return
        try:
            yield env
        finally:
            subprocess.run(control, input="quit\n", check=False, capture_output=True, text=True, timeout=60)


@contextmanager
def _no_mps(wanted: bool) -> Iterator[dict[str, str] | str]:
    yield "no MPS on a CPU" if wanted else {}


MEASURES: dict[str, Callable[[Part], None]] = {
    "rounds": measure_rounds,
    "hashes": measure_hashes,
    "sharing": measure_sharing,
}


def run_part(name: str, device: str, tiny: bool, seconds: float, folder: Path) -> None:
    """Run one part and write its file. seconds: its limit; what would begin later is not measured."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with p.report(f"gpu {name}", folder / f"gpu-{name}.json") as told:
        MEASURES[name](Part(device, tiny, time.monotonic() + seconds, told, folder))
        told.facts["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"  # last: it starts CUDA here
