"""Estimate of a sweep's duration on this machine: gradients are counted, and each model's slowest method is timed.

The count covers the gradients of a batch that training, evaluation and personal models take (a forward pass is a third
of one), from the file and the published size of the data, as if clients had equal shards. Only data without a published
size, such as your own arrays, are read. What is timed are rounds of the engine on random data, in as many processes as
cells will run at a time, so that the method's own work and sharing count. Not included: augmentation and communication.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedray.common.errors import UserError, format_count, format_number
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.datasets.base import Published, load_data
from fedray.datasets.dataset import Dataset
from fedray.engine.cost import find_input_shape
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import isolate_run, warn_of_slow_precision
from fedray.engine.server.simulation import Simulation
from fedray.partitions.held_out import Split
from fedray.partitions.shards import Shards
from fedray.sweep.draws import count_gradients, count_of_client, count_samples, get_cost

ROUND = 1.0
"""Approximate seconds that a timed round takes at most."""
SPAN = 10.0
"""Seconds in which rounds are timed: on a busy machine, shorter ones see a burst or a gap."""
START = 14.0
"""Seconds of processor time from a sweep's call to its first cell, measured on two cores."""
CELL = 0.7
"""Seconds of processor time that a cell takes besides its rounds, in its process and in the sweep's, measured on two
cores."""
TURN = 0.5
"""Seconds of them in the sweep's process, which has one cell after another: short cells wait for their turn."""
MANY = 64
"""Most clients in a round that is timed: as many train together at most."""


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
    return _count_data(json.dumps(run.data.list_loading_options()))


@cache
def _count_data(options: str) -> Published | None:
    try:
        data = load_data(make_data_source(json.loads(options)))
    except UserError:
        return None
    return Published(len(data.y_train), len(data.y_test), data.num_classes, data.input_shape)


def make_key(run: RunConfig, known: Published | None = None) -> Key:
    """Return everything that the duration of a run's gradient depends on; `known` as for `count_gradients`."""
    known = known or run.data.get_expected()
    shape, classes = find_input_shape(run, known)
    batch = run.training.find_largest_batch(count_samples(run, known) if known and known.train else 1)
    model = json.dumps(run.model.list_options() | {"init": None})
    return Key(model, shape, classes, batch, run.training.precision == "bf16")


