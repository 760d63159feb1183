"""One GPU: samples a second of fedray's local training and of a bare loop, eager and as a CUDA graph; sharing it.

    python -m tests.benchmarks.gpu                       # LeNet and ResNet-18, about 5 minutes
    python -m tests.benchmarks.gpu --device cpu --steps 2 --processes 1     # tries the code out where there is no GPU

Per model and precision: fedray inline against the bare eager loop, and the bare loop as a CUDA graph against it eager
(what a graph inside fedray could win). Then 1, 2 and 4 plain processes of the eager loop on one
GPU, samples/s together.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from torch.nn.functional import cross_entropy

from fedray.backend.inline import InlineBackend
from fedray.config import RunConfig
from fedray.models.zoo import model_spec
from fedray.simulation import Simulation
from tests.benchmarks import pairs as p
from tests.benchmarks.systems.ours import problem
from tests.benchmarks.workloads import WORKLOADS

BATCH = 50
W2 = WORKLOADS["w2"]


def eager(module: nn.Module, device: str, precision: str) -> Callable[[], None]:
    """A step on a fixed batch: forward, backward, SGD."""
    x = torch.randn(BATCH, *W2.shape, device=device)
    if precision == "bf16":
        x = x.to(memory_format=torch.channels_last)
    y = torch.zeros(BATCH, dtype=torch.long, device=device)
    parameters = list(module.parameters())

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = cross_entropy(module(x).float(), y)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data.add_(gradient, alpha=-1e-6)

    return step


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """The step recorded once and replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def repeated(step: Callable[[], object], steps: int, device: str) -> Callable[[], None]:
    """Steps and a wait for the last."""
    def run() -> None:
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def ours(model: str, device: str, precision: str) -> Simulation:
    """fedray on one client of w2's: 20 steps a round."""
    made = problem(replace(W2, cohort=1), precision=precision if precision != "tf32" else "fp32", actors=0)
    whole = made.config.resolved()
    whole |= {"model": {"name": model}, "runtime": {"backend": "inline", "device": device}}
    whole["training"] |= {"precision": precision}
    return Simulation(replace(made, config=RunConfig.parse(whole)), InlineBackend())


def alone(device: str, seconds: float) -> None:
    """A process that counts its steps for some seconds, from a line on its input on."""
    step = eager(model_spec("lenet").build(W2.shape, 10).to(device), device, "fp32")
    repeated(step, 20, device)()
    print("ready", flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        repeated(step, 20, device)()
        count += 20
    print(count * BATCH / (time.perf_counter() - began), flush=True)


def together(processes: int, device: str) -> float:
    """Samples/s of several processes on the device, together."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--device", device, "--alone"]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=p.ROOT)
               for _ in range(processes)]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate(timeout=100)[0]) for process in running)


def main(
    device: Annotated[str, typer.Option(help="cuda | cpu")] = "cuda",
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    steps: Annotated[int, typer.Option(min=1, help="of a bare loop at a time")] = 20,
    processes: Annotated[int, typer.Option(min=1, help="the most that share the device")] = 4,
    alone_: Annotated[bool, typer.Option("--alone", hidden=True)] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file")] = None,
) -> None:
    """Print ratios."""
    torch.set_num_threads(1)
    if device == "cuda" and not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device here")
        raise typer.Exit(2)
    if alone_:
        alone(device, 5.0)
        return
    with p.report(f"one {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}", out) as told:
        for model in ("lenet", "resnet18"):
            for precision in ("fp32", "tf32", "bf16") if device == "cuda" else ("fp32", "bf16"):
                simulation = ours(model, device, precision)  # sets TF32 as the precision says
                module = model_spec(model).build(W2.shape, 10).to(device)
                bare = eager(module, device, precision)
                told.add(f"samples/s of fedray / bare eager loop, {model}, {precision}",
                         p.paired(repeated(bare, 20, device), repeated(simulation.step, 1, device), pairs))
                if device == "cuda":
                    graph = graphed(bare)
                    told.add(f"samples/s of the bare loop as a CUDA graph / eager, {model}, {precision}",
                             p.paired(repeated(bare, steps, device), repeated(graph, steps, device), pairs),
                             ">= 5" if model == "lenet" else ">= 1.5")
        one = together(1, device)
        for n in range(2, processes + 1, 2):
            told.add(f"samples/s of {n} processes / 1, LeNet, eager", round(together(n, device) / one, 2))


if __name__ == "__main__":
    typer.run(main)
