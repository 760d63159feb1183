"""Costs of a method, measured: a few rounds of the real engine, counting the tensors that are sent and kept.

All values are multiples of the model (P float32 numbers, 4 P bytes), per participant and round. A tensor that is sent
under two names counts once; single numbers and BatchNorm's running statistics (which every method sends) are free.
FedTOGA's Table 4 counts differently: communication is the uplink alone, storage the client's vectors plus its model.
`measure_relative_compute` compares the floating-point operations of a method's rounds with FedAvg's.
"""

import contextlib
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.client import LocalClient
from fedray.common.errors import UserError
from fedray.config import RunConfig, Training
from fedray.datasets.base import Images, Published
from fedray.datasets.dataset import Dataset
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import isolate_run
from fedray.engine.server.simulation import Simulation
from fedray.engine.training.local_training import OWN, LocalTrainer
from fedray.partitions.held_out import Split
from fedray.partitions.shards import Shards


@dataclass(frozen=True)
class Cost:
    """Costs of a method in multiples of the model, and its passes.

    down, up: sent to and by each participant in a round. client: kept by a client between rounds, `own` of it the parts
    of its model that it keeps to itself. server: kept by the server in addition to x. gradients, predictions: backward
    passes, and forward passes without gradient, per local step. full_gradients, full_predictions: the same over the
    whole shard per round, for passes that are not part of a step.
    """

    down: float
    up: float
    client: float
    server: float
    gradients: float
    predictions: float = 0.0
    full_gradients: float = 0.0
    full_predictions: float = 0.0
    own: float = 0.0

    @property
    def held(self) -> float:
        """By a client in training: its model, and states or further models that answer its batches without gradient.

        A model that answers is one that the client keeps or one that it receives, so the larger number counts.
        """
        return 1 + max(self.client - self.own, self.predictions)

    def __str__(self) -> str:
        """One line; less than a hundredth of a model counts as 0."""
        return (
            f"down {self.down:.2g}, up {self.up:.2g}, client {round(self.client, 2):g}, "
            f"server {round(self.server, 2):g}; gradients per step {self.gradients:g}"
        )


class _Meter(InlineBackend):
    """Trains as the inline backend does, and measures the first client of the last round.

    With `training`, which replaces the run's own, it counts that client's operations, without it its passes.
    """

    def __init__(self, training: Training | None = None) -> None:
        self.training = training

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        trainer = self._worker.trainer
        trainer = replace(trainer, training=self.training or trainer.training)
        from torch.utils.flop_counter import FlopCounterMode  # here: it imports triton, 0.3 s in every process

        is_last = broadcast.round == ROUNDS - 1
        counts = is_last and self.training is not None
        with FlopCounterMode(display=False) if counts else contextlib.nullcontext() as counter:
            c, uploads = trainer.train(broadcast, tasks[0])
        size, shared = c.layout.size, trainer.network.index(trainer.algorithm.shares)
        theta = broadcast.theta if len(shared) == size else broadcast.theta[shared]
        self.down = _count_numbers([theta, *broadcast.message.values()]) / size
        self.up = _count_numbers(sent.vector for name, sent in uploads.items() if name != "buffers") / size
        self.client = _count_numbers(c.state.values()) / size
        self.own = _count_numbers(vector for name, vector in c.state.items() if name == OWN) / size
        self.passes = self._count_passes(trainer, broadcast, tasks[0], c) if is_last and self.training is None else {}
        self.operations = 0 if counter is None else counter.get_total_flops()
        return super().train(broadcast, tasks)

    @staticmethod
    def _count_passes(
        trainer: LocalTrainer, broadcast: Broadcast, task: ClientTask, c: LocalClient
    ) -> dict[str, float]:
        """Return the passes of a step, and over the shard in a round, whose number does not grow with the epochs."""
        two_epochs = trainer.training.model_copy(update={"local_epochs": 2})
        longer, _ = replace(trainer, training=two_epochs).train(broadcast, task)
        passes = dict[str, float]()
        for what in ("gradients", "predictions"):
            passes[what] = (longer.passes[what] - c.passes[what]) / (longer.steps - c.steps)
            passes[f"full_{what}"] = c.passes[f"full_{what}"] + c.passes[what] / c.steps - passes[what]
        return passes


def _count_numbers(tensors: Iterable[Tensor]) -> int:
    """Return the number of entries of all distinct tensors; single numbers are free."""
    return sum({id(tensor): tensor.numel() for tensor in tensors if tensor.numel() > 1}.values())


