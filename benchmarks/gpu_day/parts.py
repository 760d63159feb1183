"""What each part of the GPU's measurements does."""

import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import pairs as p
from benchmarks.gpu_day.processes import Processes
from benchmarks.systems.ours import problem
from benchmarks.workloads import CNN, WORKLOADS, Workload
from fedray.algorithms import ALGORITHMS, Algorithm
from fedray.common.errors import Diverged, UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import digest_theta

W1, W2 = WORKLOADS["w1"], WORKLOADS["w2"]
SMALL = Workload("w1", 8, 20, (3, 32, 32), 4, 1, 10, CNN)
"""The clients of the hashes, and of all parts if they are tiny."""
TOGETHER = (1, 2, 4, 8, 16)
"""Numbers of processes that share the GPU."""
REFERENCE = {"lenet": "4090: 2.72", "resnet18": "4090: 20.1"}
"""Seconds of FL-SAM's round."""


@dataclass
class Part:
    """One part while it runs.

    Attributes:
        device: cuda or cpu.
        tiny: the smallest sizes.
        ends: when its time is over (`time.monotonic`).
        told: takes the figures.
    """

    device: str
    tiny: bool
    ends: float
    told: p.Report

    @property
    def is_over(self) -> bool:
        """True once its time is over."""
        return time.monotonic() >= self.ends

    def build(self, work: Workload, algorithm: str, model: Any, processes: int = 1, **training: Any) -> Problem:
        """Return a workload as a run on the device, of which each process has its share."""
        made = problem(work, actors=1)
        whole = made.config.resolve()
        runtime: dict[str, Any] = {"backend": "inline", "device": self.device}
        if self.device == "cuda":
            runtime |= {"gpus_per_actor": 1 / processes}
        whole |= {"algorithm": {"name": algorithm}, "model": model, "runtime": runtime}
        whole["training"] |= training
        return replace(made, config=RunConfig.parse(whole))

    def time_rounds(self, made: Problem, backend: Backend, rounds: int) -> float | str:
        """Return the median seconds of a round after a first one, or why it was not measured."""
        try:
            simulation = Simulation(made, backend)
            simulation.step()
            seconds: list[float] = []
            while len(seconds) < rounds and not (seconds and self.is_over):
                began = time.perf_counter()
                simulation.step()
                seconds.append(time.perf_counter() - began)
        except UserError as error:
            return f"not measured: {error}"
        return statistics.median(seconds)

    def compare(self, what: str, work: Workload, algorithm: str, model: Any, goal: str = "", scale: float = 1) -> None:
        """Report a round's time in one process and in four.

        Args:
            what: the figure's beginning.
            work: the clients.
            algorithm: the method.
            model: the model's section.
            goal: of the figures.
            scale: factor from seconds to the figure's unit.
        """
        rounds = 1 if self.tiny else 10
        for kind, processes in (("one process", 1), ("four processes", 4)):
            figure = f"{what}, {kind}"
            if self.is_over:
                self.told.add(figure, "not measured: the part's time was over", goal)
                continue
            count = min(processes, 2) if self.tiny else processes
            backend = Processes(count)
            try:
                with watch_gpu(self.device) as used:
                    found = self.time_rounds(self.build(work, algorithm, model, count), backend, rounds)
            finally:
                backend.close()
            self.told.add(figure, found if isinstance(found, str) else found * scale, goal, utilisation=used())


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
                samples.append(float(told))
            except (OSError, ValueError, subprocess.SubprocessError):
                return

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


def measure_hashes(part: Part) -> None:
    """All methods: the same parameters in one process and in four on one GPU."""
    names = ["fedavg", "fedtoga"] if part.tiny else sorted(ALGORITHMS)
    four = Processes(2 if part.tiny else 4)
    hashes: dict[str, str] = {}
    different: list[str] = []
    left: list[str] = []
    try:
        for name in names:
            if part.is_over:
                left.append(name)
                continue
            try:
                hashes[name] = find_hash(part, name, InlineBackend(), 1)
                if find_hash(part, name, four, 4) != hashes[name]:
                    different.append(name)
            except (UserError, Diverged) as error:
                hashes[name] = f"not measured: {error}"
    finally:
        four.close()
    told = ", ".join(different) or "none"
    part.told.add("methods with other parameters: four processes / one process", told, "none")
    part.told.add("methods without a hash", ", ".join([*left, *(n for n, h in hashes.items() if " " in h)]) or "none")
    part.told.add("hashes of all methods", f"{len(hashes)} methods", hashes=hashes)


