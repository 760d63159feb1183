"""What each part of the GPU's measurements does."""

import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks import pairs as p
from benchmarks.gpu_day.hashes import SMALL, Eager, build, describe, read_hashes
from benchmarks.gpu_day.processes import Processes
from benchmarks.workloads import WORKLOADS, LeNet, Workload, as_input
from fedray.algorithms import ALGORITHMS
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import digest_theta

W1, W2 = WORKLOADS["w1"], WORKLOADS["w2"]
FIRST = ("fedavg", "fedsam", "mofedsam", "scaffold", "feddyn", "fedsol", "fedgela", "fedtoga")
"""Methods whose hashes come before the others'."""
CHILDREN = 3
"""Number of methods hashed at a time, each by five processes."""
LATE = "not measured: the part's time was over"


@dataclass
class Part:
    """One part while it runs, with its files in `folder`; its time is over at `ends` (`time.monotonic`)."""

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
        with (self.folder / "figures.jsonl").open("a") as file:  # what is known if the machine is taken away
            file.write(json.dumps(self.told.lines[-1]) + "\n")

    def time_rounds(
        self, made: Problem, rounds: int, backend: Backend | None = None, scale: float = 1
    ) -> dict[str, Any]:
        """Return the median seconds of rounds after two, times `scale`, the GPU's use in them, and theta's hash after
        the first of them. backend: None for this process, as it is by default."""
        with contextlib.closing(backend or InlineBackend()) as trains:
            simulation, seconds = Simulation(made, trains), list[float]()
            simulation.step()
            simulation.step()
            with watch_gpu(self.device) as used:
                while len(seconds) < rounds and not (seconds and self.is_over):
                    began = time.perf_counter()
                    simulation.step()
                    seconds.append(time.perf_counter() - began)
                    if len(seconds) == 1:
                        digest = digest_theta(simulation.state.theta)
        found = {"measured": statistics.median(seconds) * scale, "rounds": len(seconds), "utilisation": used()}
        held = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else 0  # by this process
        return found | {"theta": digest[:16], "memory": f"{held / 2**30:.1f} GiB" if held else ""}

    def time_images(self, work: Workload, made: Problem, rounds: int, backend: Backend | None = None) -> dict[str, Any]:
        """Return the images per second of a workload's rounds, and what `time_rounds` does."""
        found = self.time_rounds(made, rounds, backend)
        return found | {"measured": round(work.cohort * work.samples * work.epochs / found["measured"])}


@contextlib.contextmanager
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
    """FL-SAM's round (10 clients, 50 steps of 50 images) in lanes, beside a plain loop; then other methods, models."""
    work, rounds = (SMALL, 1) if part.tiny else (replace(W2, epochs=5), 5)
    images, pfl = (SMALL, SMALL) if part.tiny else (replace(W2, epochs=1), W1)

    def make(method: str, lanes: int = 5, **training: Any) -> Problem:
        return build(part.device, work, method, {"name": "lenet"}, lanes=lanes, **training)

    def time_lenet(
        what: str, made: Callable[[], Problem], goal: str = "", backend: InlineBackend | None = None
    ) -> None:
        count = rounds if backend is None else 1
        part.add(f"seconds of a round of {what}", lambda: part.time_rounds(made(), count, backend), goal)

    part.add("seconds of a round of a plain loop, SAM", lambda: time_plain(part, work, sam=True))
    time_lenet("FedSAM, 5 lanes", partial(make, "fedsam"), "<= 0.36")
    time_lenet("FedSAM, 5 lanes, tf32", partial(make, "fedsam", precision="tf32"), "<= 0.25")
    part.add("kernel time / wall time of a round of FedSAM, %", lambda: trace_round(part, make("fedsam")), ">= 90")
    for name in ("fedtoga", "fedsmoo"):
        time_lenet(f"{name}, 5 lanes", partial(make, name), "<= 0.40")
    for precision, goal in (("tf32", ">= 20000"), ("fp32", ""), ("bf16", "")):
        resnet = partial(build, part.device, images, "fedavg", {"name": "resnet18"}, lanes=5, precision=precision)
        count = 1 if part.tiny else 3
        figure = f"images/s of resnet18, {precision}"
        part.add(figure, lambda resnet=resnet, count=count: part.time_images(images, resnet(), count), goal)
    cnn = partial(build, part.device, pfl, "fedavg", "benchmarks.workloads:CNN")
    minutes = "minutes of 1,500 rounds of pfl-research's CIFAR-10 benchmark"
    part.add(minutes, lambda: part.time_rounds(cnn(), 4 * rounds, scale=1500 / 60), "<= 2.5")
    part.add(f"{minutes}, pfl-research", lambda: time_pfl(part))
    part.add("seconds of a round of a plain loop, SGD", lambda: time_plain(part, work, sam=False))
    for name in ("fedavg", "fedsol", "fedgela"):
        time_lenet(f"{name}, 5 lanes", partial(make, name))
    for lanes in (1, 2, 10):
        time_lenet(f"FedSAM, lanes: {lanes}", partial(make, "fedsam", lanes))
    for name in ("FedSAM", "fedsol", "fedgela"):
        time_lenet(f"{name}, one by one, nothing recorded", partial(make, name.lower(), 1), backend=Eager())
    toga = partial(make, "fedtoga", precision="tf32")
    part.add("minutes of 800 rounds of FedTOGA's table 1", lambda: part.time_rounds(toga(), rounds, scale=800 / 60))
    for count in (2,) if part.tiny else (2, 4):
        several = partial(build, part.device, work, "fedsam", {"name": "lenet"}, count)
        figure = f"seconds of a round of FedSAM, {count} processes"
        part.add(figure, lambda made=several, count=count: part.time_rounds(made(), rounds, Processes(count)))


