"""fedray on a workload, as a trial runs it, through the same round loop as any run.

    python -m benchmarks.systems.ours w2 2 [fedavg [fp32 | bf16 | contiguous]]

The test set is tiny and is tested only after the last round. Client sampling is replaced by the cohorts that every
system trains. 0 actors: the inline backend; 1: the process of a trial, which trains itself; auto: as many as fit.
"""

import os
import sys

import numpy as np

from benchmarks.systems import protocol
from benchmarks.workloads import WORKLOADS, Workload
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend, InlineBackend
from fedray.engine.server.simulation import Simulation

ROUNDS = 2000
MODELS = {"w0": {"name": "mlp", "hidden": [32]}, "w1": "benchmarks.workloads:CNN", "w2": "lenet"}


def problem(
    work: Workload, algorithm: str = "fedavg", precision: str = "fp32", actors: int | str = 2, rounds: int = ROUNDS
) -> Problem:
    """Return a workload as a run."""
    x, y = work.arrays()
    images = len(work.shape) == 3
    data = Dataset(
        work.name,
        x,
        y,
        x[:10],
        y[:10],
        10,
        (0.5,) * 3 if images else (),
        (0.25,) * 3 if images else (),
        client_train=np.repeat(np.arange(work.clients), work.samples),
    )
    training = {"rounds": rounds, "local_epochs": work.epochs, "batch_size": work.batch, "lr": work.lr}
    if precision == "contiguous":  # fp32 in PyTorch's own layout, for any default of the model
        training["channels_last"] = False
    elif precision != "fp32":
        training["precision"] = precision
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "natural",
            "model": MODELS[work.name],
            "algorithm": algorithm,
            "training": training,
            "evaluation": {"every": rounds, "last": 1},
            "runtime": {"actors": actors or 1},
            "clients": {"total": work.clients, "per_round": work.cohort, "cohorts": work.cohorts(rounds)},
        }
    )
    return Problem.build(config, data)


def main(name: str, actors: int | str, algorithm: str = "fedavg", precision: str = "fp32") -> None:
    """Serve rounds of a workload."""
    out = protocol.lines()
    made = problem(WORKLOADS[name], algorithm, precision, actors)
    if actors in (0, 1):
        os.nice(protocol.NICENESS - os.nice(0))
    backend: Backend = InlineBackend() if actors == 0 else _on_ray(made, os.cpu_count() if actors == "auto" else actors)
    simulation = Simulation(made, backend)
    simulation.step()
    workers = [os.getpid()]
    if processes := getattr(backend, "_actors", None):
        import ray

        workers = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in processes])
    protocol.serve(simulation.step, workers, out, warmups=1)
    backend.close()


def _on_ray(made: Problem, cpus: int | str | None) -> Backend:
    """Return a trial's backend, on a local Ray with this many CPUs."""
    import ray

    from fedray.cluster.ray_backend import RayBackend, TrialBackend
    from fedray.cluster.resources import with_actor_count

    ray.init(
        "local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        logging_level="ERROR",
    )
    runtime = with_actor_count(made.config).runtime
    return TrialBackend() if runtime.actors == 1 else RayBackend(runtime)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if sys.argv[2] == "auto" else int(sys.argv[2]), *sys.argv[3:])
