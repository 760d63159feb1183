"""A process that trains clients and tests models; the backends differ only in their number of workers.

The modules `train`, `evaluate` and `personal` use it.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from fedray.client import Population
from fedray.common.errors import warn_once
from fedray.common.explain import explain
from fedray.common.vectors import Vectors, upload
from fedray.datasets.dataset import Samples
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process import device as devices
from fedray.engine.process.device import keep_memory
from fedray.engine.process.lanes import Lanes
from fedray.engine.process.residence import DeviceState, Residence, Spill, limit_memory
from fedray.engine.state import load_state
from fedray.engine.training.local_training import LocalTrainer
from fedray.engine.training.stack import Stacking, choose_size
from fedray.models.network import Network
from fedray.models.recorded import record_on_cuda


class Worker:
    """One process's part of a run: the model and the samples; it keeps nothing of a client between calls."""

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        keep_memory()
        device = config.runtime.torch_device
        devices.refuse_missing(device)
        devices.warn_of_slow_precision(config.training.precision, device)
        if device == "cuda":
            devices.prepare(tf32=config.training.precision == "tf32", deterministic=config.runtime.deterministic)
            devices.limit_share(config.runtime.gpu_share)
        data = problem.data
        self.problem = problem
        self.probes = config.evaluation.probes
        self.device = device
        self.record = record_on_cuda if device == "cuda" else None
        with explain("the model"):
            self.network = self.build_network()
        self.residence: Residence | None = None
        self.keeps_states = False
        # The test set is on the device; of the training set only what `residence` keeps is.
        self.train_samples = Samples(data.x_train, data.y_train, data, device, held=None if data.is_merged else "cpu")
        self.test_samples = self.train_samples if data.is_merged else Samples(data.x_test, data.y_test, data, device)
        self.population = Population(
            samples=self.train_samples,
            classes=data.num_classes,
            seed=config.seed,
            clients=len(problem.split.train),
            total_samples=int(problem.split.train.sizes.sum()),
            counts=cache(lambda: problem.split.train.count_labels(data.y_train, data.num_classes)),
            own_code=config.has_own_code,
        )
        self.trainer = LocalTrainer(
            algorithm=config.algorithm,
            training=config.training,
            network=self.network,
            population=self.population,
            shards=problem.split.dealt,
            stepping=None if config.stepping is config.algorithm else config.stepping,
        )
        self.stacking = Stacking(self.network, choose_size(self.network, config.runtime.stack))
        self.lanes: Lanes | None = None
        wanted = None if config.runtime.lanes == "auto" else config.runtime.lanes
        if device != "cpu":
            self.reside(limit_memory(config.runtime.gpu_share))
            self.open_lanes(wanted, partial(devices.count_memory, config.runtime.gpu_share))
        elif wanted is not None and wanted > 1:
            warn_once(f"runtime.lanes: found {wanted}; lanes are for a GPU, and a CPU trains one client after another")

    def reside(self, limit: int) -> None:
        """Keep shards on the device from now on. limit: bytes to keep there."""
        self.residence = Residence(self.train_samples, limit)
        self.population = replace(self.population, take=self.residence.take)
        self.trainer = replace(self.trainer, population=self.population)

    def build_network(self) -> Network:
        """Return the model on the device, with recordings on a GPU."""
        network = self.problem.build_network(self.device)
        network.recorder = self.record and self.record(network)
        return network

    def open_lanes(self, wanted: int | None, count_memory: Callable[[], tuple[int, int]] | None = None) -> None:
        """Train clients in lanes from now on; for the arguments see `Lanes`."""
        self.lanes = None if wanted == 1 else Lanes(self.network, self.build_network, wanted, count_memory)

    def keep_states(self, spill: Spill) -> None:
        """Keep new states on the device, too; for a run with one process. spill: stores a state that leaves it."""
        if self.residence is not None:
            self.residence.spill, self.keeps_states = spill, True

    def key_draws(self, purpose: str, round: int, number: int = 0) -> contextlib.AbstractContextManager[None]:
        """Key the draws of the user's own code in a forward pass, such as dropout while testing."""
        if not self.population.own_code:
            return contextlib.nullcontext()
        return self.population.key_draws(purpose, round, number, self.network.theta.device)

    def to_device(self, broadcast: Broadcast) -> Broadcast:
        """Return what the server sends, on the device."""
        names = list(broadcast.message)
        theta, buffers, *message = self._move([broadcast.theta, broadcast.buffers, *broadcast.message.values()])
        return replace(broadcast, theta=theta, buffers=buffers, message=Vectors(zip(names, message, strict=True)))

    def task_to_device(self, task: ClientTask) -> ClientTask:
        """Return a task whose state is on the device."""
        if self.residence is None:
            return task
        there = task.state.get_on_device() if isinstance(task.state, DeviceState) else None
        if there is None:
            state = load_state(task.state)
            there = Vectors(zip(state, self._move(list(state.values())), strict=True))
        return ClientTask(task.client, task.weight, Vectors(there))

    def _move(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return CPU tensors on the device, moved in one copy."""
        if self.residence is None or not tensors:
            return tensors
        return upload([tensor.detach().numpy() for tensor in tensors], self.device)