ROUNDS = 3
"""Enough rounds to fill states that start empty."""


def _run_metered(
    algorithm: object,
    model: object,
    shape: tuple[int, ...],
    classes: int,
    samples: int,
    training: dict[str, object],
    meter: _Meter,
) -> Simulation:
    """Run three metered rounds of two clients with `samples` random samples each.

    Steps are short, so that none diverges, however large a method's loss is.
    """
    rng = np.random.default_rng(0)
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "iid",
            "clients": {"total": 2, "per_round": 2},
            "model": model,
            "algorithm": algorithm,
            "training": {"rounds": ROUNDS + 1, "batch_size": 2, "lr": 0.01, "clip_norm": 1.0, **training},
            "runtime": {"backend": "inline"},
        }
    )
    count = 2 * samples
    x: np.ndarray = rng.normal(size=(count, *shape)).astype(np.float32)
    if config.model.takes_tokens:
        x = rng.integers(0, classes, (count, *shape))
    y = np.arange(count) % classes
    data, shards = Dataset("random", x, y, x, y, classes), Shards(np.arange(count), np.array([0, samples, count]))
    with isolate_run():
        simulation = Simulation(Problem(config, data, Split(shards)), meter)
        for _ in range(ROUNDS):
            simulation.step()
    return simulation


def measure_cost(
    algorithm: Algorithm, model: object = None, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> Cost:
    """Measure an algorithm on random inputs, with three local steps per round; the model is a small MLP by default.

    Raises UserError if the model cannot serve the method.
    """
    meter = _Meter()
    simulation = _run_metered(
        algorithm, model or {"name": "mlp", "hidden": [50]}, shape, classes, 6, {"local_epochs": 1}, meter
    )
    size = simulation.layout.size
    server = _count_numbers(simulation.state.server.values()) / size
    return Cost(meter.down, meter.up, meter.client, server, **meter.passes, own=meter.own)


def find_input_shape(config: RunConfig, known: Published | None = None) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample as the model receives it, and the number of classes, by default the published ones.

    Raises UserError if the shape is not known before the data are read.
    """
    known = known or config.data.get_expected()
    if known is not None:
        shape, classes = known.shape, known.classes
        channels = (
            config.data.channels or config.data.recipes[config.data.preset].channels
            if isinstance(config.data, Images)
            else None
        )
        shape = (channels or shape[0], *shape[1:]) if len(shape) == 3 else shape
    elif config.model.published is not None:
        shape, classes, _ = config.model.published
    else:
        raise UserError(f"data.name: the shape of {config.data.name} is not known before the data are read")
    if config.model.side is not None and len(shape) == 3:
        shape = (shape[0], config.model.side, config.model.side)
    return shape, classes


def measure_relative_compute(config: RunConfig) -> float:
    """Return the floating-point operations of a client's round relative to FedAvg's with the same model and training.

    PyTorch counts them during a round with the run's model, input shape and epochs: matrix products and convolutions,
    forward and backward. Operations on whole parameter vectors are not counted. A forward pass is about a third of a
    gradient. Batches have two samples here, and an epoch has one batch. Raises UserError if the data's shape is not
    known before they are read.
    """
    shape, classes = find_input_shape(config)
    options, model = config.algorithm.list_options(), config.model.list_options() | {"init": None}
    steps = (1, config.training.epochs) if config.training.local_steps is None else (config.training.local_steps, 1)
    sources = config.algorithm.source, config.model.source  # a notebook can load a class again
    method, plain = (
        _count_operations(json.dumps([o, model, sources]), shape, classes, *steps)
        for o in (options, {"name": "fedavg"})
    )
    return method / plain


@cache
def _count_operations(components: str, shape: tuple[int, ...], classes: int, per_epoch: int, epochs: int) -> int:
    """Return the operations of one client's round of an algorithm and a model, as JSON; earlier rounds are short."""
    own = Training(batch_size=2, lr=0.01, local_epochs=epochs)
    meter, (algorithm, model, _) = _Meter(own), json.loads(components)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        if len(shape) == 1:  # text: oneDNN's LSTM is one fused operation, counted as zero
            warnings.simplefilter("ignore")  # the switch itself warns about Intel's GPUs
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        _run_metered(algorithm, model, shape, classes, 2 * per_epoch, {"local_steps": 1}, meter)
    return meter.operations
