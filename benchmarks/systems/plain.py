"""A local step of the other frameworks' clients, in plain PyTorch: data resident, one thread."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.workloads import WORKLOADS, as_input


@cache
def resident(name: str) -> tuple[Tensor, Tensor, nn.Module]:
    """Return this process's inputs and labels as tensors, and a module."""
    torch.set_num_threads(1)
    work = WORKLOADS[name]
    x, y = map(torch.from_numpy, work.arrays())
    return x, y, work.seeded()


def train(name: str, client: int) -> None:
    """Make the local epochs of one client, on the resident module."""
    work, (x, y, module) = WORKLOADS[name], resident(name)
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        order = client * work.samples + torch.randperm(work.samples)
        for index in order.split(work.batch):
            optimiser.zero_grad()
            cross_entropy(module(as_input(x[index])), y[index]).backward()
            optimiser.step()