def find_hash(part: Part, name: str, backend: Backend, processes: int) -> str:
    """Return theta_sha256 of a method after two rounds of a small CNN."""
    method = ALGORITHMS[name]
    own = method.optimizer or method.local_optimizer is not Algorithm.local_optimizer
    work = replace(SMALL, cohort=SMALL.clients) if method.needs_everyone else SMALL
    training = {"momentum": 0.0 if own else 0.5, "weight_decay": 1e-3, "local_epochs": 3}
    made = part.build(work, name, {"name": "lenet"}, processes, **training)
    simulation = Simulation(made, backend)
    for _ in range(2):
        simulation.step()
    return digest_theta(simulation.state.theta)


def measure_fl_sam(part: Part) -> None:
    """FL-SAM's round: 10 clients make 50 steps of 50 images."""
    work = SMALL if part.tiny else replace(W2, epochs=5)
    for model in ("lenet",) if part.tiny else ("lenet", "resnet18"):
        goal = "" if part.tiny else f"< {REFERENCE[model].split()[1]}"
        part.compare(f"seconds of a round of FedSAM, {model}", work, "fedsam", {"name": model}, goal)


def measure_pfl(part: Part) -> None:
    """pfl-research's CIFAR-10 benchmark: 50 clients of 50 images a round, 1,500 rounds."""
    model = "benchmarks.workloads:CNN"
    part.compare("minutes of 1,500 rounds of FedAvg", SMALL if part.tiny else W1, "fedavg", model, scale=1500 / 60)


def measure_table1(part: Part) -> None:
    """A cell of FedTOGA's table 1: 10 of 100 clients with 500 images a round, 5 epochs, 800 rounds, without tests."""
    work = SMALL if part.tiny else replace(W2, epochs=5)
    part.compare("minutes of 800 rounds of FedTOGA", work, "fedtoga", {"name": "lenet"}, scale=800 / 60)


def measure_sharing(part: Part) -> None:
    """Images per second of FedAvg with LeNet in 1 to 16 processes on one GPU, without and with MPS."""
    rounds, counts = (1, (1, 2)) if part.tiny else (5, TOGETHER)
    epochs = 1 if part.tiny else 2
    for label, uses_mps in (("without MPS", False), ("with MPS", True)):
        with start_mps() if uses_mps and part.device == "cuda" else _no_mps(uses_mps) as env:
            for count in counts:
                figure = f"images/s of {count} processes, {label}"
                if isinstance(env, str) or part.is_over:
                    why = env if isinstance(env, str) else "the part's time was over"
                    part.told.add(figure, f"not measured: {why}")
                    continue
                base = SMALL if part.tiny else W2
                work = replace(base, cohort=max(base.cohort, 2 * count), epochs=epochs)
                backend = Processes(count, env)
                try:
                    with watch_gpu(part.device) as used:
                        made = part.build(work, "fedavg", {"name": "lenet"}, count)
                        found = part.time_rounds(made, backend, rounds)
                finally:
                    backend.close()
                images = work.cohort * work.samples * epochs
                speed = found if isinstance(found, str) else round(images / found)
                part.told.add(figure, speed, utilisation=used())


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


PARTS: dict[str, Callable[[Part], None]] = {
    "hashes": measure_hashes,
    "fl-sam": measure_fl_sam,
    "pfl": measure_pfl,
    "table1": measure_table1,
    "sharing": measure_sharing,
}


def run_part(name: str, device: str, tiny: bool, seconds: float, file: Path) -> None:
    """Run one part and write its file. seconds: its limit; what would begin later is not measured."""
    torch.set_num_threads(1)
    with p.report(f"gpu {name}", file) as told:
        PARTS[name](Part(device, tiny, time.monotonic() + seconds, told))
        told.facts["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"  # last: it starts CUDA here
