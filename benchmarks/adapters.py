"""Memory of LoRA: an SL-ViT of 23 million parameters with adapters against FedAvg on an MLP that trains as many.

    python -m benchmarks.adapters                  # two minutes

One process is driver and trial, two actors train 10 of 100 clients a round. The frozen weights are one file that all
three processes map.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

import fedray
from benchmarks import pairs as p
from fedray.models import make_model_spec
from fedray.models.base import count_parameters

SHAPE, CLASSES = (3, 32, 32), 10
MODELS: dict[str, dict[str, Any]] = {
    "lora": {"name": "sl_vit", "dim": 640, "heads": 10, "lora": {"rank": 10}},
    "mlp": {"name": "mlp", "hidden": [192]},
}


def measure(model: str, rounds: int) -> dict[str, float]:
    """Return MB after the last round: anonymous memory of driver and trial, PSS of everything, the mapped file."""
    found: dict[str, float] = {}

    def note(row: dict[str, float]) -> None:
        if row["round"] == rounds:
            actors = p.find_titled(os.getpid(), "ClientActor")
            found["trial"] = p.rollup(os.getpid(), "Anonymous")
            found["actors"] = sum(p.rollup(pid, "Anonymous") for pid in actors)
            found["mapped"] = sum(_mapped(pid) for pid in (os.getpid(), *actors))

    fedray.simulate(
        {
            "data": {"name": "synthetic", "train_samples": 2000, "test_samples": 100},
            "partition": "iid",
            "clients": {"total": 100, "per_round": 10},
            "model": MODELS[model],
            "algorithm": "fedavg",
            "training": {"rounds": rounds, "local_steps": 2, "batch_size": 20, "lr": 0.01},
            "evaluation": {"every": rounds, "last": 1},
            "runtime": {"actors": 2},
        },
        evaluated=note,
        progress=False,
    )
    return found


def _mapped(pid: int) -> float:
    """Return the PSS in MB of a process's part of the files of frozen weights."""
    total, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            counts = "fedray-frozen-" in line
        elif counts and line.startswith("Pss:"):
            total += int(line.split()[1])
    return total * 1024 / 1e6


def main(rounds: Annotated[int, typer.Option(min=1)] = 4, out: Path | None = None) -> None:
    """Print the memory of both, each in a process of its own."""
    with p.report("adapters", out) as told:
        sizes = {name: count_parameters(make_model_spec(options), SHAPE, CLASSES) for name, options in MODELS.items()}
        told.add("parameters of the ViT, millions", round((sizes["lora"][1] - sizes["lora"][0]) / 1e6, 1))
        told.add("trained parameters, LoRA / MLP", round(sizes["lora"][0] / sizes["mlp"][0], 3))
        memory = dict[str, dict[str, float]]()
        for name in MODELS:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                memory[name] = process.submit(measure, name, rounds).result()
        for who in ("trial", "actors"):
            told.add(
                f"anonymous memory, {who}, LoRA / MLP",
                round(memory["lora"][who] / memory["mlp"][who], 2),
                "<= 1.3" if who == "trial" else "",
                megabytes={name: round(found[who]) for name, found in memory.items()},
            )
        frozen = 4 * (sizes["lora"][1] - sizes["lora"][0]) / 1e6
        told.add("mapped frozen weights, copies", round(memory["lora"]["mapped"] / frozen, 2), "<= 1")


if __name__ == "__main__":
    typer.run(main)
