"""What trains clients and tests models in one process; the backends differ only in how many of these there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.allocator import keep_memory
from fedray.backend.reduce import Accumulator, NotSummable
from fedray.config import Runtime
from fedray.data.batches import Samples
from fedray.errors import UserError
from fedray.local import Broadcast, Job, train_client
from fedray.problem import Problem
from fedray.vectors import Vectors

TEST_BATCH = 500
MAX_TEST_LOSS = 1e5


@dataclass
class Partial:
    """Reduced uploads of some clients (int64 sums in units of 2^-44), their new states, and who diverged why."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    states: dict[int, Vectors] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)


class Worker:
    """One process's share of a run: the model, the samples, and no memory of clients between calls."""

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        keep_memory()
        device = config.runtime.torch_device
        refuse_missing_device(config.runtime)
        data = problem.data
        self.problem = problem
        self.network = problem.network(device)
        self.device = device
        self.train_samples = Samples(data.x_train, data.y_train, data, device)
        self.test_samples = Samples(data.x_test, data.y_test, data, device)
        self.total_samples = int(problem.shards.sizes.sum())

    def train(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Partial:
        """Train the clients of `jobs` one after another and reduce their uploads."""
        config, shards = self.problem.config, self.problem.shards
        there = Broadcast(broadcast.round, broadcast.lr, broadcast.theta.to(self.device),
                          broadcast.buffers.to(self.device), self._moved(broadcast.message), broadcast.cohort)
        sums, partial = Accumulator(), Partial()
        for job in jobs:
            job = Job(job.client, job.weight, self._moved(job.state))
            c, uploads = train_client(
                config.algorithm, self.network, self.train_samples, shards[job.client], config.training, config.seed,
                there, job, len(shards), self.total_samples)
            try:
                if not torch.isfinite(c.loss):
                    raise NotSummable("the training loss is not finite")
                sums.add("train_loss", c.loss / c.steps, job.weight, broadcast.cohort)
                for name, upload in uploads.items():
                    sums.add(name, upload.vector, upload.weight, broadcast.cohort)
            except NotSummable as reason:
                partial.diverged[job.client] = str(reason)
            partial.states[job.client] = Vectors({name: v.cpu() for name, v in c.state.items()})
        partial.sums = sums.sums
        return partial

    def evaluate(self, theta: Tensor, buffers: Tensor, chunks: Sequence[int]) -> dict[str, Tensor]:
        """Test chunks of 500 consecutive samples.

        Exact sums over the whole test set: `loss` (its mean), `correct` per class, and `unbounded`, the number of
        chunks whose mean loss is not finite or above 1e5 (then `loss` lacks them).
        """
        self.network.load(theta.to(self.device))
        self.network.buffers.copy_(buffers)
        self.network.train(False)
        sums = Accumulator()
        classes, n = self.problem.data.num_classes, len(self.test_samples)
        terms = test_chunks(n)
        for chunk in chunks:
            x, y = self.test_samples.batch(np.arange(chunk * TEST_BATCH,
                                                     min((chunk + 1) * TEST_BATCH, n)))
            with torch.no_grad():
                logits = self.network(x).logits
            loss = cross_entropy(logits, y, reduction="sum")
            bounded = loss <= MAX_TEST_LOSS * len(y)  # false for NaN; what is not bounded cannot be summed
            sums.add("unbounded", (~bounded).float(), 1.0, terms)
            sums.add("loss", torch.where(bounded, loss, 0.0), 1 / n, terms)
            correct = torch.bincount(y[logits.argmax(1) == y], minlength=classes)
            sums.add("correct", correct.float(), 1.0, terms)
        return sums.sums

    def _moved(self, vectors: Vectors) -> Vectors:
        return Vectors({name: v.to(self.device) for name, v in vectors.items()})


def refuse_missing_device(runtime: Runtime) -> None:
    """Raise UserError where this process cannot see the device that the configuration asks for."""
    if runtime.torch_device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device: no CUDA device is visible to PyTorch here; set runtime.device: cpu")


def test_chunks(samples: int) -> int:
    """Number of chunks of a test set."""
    return -(-samples // TEST_BATCH)
