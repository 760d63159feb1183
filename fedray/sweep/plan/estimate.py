"""Estimate of a sweep's duration on this machine: gradients are counted, and one per model is timed.

The count covers the gradients of a batch that training, evaluation and personal models take (a forward pass is a third
of one), from the file and the published size of the data, as if clients had equal shards. Only data without a published
size, such as your own arrays, are read. Not included: augmentation, communication, Ray's start, operations on
whole parameter vectors, and sharing: each trial is assumed to have its core or GPU to itself.
"""

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from fedray.common.errors import UserError, format_number
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.datasets.base import Published, load_data
from fedray.engine.cost import find_input_shape
from fedray.engine.process.device import warn_of_slow_precision
from fedray.models import make_model_spec
from fedray.models.base import build
from fedray.models.network import Network
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import count_gradients, get_batch_size, iter_points

PATIENCE = 3.0
"""Approximate seconds of measurement per model, after a first gradient that does not count."""


@dataclass(frozen=True)
class Key:
    """Everything that the duration of a gradient depends on. model: a JSON of its options."""

    model: str
    shape: tuple[int, ...]
    classes: int
    batch: int
    bf16: bool = False

    def __str__(self) -> str:
        options = json.loads(self.model)
        size = "x".join(map(str, self.shape))
        return f"{options['name']}, {size}, {self.classes} classes, batches of {self.batch}" + ", bf16" * self.bf16


def get_facts(run: RunConfig) -> Published | None:
    """Return sizes and shape of a run's data: published, or counted in the data; None if the data are missing."""
    known = run.data.get_expected()
    if known is not None and known.train is not None and known.test is not None:
        return known
    return _count_data(json.dumps(run.data.list_options() | {"validation": None}))


@cache
def _count_data(options: str) -> Published | None:
    try:
        data = load_data(make_data_source(json.loads(options)))
    except UserError:
        return None
    return Published(len(data.y_train), len(data.y_test), data.num_classes, data.input_shape)


def make_key(run: RunConfig, known: Published | None = None) -> Key:
    """Return everything that the duration of a run's gradient depends on; `known` as for `count_gradients`.

    Raises:
        UserError: the data's shape is not known.
    """
    known = known or run.data.get_expected()
    shape, classes = find_input_shape(run, known)
    samples = -(-known.train // run.clients.dealt) if known and known.train else 1
    return Key(
        json.dumps(run.model.list_options() | {"init": None}),
        shape,
        classes,
        get_batch_size(run, samples),
        run.training.precision == "bf16",
    )


@cache
def measure_seconds(key: Key, device: str) -> float:
    """Measure the seconds of one gradient of the cross-entropy in training mode: the median of several, after a first
    one.

    On the CPU this is processor time, so that other work on the machine does not count.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a run does
    try:
        model = make_model_spec(json.loads(key.model))
        module = build(model, key.shape, key.classes)
        model.adapt(module)
        network = Network(
            module,
            device,
            bf16=key.bf16,
            channels_last=model.channels_last if device == "cpu" else key.bf16,
        )
        rng = np.random.default_rng(0)
        x = torch.from_numpy(rng.normal(size=(key.batch, *key.shape)).astype(np.float32)).to(device)
        if model.takes_tokens:
            x = torch.from_numpy(rng.integers(0, key.classes, (key.batch, *key.shape))).to(device)
        y = torch.arange(key.batch, device=device) % key.classes
        network.train(True)
        taken: list[float] = []
        while len(taken) < 2 or (sum(taken) < PATIENCE and len(taken) < 100):
            started = clock()
            torch.autograd.grad(cross_entropy(network(x).logits, y), network.trained)
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(clock() - started)
        return float(np.median(taken[1:]))
    finally:
        torch.set_num_threads(threads)


def list_distinct(sweep: Sweep) -> list[RunConfig]:
    """Return the runs of a sweep's cells, each once, without reading data."""
    found: dict[str, RunConfig] = {}
    for point in iter_points(sweep):
        run = RunConfig.parse(point)
        found.setdefault(json.dumps(run.resolve() | {"runtime": None}, sort_keys=True), run)
    return list(found.values())


def print_estimate(sweep: Sweep) -> list[float | None]:
    """Print gradients, seconds and hours by model, and the load under which they were measured.

    Returns:
        Of each of `list_distinct`, the seconds of one core, or of this machine's GPU; None for data of unknown size.

    Raises:
        UserError: the file is not a valid sweep.
    """
    device, load = "cuda" if torch.cuda.is_available() else "cpu", os.getloadavg()[0]
    found: list[float | None] = []
    counted: dict[Key, list[float]] = defaultdict(list)
    for run in list_distinct(sweep):
        warn_of_slow_precision(run.training.precision, device)
        known = get_facts(run)
        if (number := count_gradients(run, known)) is None:
            found.append(None)
            continue
        key = make_key(run, known)
        counted[key].append(number)
        found.append(number * measure_seconds(key, device))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    unit = "GPU-hours" if device == "cuda" else "core-hours"
    table = Table("cells", "model", "gradients", "seconds each", unit, box=None, pad_edge=False)
    for key, numbers in counted.items():
        length, number = measure_seconds(key, device), sum(numbers)
        table.add_row(
            str(len(numbers)), str(key), f"{number:.3g}", f"{length:.3g}", format_number(number * length / 3600)
        )
    console.print(table)
    where = torch.cuda.get_device_name() if device == "cuda" else "one core of this machine"
    total = sum(filter(None, found)) / 3600
    console.print(
        f"{sweep.name}: {format_number(total)} {unit} on {where}, measured now, each trial alone on it"
        + ("" if device == "cuda" else "; GPU-hours: not measured, there is no GPU here")
    )
    busy = "; other programs slow a measurement: repeat it on an idle machine"
    console.print(f"measured at a load of {load:.1f} on {os.cpu_count()} CPUs" + busy * (load > 0.5), soft_wrap=True)
    if unknown := found.count(None):
        console.print(f"without {unknown} cells whose data are not here and have no published size")
    return found
