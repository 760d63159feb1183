"""Hashes of some methods on a device: run to run, and in one process and in four.

python -m benchmarks.gpu_day.hashes METHOD,METHOD,... DEVICE FILE [--tiny]
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_day.processes import Processes
from benchmarks.systems.ours import problem
from benchmarks.workloads import CNN, Workload
from fedray.algorithms import ALGORITHMS, Algorithm
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import digest_theta

SMALL = Workload("w1", 8, 20, (3, 32, 32), 4, 1, 10, CNN)
"""The clients of the hashes, and of all parts if they are tiny."""
MODELS = ("lenet", "char_lstm", "resnet18", "sl_vit")
"""The models of the hashes; the first two if they are tiny."""


class Eager(InlineBackend):
    """Trains one client after another, and records nothing."""

    def open(self, problem: Problem) -> None:
        super().open(problem)
        self._worker.network.recorder = None
        self._worker.open_lanes(1)


def list_hashed(tiny: bool) -> list[tuple[str, str]]:
    """Return the models and precisions with which each method is hashed."""
    return [(model, precision) for precision in ("fp32", "bf16") for model in (MODELS[:2] if tiny else MODELS)]


def build(
    device: str,
    work: Workload,
    algorithm: str,
    model: Any,
    processes: int = 1,
    lanes: int | str = "auto",
    **training: Any,
) -> Problem:
    """Return a workload as a run on a device, of which each process has its share; its rate decays as in FedTOGA's."""
    made = problem(work, actors=1)
    whole = made.config.resolve()
    runtime: dict[str, Any] = {"backend": "inline", "device": device}
    if device == "cuda":
        runtime |= {"gpus_per_actor": 1 / processes, "lanes": lanes}
    elif training.get("precision") == "tf32":  # a CPU has none
        training["precision"] = "fp32"
    whole |= {"algorithm": {"name": algorithm}, "model": model, "runtime": runtime}
    whole["training"] |= {"lr_decay": 0.998} | training
    return replace(made, config=RunConfig.parse(whole))


def read_hashes(lines: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that may be missing."""
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def describe(line: dict[str, Any]) -> str:
    """Return the name of a line in reports."""
    return f"{line['method']} {line['model']} {line['precision']}"


def hash_methods(names: Sequence[str], device: str, lines: Path, tiny: bool) -> None:
    """Append a line to a file for each model and precision that the file lacks for a method."""
    known = {(line["method"], line["model"], line["precision"]) for line in read_hashes(lines)}
    wanted = [(name, *kind) for kind in list_hashed(tiny) for name in names]
    four = Processes(2 if tiny else 4)
    try:
        for name, model, precision in wanted:
            if (name, model, precision) in known:
                continue
            line: dict[str, Any] = {"method": name, "model": model, "precision": precision, "error": None}
            line |= {"once": None, "again": None, "four": None, "eager": None}
            kinds = {"once": InlineBackend(), "again": InlineBackend(), "four": four, "eager": Eager()}
            try:
                for key, backend in kinds.items():
                    line[key] = find_hash(device, name, model, precision, backend, 4 if key == "four" else 1)
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            with lines.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(describe(line), line["error"] or line["once"][:12], flush=True)
    finally:
        four.close()


def find_hash(device: str, name: str, model: str, precision: str, backend: Backend, processes: int) -> str:
    """Return theta_sha256 of a method after two rounds."""
    method = ALGORITHMS[name]
    own = method.optimizer or method.local_optimizer is not Algorithm.local_optimizer
    training: dict[str, Any] = {
        "momentum": 0.0 if own else 0.5,
        "weight_decay": 1e-3,
        "local_epochs": 3,
        "precision": precision,
        "optimizer": method.optimizer or "sgd",
    }
    made = build(device, SMALL, name, {"name": model}, processes, **training)
    if model == "char_lstm":  # as many sequences of 80 characters, with the 80 classes of LEAF's Shakespeare
        rng = np.random.default_rng(0)
        x_train, x_test = (rng.integers(0, 80, (len(y), 80)) for y in (made.data.y_train, made.data.y_test))
        data = replace(made.data, x_train=x_train, x_test=x_test, num_classes=80, mean=(), std=())
        made = replace(made, data=data)
    simulation = Simulation(made, backend)
    for _ in range(2):
        simulation.step()
    return digest_theta(simulation.state.theta)


if __name__ == "__main__":
    torch.set_num_threads(1)
    hash_methods(sys.argv[1].split(","), sys.argv[2], Path(sys.argv[3]), "--tiny" in sys.argv)