def make_batch(key: Key, takes_tokens: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of random inputs, float32 or token ids `(n, ...)`, and labels int64 `(n,)`."""
    rng = np.random.default_rng(0)
    x: np.ndarray = rng.normal(size=(key.batch, *key.shape)).astype(np.float32)
    if takes_tokens:
        x = rng.integers(0, key.classes, (key.batch, *key.shape))
    return x, np.arange(key.batch) % key.classes


@isolate_run()
def measure_pace(run: RunConfig, key: Key, samples: int, device: str, barrier: Any = None) -> tuple[float, float]:
    """Time rounds of a run's method and model on random data, for `SPAN` seconds, after rounds that do not count.

    Its number of clients (of so many samples) and of local steps are reduced to what takes this long. barrier: where
    processes wait for each other before they measure; None for one process. Return the seconds of one gradient, and the
    slowdown: elapsed time over processor time.
    """
    simulation, count = _make_short(run, key, device, 2, 1)
    for _ in range(2):  # states that start empty fill
        simulation.step()
    began = time.perf_counter()
    simulation.step()
    room = ROUND / (time.perf_counter() - began)  # so many such rounds
    clients = max(2, min(run.clients.largest_cohort, MANY, int(2 * room)))
    steps = max(1, min(run.training.count_steps(samples), int(2 * room / clients)))
    if (clients, steps) != (2, 1):
        simulation, count = _make_short(run, key, device, clients, steps)
        simulation.step()
    if barrier is not None:
        barrier.wait()
    rounds, began, used = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - began) < SPAN or not rounds:
        simulation.step()
        rounds += 1
    used = time.process_time() - used
    slowdown = 1.0 if device == "cuda" else max(elapsed / max(used, 1e-9), 1.0)
    return elapsed / rounds / count, slowdown


def _make_short(run: RunConfig, key: Key, device: str, clients: int, steps: int) -> tuple[Simulation, float]:
    """Return a run on random data with so many clients and tiny local steps, and the gradients of its rounds."""
    short: dict[str, Any] = {"local_steps": steps, "local_epochs": None, "batch_size": key.batch}
    config = RunConfig.parse(
        {
            "data": "digits",
            "partition": "iid",
            "clients": {"total": clients, "per_round": clients},
            "model": json.loads(key.model),
            "algorithm": run.algorithm.list_options(),
            "training": run.training.model_dump() | short | {"rounds": 10**6, "lr": 1e-6},
            "evaluation": {"every": 10**6, "last": 1},
            "runtime": {"backend": "inline", "device": device, "threads": run.runtime.threads},
        }
    )
    x, y = make_batch(key, config.model.takes_tokens)
    own = key.batch * min(steps, 20)  # samples of a client; the batch again and again
    shards = Shards(np.arange(clients * own) % key.batch, np.arange(clients + 1) * own)
    simulation = Simulation(Problem(config, Dataset("random", x, y, x, y, key.classes), Split(shards)), InlineBackend())
    return simulation, clients * count_of_client(config, own)


def rank_work(run: RunConfig, samples: int) -> tuple[float, float]:
    """Return what orders methods by the work of a client: its gradients, then the vectors that it handles."""
    cost = get_cost(run)
    return count_of_client(run, samples), cost.down + cost.up + cost.client


def measure_together(run: RunConfig, key: Key, samples: int, device: str, cells: int) -> tuple[float, float]:
    """Return the mean `measure_pace` of so many processes at the same time. Raises UserError if a process died."""
    if cells == 1:
        return measure_pace(run, key, samples, device)
    context = multiprocessing.get_context("spawn")  # CUDA does not work in a fork
    with ExitStack() as stack:
        barrier = stack.enter_context(context.Manager()).Barrier(cells, timeout=600)
        pool = stack.enter_context(ProcessPoolExecutor(cells, context))
        waiting = [pool.submit(measure_pace, run, key, samples, device, barrier) for _ in range(cells)]
        try:
            seconds, slowdown = np.mean([measured.result() for measured in waiting], axis=0)
        except (BrokenProcessPool, threading.BrokenBarrierError):
            raise UserError(
                f"--estimate: a process died of {cells} that measured {key} at a time; take a smaller --max-concurrent"
            ) from None
    return float(seconds), float(slowdown)


def print_estimate(name: str, runs: Sequence[RunConfig], cells: int = 1) -> tuple[list[float | None], float]:
    """Print gradients, seconds and hours by model, and how and under which load they were measured, `cells` at a time.

    Return, of each run, the seconds of one core, or of this machine's GPU, None for data of unknown size; and the
    seconds until the first cell begins. Raises UserError if so many cells do not fit the memory here.
    """
    device, load = "cuda" if torch.cuda.is_available() else "cpu", os.getloadavg()[0]
    counted = defaultdict[Key, dict[int, tuple[int, float]]](dict)
    for place, run in enumerate(runs):
        warn_of_slow_precision(run.training.precision, device)
        known = get_facts(run)
        if known is not None and known.train and (number := count_gradients(run, known)) is not None:
            counted[make_key(run, known)][place] = count_samples(run, known), number
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    unit = "GPU-hours" if device == "cuda" else "core-hours"
    names = ("cells", "model", "method timed (the slowest)", "gradients", "seconds per gradient", unit)
    table = Table(*names, box=None, pad_edge=False)
    estimates: list[float | None] = [None] * len(runs)
    start, cells, total = START, min(cells, len(runs)), 0.0
    for key, members in counted.items():
        most = max(members, key=lambda place: rank_work(runs[place], members[place][0]))
        slowest, samples = runs[most], members[most][0]
        seconds, slowdown = measure_together(slowest, key, samples, device, cells)
        start = max(start, START * slowdown)
        for place, (_, gradients) in members.items():
            estimates[place] = max(gradients * seconds + CELL * slowdown, cells * TURN * slowdown)
        number = sum(gradients for _, gradients in members.values())
        hours = number * seconds / 3600
        total += hours
        shown = format_number(number), f"{seconds:.3g}", format_number(hours)
        about = (len(members), key, slowest.algorithm.name, *shown)
        table.add_row(*map(str, about))
    console.print(table)
    where = torch.cuda.get_device_name() if device == "cuda" else "one core of this machine"
    console.print(
        f"{name}: {format_number(total)} {unit} of gradients on {where}, measured now with "
        f"{format_count(cells, 'cell')} at a time"
        + ("" if device == "cuda" else "; GPU-hours: not measured, there is no GPU here"),
        soft_wrap=True,
    )
    busy = "; other programs slow a measurement: repeat it on an idle machine"
    console.print(f"measured at a load of {load:.1f} on {os.cpu_count()} CPUs" + busy * (load > 0.5), soft_wrap=True)
    if unknown := estimates.count(None):
        console.print(f"without {unknown} cells whose data are not here and have no published size")
    return estimates, start
