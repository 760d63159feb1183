"""Many large states: SCAFFOLD with 2,000 clients of a million parameters against 200, and FedAvg's memory.

python -m benchmarks.states                       # two minutes; 16 GB of disk, nothing else running
python -m benchmarks.states --clients 40 --few 20 --rounds 4
"""

import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import ray
import typer

from benchmarks import pairs as p
from fedray.cluster.ray_backend import RayBackend
from fedray.config import RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.problem import Problem
from fedray.engine.server.simulation import Simulation

COHORT, SAMPLES, HIDDEN = 20, 20, 13_333  # P = 75 x 13,333 + 10 = 999,985


def problem(algorithm: str, clients: int, rounds: int) -> Problem:
    """Return a problem whose cohorts of 20 go through all clients in turn: after clients / 20 rounds all have one."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((clients * SAMPLES, 64), dtype=np.float32), rng.integers(0, 10, clients * SAMPLES)
    data = Dataset("random", x, y, x[:100], y[:100], 10, client_train=np.repeat(np.arange(clients), SAMPLES))
    cohorts = [[(COHORT * t + k) % clients for k in range(COHORT)] for t in range(rounds)]
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "natural",
            "clients": {"total": clients, "cohorts": cohorts},
            "model": {"name": "mlp", "hidden": [HIDDEN]},
            "algorithm": algorithm,
            "training": {"rounds": rounds, "local_steps": 2, "batch_size": SAMPLES},
            "evaluation": {"every": rounds, "last": 1},
            "runtime": {"actors": 2},
        }
    )
    return Problem.build(config, data)


def measured(algorithm: str, clients: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return median seconds of the last 20 rounds, of a checkpoint after 20 changed states, of loading; and memory."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    backend = RayBackend(Runtime(actors=2))
    try:
        simulation = Simulation(problem(algorithm, clients, rounds), backend)
        store, seconds, saves = Checkpoints(folder), [], []
        for t in range(rounds):
            started = time.perf_counter()
            simulation.step()
            seconds.append(time.perf_counter() - started)
            if t % 20 == 19 or t >= rounds - 3:
                started = time.perf_counter()
                store.save(simulation.state, backend.write_states)
                saves.append(time.perf_counter() - started)
        started = time.perf_counter()
        found = Checkpoints(folder).load()
        loading = time.perf_counter() - started
        assert found is not None
        resumed = Simulation(simulation.problem, backend)
        resumed.restore(found)
        assert resumed.state.digest() == simulation.state.digest()
        on_disk = sum(path.stat().st_size for path in folder.iterdir())
        return {
            "algorithm": algorithm,
            "clients": clients,
            "with_state": len(found.clients),
            "round_seconds": median(seconds[-20:]),
            "checkpoint_seconds": median(saves[-2:]),
            "load_seconds": loading,
            "own_memory": p.anonymous(os.getpid()),
            "disk": on_disk,
        }
    finally:
        backend.close()
        ray.shutdown()


def main(
    clients: Annotated[int, typer.Option(min=COHORT)] = 2000,
    rounds: Annotated[int, typer.Option(min=4)] = 100,
    few: Annotated[int, typer.Option(min=COHORT)] = 200,
    out: Path | None = None,
) -> None:
    """Print the ratios."""
    with p.report("states", out) as told:
        found = {}
        for name, algorithm, number in (
            ("plain", "fedavg", clients),
            ("few", "scaffold", few),
            ("many", "scaffold", clients),
        ):
            folder = Path(tempfile.mkdtemp(prefix="fedray-states-"))
            try:
                with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # its memory is that of this run only
                    found[name] = alone.submit(measured, algorithm, number, rounds, folder).result()
            finally:
                shutil.rmtree(folder)
        many, less, plain = found["many"], found["few"], found["plain"]
        for figure, ratio in (
            (f"round, {clients} clients / {few}", many["round_seconds"] / less["round_seconds"]),
            (f"checkpoint, {clients} clients / {few}", many["checkpoint_seconds"] / less["checkpoint_seconds"]),
            ("anonymous memory of the trial, SCAFFOLD / FedAvg", many["own_memory"] / plain["own_memory"]),
        ):
            told.add(figure, round(ratio, 2), "<= 1.2")
        told.add("clients with a state after the resume", many["with_state"], str(clients))
        told.add("what was measured", "see beside", **{name: str(one) for name, one in found.items()})


if __name__ == "__main__":
    typer.run(main)
