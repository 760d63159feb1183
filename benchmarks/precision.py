"""bf16 and channels-last against plain fp32: samples per second of local training in one process, and the accuracy.

    python -m benchmarks.precision                                   # speed only, about 2 minutes
    python -m benchmarks.precision --data fashion_mnist --seeds 3    # and a real run, about 10 minutes more

On a CPU without avx512_bf16 or AMX bf16 is emulated, which takes 8 times as long: it is skipped there.
`--data` is a data set whose files are in FEDRAY_DATA, or an .npz file of your own. The run: LeNet, FedAvg,
Dirichlet(0.5) over 20 clients of 300 samples on average, 5 per round, 2 epochs of batches of 50, 20 rounds; accuracy is
the mean of the last 10 rounds.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import numpy as np
import torch
import typer
from torch.nn.functional import cross_entropy

from benchmarks import pairs as p
from benchmarks.systems.ours import problem
from benchmarks.workloads import WORKLOADS
from fedray.cluster.ray_backend import RayBackend
from fedray.cluster.resources import prepare_ray
from fedray.common.process import has_bf16
from fedray.config import RunConfig
from fedray.datasets.dataset import take_train
from fedray.engine.loop import run as run_all
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation


def bare(name: str, bf16: bool) -> None:
    """Return ten steps of a bare loop, as an upper bound: forward, backward, no framework."""
    work = WORKLOADS[name]
    module = work.seeded()
    x, y = torch.randn(work.batch, *work.shape), torch.zeros(work.batch, dtype=torch.long)
    if bf16:
        x = x.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-6)
    for _ in range(10):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = cross_entropy(module(x).float(), y)
        loss.backward()
        optimiser.step()


def speed(told: p.Report, pairs: int) -> None:
    """Compare rounds of one process with the same clients."""
    for name, clients in (("w2", 1), ("w1", 5)):
        work = replace(WORKLOADS[name], cohort=clients)
        plain, innermost, bf16 = (
            Simulation(problem(work, precision=precision, actors=0), InlineBackend())
            for precision in ("contiguous", "fp32", "bf16")
        )
        model = "LeNet" if name == "w2" else "the CNN of w1"
        told.add(f"samples/s of fp32 / fp32 in PyTorch's layout, {model}", p.paired(plain.step, innermost.step, pairs))
        if not has_bf16():
            told.add(f"samples/s of bf16 / fp32 in PyTorch's layout, {model}", p.NO_BF16)
            continue
        told.add(
            f"samples/s of bf16 / fp32 in PyTorch's layout, {model}",
            p.paired(plain.step, bf16.step, pairs),
            ">= 2.5" if name == "w2" else "",
        )
        told.add(
            f"the same of a bare loop, bf16 / fp32, {model}",
            p.paired(lambda name=name: bare(name, False), lambda name=name: bare(name, True), pairs),
        )


def accuracy(told: p.Report, name: str, seeds: int, actors: int) -> None:
    """Compare the same runs in both precisions."""
    if not has_bf16():
        told.add(f"accuracy of bf16 - fp32 on {Path(name).stem}, points", p.NO_BF16)
        return
    found: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for seed in range(seeds):
        for precision, values in found.items():
            config = RunConfig.parse(
                {
                    "seed": seed,
                    "data": {"name": "npz", "path": name} if name.endswith(".npz") else name,
                    "partition": {"name": "dirichlet", "alpha": 0.5},
                    "model": "lenet",
                    "algorithm": "fedavg",
                    "clients": {"total": 20, "per_round": 5},
                    "training": {"rounds": 20, "local_epochs": 2, "batch_size": 50, "lr": 0.05, "precision": precision},
                    "evaluation": {"every": 20, "last": 10},
                    "runtime": {"actors": actors, "backend": "ray" if actors > 1 else "inline"},
                }
            )
            whole = config.data.load()  # 6,000 training and 2,000 test samples of it
            data = take_train(whole, np.random.default_rng(0).permutation(len(whole.y_train))[:6000])
            made = Problem.build(config, replace(data, x_test=whole.x_test[:2000], y_test=whole.y_test[:2000]))
            with contextlib.ExitStack() as stack:
                if actors > 1:
                    stack.enter_context(prepare_ray(config.runtime))
                backend = InlineBackend() if actors == 1 else RayBackend(config.runtime)
                history = run_all(made, stack.enter_context(contextlib.closing(backend))).history
            values.append(mean(row["test_accuracy"] for row in history[-10:]))
    differences = [b - a for a, b in zip(found["fp32"], found["bf16"], strict=True)]
    told.add(
        f"accuracy of bf16 - fp32 on {Path(name).stem}, points",
        f"{mean(differences):+.2f} ± {stdev(differences) if seeds > 1 else 0:.2f} ({seeds} seeds)",
        fp32=[round(value, 2) for value in found["fp32"]],
        bf16=[round(value, 2) for value in found["bf16"]],
    )


def main(
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    data: Annotated[str, typer.Option(help="a data set for the accuracy; none: speed only")] = "",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    actors: Annotated[int, typer.Option(min=1)] = 2,
    out: Annotated[Path | None, typer.Option(help="JSON file")] = None,
) -> None:
    """Print ratios, and differences of accuracy."""
    torch.set_num_threads(1)
    with p.report("precision", out) as told:
        speed(told, pairs)
        if data:
            accuracy(told, data, seeds, actors)


if __name__ == "__main__":
    typer.run(main)