def time_plain(part: Part, work: Workload, sam: bool) -> dict[str, Any]:
    """Return the seconds that a plain PyTorch loop takes for the steps of a round: SGD, or SAM with ρ = 0.1."""
    steps = 3 if part.tiny else 200
    module = LeNet().to(part.device)
    x, y = (torch.from_numpy(array[: work.batch]).to(part.device) for array in work.arrays())
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
    parameters = list(module.parameters())

    def take_gradient() -> list[torch.Tensor]:
        optimiser.zero_grad()
        cross_entropy(module(as_input(x)), y).backward()
        return [p.grad for p in parameters if p.grad is not None]

    def step() -> None:
        gradients = take_gradient()
        if sam:
            with torch.no_grad():
                scale = 0.1 / (torch.cat([g.flatten() for g in gradients]).norm() + 1e-7)
                moves = [g * scale for g in gradients]
                torch._foreach_add_(parameters, moves)
            take_gradient()
            with torch.no_grad():
                torch._foreach_sub_(parameters, moves)
        optimiser.step()

    for _ in range(10):
        step()
    began = wait_for(part.device)
    for _ in range(steps):
        step()
    each = (wait_for(part.device) - began) / steps
    return {"measured": each * work.cohort * work.epochs * -(-work.samples // work.batch), "steps": steps}


def wait_for(device: str) -> float:
    """Return the time once the device has done all that was launched."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def time_pfl(part: Part) -> dict[str, Any]:
    """Return the minutes of 1,500 rounds of pfl-research in another process; without it, why there are none."""
    if part.tiny or importlib.util.find_spec("pfl") is None:
        return {"measured": "not measured: pfl (pfl-research 0.6) is not installed, or the sizes are tiny"}
    with p.System("pfl", [sys.executable, "-m", "benchmarks.systems.pfl", "w1", "1"]) as system:
        system.started()
        return {"measured": statistics.median(system.round() for _ in range(3)) * 1500 / 60}


def trace_round(part: Part, made: Problem) -> dict[str, Any]:
    """Profile the third round; return the share of its time in which a kernel runs, and the longest kernels."""
    simulation = Simulation(made, InlineBackend())
    simulation.step()
    simulation.step()
    with torch.profiler.profile() as profile:
        began = wait_for(part.device)
        simulation.step()
        wall = wait_for(part.device) - began
    file = part.folder / "gpu-trace.json.gz"
    profile.export_chrome_trace(str(file))
    kind = torch.autograd.DeviceType.CUDA if part.device == "cuda" else torch.autograd.DeviceType.CPU
    spans = sorted((e.time_range.start, e.time_range.end) for e in profile.events() if e.device_type == kind)
    busy = end = 0.0
    for start, stop in spans:
        busy, end = busy + max(stop - max(start, end), 0.0), max(end, stop)
    key = "self_device_time_total" if part.device == "cuda" else "self_cpu_time_total"
    longest = sorted(profile.key_averages(), key=lambda each: -getattr(each, key))[:10]
    told = [f"{each.key}: {getattr(each, key) / 1000:.1f} ms" for each in longest]
    return {"measured": round(busy / wall / 1e4, 1), "file": file.name, "longest": told}


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
    found = read_hashes(lines)
    for what, key in (
        ("run to run", "again"),
        ("four processes / one process", "four"),
        ("one by one, nothing recorded / lanes", "eager"),
    ):
        different = [describe(line) for line in found if line.get(key) not in (line["once"], None)]
        part.told.add(f"methods with other parameters: {what}", ", ".join(different) or "none", "none")
    hashed = Counter(f"{line['model']} {line['precision']}" for line in found if not line["error"])
    each = ", ".join(f"{kind} {count}" for kind, count in hashed.items())
    refused = {describe(line): line["error"] for line in found if line["error"]}
    part.told.add(f"methods hashed, of {len(names)}", each or "none", refused=refused)


def measure_sharing(part: Part) -> None:
    """Images per second of FedAvg with ResNet-18 in 1 to 8 processes on one GPU, without and with MPS."""
    base, counts, rounds = (SMALL, (1, 2), 1) if part.tiny else (replace(W2, samples=250, epochs=1), (1, 2, 4, 8), 3)
    for label, uses_mps in (("without MPS", False), ("with MPS", True)):
        without = contextlib.nullcontext("no MPS on a CPU" if uses_mps else {})
        with start_mps() if uses_mps and part.device == "cuda" else without as env:
            for count in counts:
                work = replace(base, cohort=max(base.cohort, 2 * count))
                figure = f"images/s of {'one process' if count == 1 else f'{count} processes'}, {label}"
                if isinstance(env, str):
                    part.told.add(figure, f"not measured: {env}")
                else:
                    made = partial(build, part.device, work, "fedavg", {"name": "resnet18"}, count)
                    part.add(
                        figure,
                        lambda work=work, made=made, count=count, env=env: part.time_images(
                            work, made(), rounds, Processes(count, env)
                        ),
                    )


@contextlib.contextmanager
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
