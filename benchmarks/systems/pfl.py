"""pfl-research on a workload: FederatedAveraging on its simulated backend, one process or several by torch.distributed.

    PFL_PYTHON -m benchmarks.systems.pfl w1 2

Its users' data are float32 tensors made once; batches are slices in a fixed order (its Dataset does not shuffle).
"""

import os
import socket
import subprocess
import sys
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.systems import protocol
from benchmarks.workloads import WORKLOADS, as_input

WARMUPS, ROUNDS = 2, 2000
RANK = "PFL_WORKER_RANK"


class Model(torch.nn.Module):
    """A module with the loss that pfl-research requires."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return cross_entropy(self.module(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


def start(name: str, processes: int) -> list[int]:
    """Start the other ranks, if this is the first; return their ids and this one's."""
    if processes == 1 or RANK in os.environ:
        return [os.getpid()]
    ports = []
    for _ in range(processes):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    os.environ |= {"PFL_WORKER_ADDRESSES": ",".join(f"127.0.0.1:{port}" for port in ports), "GLOO_SOCKET_IFNAME": "lo"}
    others = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems.pfl", name, str(processes)],
            env=os.environ | {RANK: str(rank)},
        )
        for rank in range(1, processes)
    ]
    os.environ[RANK] = "0"
    return [os.getpid(), *(other.pid for other in others)]


def main(name: str, processes: int) -> None:
    """Serve rounds of a workload."""
    workers = start(name, processes)
    # Only now, because pfl joins its process group on import.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    first = os.environ.get(RANK, "0") == "0"
    out = protocol.lines()
    os.nice(protocol.NICENESS - os.nice(0))
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    work = WORKLOADS[name]
    x, y = map(torch.from_numpy, work.arrays())
    x = as_input(x)

    class Told(TrainingProcessCallback):
        """Ends a round and begins the next on request; all ranks together."""

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if first and central_iteration == WARMUPS - 1:
                protocol.ready(out, workers)
            elif first and central_iteration >= WARMUPS:
                print("done", file=out)
            go = torch.ones(1)
            if first and central_iteration >= WARMUPS - 1:
                go[0] = protocol.wait(out)
            if processes > 1:
                torch.distributed.broadcast(go, 0)
            if not go[0]:
                os._exit(0)
            return False, Metrics()

    def user(identifier: int) -> Dataset:
        held = slice(identifier * work.samples, (identifier + 1) * work.samples)
        return Dataset([x[held], y[held]], user_id=str(identifier))

    data = FederatedDataset(user, get_user_sampler("random", list(range(work.clients))))
    module = Model(work.seeded())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    training = NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    )
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, ROUNDS, work.cohort, None),
        SimulatedBackend(data, data),
        model,
        training,
        callbacks=[Told()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
