"""The floor: the same steps in plain PyTorch, in as many single-threaded processes as there are actors.

    python -m benchmarks.systems.floor w2 2

Arrays, the global model and each process's sum are in shared memory; a round costs one line through a pipe to each
process and one line back. Images are gathered as bytes and scaled, as in fedray.
"""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from benchmarks.systems import protocol
from benchmarks.workloads import WORKLOADS, Workload, as_input

ROUNDS = 2000


def shared(array: np.ndarray | Tensor) -> Tensor:
    """Return a copy in shared memory."""
    return torch.as_tensor(array).clone().share_memory_()


def train(work: Workload, x: Tensor, y: Tensor, theta: Tensor, total: Tensor, orders: Connection) -> None:
    """Run one process: for each line of clients train them from theta, one after another, and sum their parameters."""
    os.nice(protocol.NICENESS - os.nice(0))
    torch.set_num_threads(1)
    rng = np.random.default_rng(os.getpid())
    module = work.seeded()
    parameters = list(module.parameters())
    optimiser = torch.optim.SGD(parameters, lr=work.lr)
    sizes, shapes = [p.numel() for p in parameters], [p.shape for p in parameters]
    start = [part.view(shape) for part, shape in zip(theta.split(sizes), shapes, strict=True)]
    sums = [part.view(shape) for part, shape in zip(total.split(sizes), shapes, strict=True)]
    while True:
        try:
            clients = orders.recv()
        except EOFError:
            return
        total.zero_()
        for client in clients:
            with torch.no_grad():
                for parameter, value in zip(parameters, start, strict=True):
                    parameter.copy_(value)
            for _ in range(work.epochs):
                order = torch.from_numpy(client * work.samples + rng.permutation(work.samples))
                for index in order.split(work.batch):
                    optimiser.zero_grad()
                    cross_entropy(module(as_input(x[index])), y[index]).backward()
                    optimiser.step()
            with torch.no_grad():
                for sum_, parameter in zip(sums, parameters, strict=True):
                    sum_.add_(parameter)
        orders.send(True)


def main(name: str, processes: int) -> None:
    """Serve rounds of a workload."""
    out = protocol.lines()
    torch.set_num_threads(1)
    work = WORKLOADS[name]
    x, y = map(shared, work.arrays())
    theta = shared(parameters_to_vector(work.seeded().parameters()).detach())
    totals = [shared(torch.zeros_like(theta)) for _ in range(processes)]
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for total in totals:
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=train, args=(work, x, y, theta, total, theirs), daemon=True))
        workers[-1].start()
        pipes.append(ours)
    cohorts = iter(work.cohorts(ROUNDS))

    def round() -> None:
        cohort = next(cohorts)
        for k, pipe in enumerate(pipes):
            pipe.send(cohort[k::processes])
        for pipe in pipes:
            pipe.recv()
        torch.sum(torch.stack(totals), 0, out=theta).div_(len(cohort))

    protocol.serve(round, [worker.pid or 0 for worker in workers], out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
