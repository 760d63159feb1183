"""One GPU: samples/s of fedray's local training, eager and with CUDA graphs; stacking clients; sharing the GPU.

    python -m benchmarks.gpu                       # LeNet and ResNet-18, about 10 minutes
    python -m benchmarks.gpu --device cpu --steps 2 --processes 1 --rounds 1     # tests the code without a GPU

Per model and precision, each against the bare eager loop: fedray inline, fedray with `runtime.cuda_graph`, the bare
loop as a CUDA graph. Also: whether graphs change fedray's bits; eight clients' LeNets as one stack `(C, P)` under
torch.func.vmap (which fedray lacks; this number would decide it); 2 and 4 plain processes of the eager loop on one GPU;
and the minutes of a cell of FedTOGA's table 1 (LeNet, 100 clients of 500 images, 10 per round, 5 epochs, 800 rounds).
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
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from benchmarks import pairs as p
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS, Workload
from fedray.config import RunConfig
from fedray.engine.backend import InlineBackend
from fedray.engine.simulation import Simulation
from fedray.engine.state import theta_sha256
from fedray.models import make_model_spec

BATCH = 50
STACK = 8
"""Number of clients in a stack."""
W2 = WORKLOADS["w2"]


def eager(module: nn.Module, device: str, precision: str) -> Callable[[], None]:
    """Return a step on a fixed batch: forward, backward, SGD."""
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
    """Return the step recorded once and replayed."""
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
    """Return a function that makes steps and waits for the last."""

    def run() -> None:
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def stacked(module: nn.Module, clients: int, device: str) -> Callable[[], None]:
    """Return a step of several clients at once, each at its own parameters."""
    theta = {name: p.detach().expand(clients, *p.shape).clone() for name, p in module.named_parameters()}
    x = torch.randn(clients, BATCH, *W2.shape, device=device)
    y = torch.zeros(clients, BATCH, dtype=torch.long, device=device)

    def loss(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, theta, (x,)), y)

    def step() -> None:
        for name, gradient in vmap(grad(loss))(theta, x, y).items():
            theta[name] = theta[name] - 1e-6 * gradient

    return step


def ours(
    model: str,
    device: str,
    precision: str,
    graph: bool = False,
    algorithm: str = "fedavg",
    work: Workload = replace(W2, cohort=1),
) -> Simulation:
    """fedray in one process; by default one client of w2's, 20 steps per round."""
    made = problem(work, actors=0)
    whole = made.config.resolved()
    whole |= {
        "model": {"name": model},
        "algorithm": {"name": algorithm},
        "runtime": {"backend": "inline", "device": device, "cuda_graph": graph},
    }
    whole["training"] |= {"precision": precision}
    return Simulation(replace(made, config=RunConfig.parse(whole)), InlineBackend())


def sha(simulation: Simulation, rounds: int = 2) -> str:
    """Return the hash of the parameters after some rounds."""
    for _ in range(rounds):
        simulation.step()
    return theta_sha256(simulation.state.theta)


def minutes(device: str, rounds: int) -> float:
    """Return the minutes of a cell of FedTOGA's table 1, without testing."""
    simulation = ours("lenet", device, "fp32", device == "cuda", "fedtoga", replace(W2, epochs=5))
    simulation.step()
    began = time.perf_counter()
    for _ in range(rounds):
        simulation.step()
    return (time.perf_counter() - began) / 60


def alone(device: str, seconds: float) -> None:
    """Count this process's steps for some seconds, starting at a line on its input."""
    step = eager(make_model_spec("lenet").build(W2.shape, 10).to(device), device, "fp32")
    repeated(step, 20, device)()
    print("ready", flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        repeated(step, 20, device)()
        count += 20
    print(count * BATCH / (time.perf_counter() - began), flush=True)


def together(processes: int, device: str) -> float:
    """Return the samples per second of several concurrent processes on the device."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", device, "--alone"]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=p.ROOT)
        for _ in range(processes)
    ]
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
    steps: Annotated[int, typer.Option(min=1, help="steps of a bare loop at a time")] = 20,
    processes: Annotated[int, typer.Option(min=1, help="largest number of processes that share the device")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of the cell at the end")] = 800,
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
                what = f"{model}, {precision}"
                module = make_model_spec(model).build(W2.shape, 10).to(device)
                bare = eager(module, device, precision)
                told.add(
                    f"samples/s of fedray / bare eager loop, {what}",
                    p.paired(repeated(bare, 20, device), repeated(simulation.step, 1, device), pairs),
                )
                if device == "cuda":
                    recorded = ours(model, device, precision, graph=True)
                    told.add(
                        f"samples/s of fedray with CUDA graphs / bare eager loop, {what}",
                        p.paired(repeated(bare, 20, device), repeated(recorded.step, 1, device), pairs),
                        ">= 5" if model == "lenet" else ">= 1.5",
                    )
                    told.add(
                        f"the same bits with and without CUDA graphs, {what}",
                        sha(ours(model, device, precision)) == sha(ours(model, device, precision, graph=True)),
                    )
                    graph = graphed(bare)
                    told.add(
                        f"samples/s of the bare loop as a CUDA graph / eager, {what}",
                        p.paired(repeated(bare, steps, device), repeated(graph, steps, device), pairs),
                    )
        module = make_model_spec("lenet").build(W2.shape, 10).to(device)
        bare, stack = eager(module, device, "fp32"), stacked(module, STACK, device)
        told.add(
            f"samples/s of {STACK} clients as a stack / one after another, LeNet, eager",
            p.paired(repeated(bare, STACK, device), repeated(stack, 1, device), pairs),
        )
        one = together(1, device)
        for n in range(2, processes + 1, 2):
            told.add(f"samples/s of {n} processes / 1, LeNet, eager", round(together(n, device) / one, 2))
        told.add(
            f"minutes of {rounds} rounds of a cell of FedTOGA's table 1",
            round(minutes(device, rounds), 2),
            "< 2" if rounds == 800 else "",
        )


if __name__ == "__main__":
    typer.run(main)
