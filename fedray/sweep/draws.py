"""The configurations of a sweep file: cases x grid x draws, and the batch gradients that a run of each takes.

Gradients are counted from the file and the published size of the data, as if clients had equal shards; nothing is read.
A method's gradients per local step are measured (`engine.cost`).
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedray.algorithms import algorithm
from fedray.cells.cell import get_dotted
from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.datasets.base import Published
from fedray.engine.cost import Cost, measure_cost
from fedray.sweep.points import apply_draw
from fedray.sweep.space import DISTRIBUTIONS, Searcher, Space
from fedray.sweep.sweep import Sweep

FORWARD = 1 / 3
"""Cost of a forward pass relative to a gradient, which takes three passes of equal length, two of them backward."""


def iter_points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield every configuration as written (defaults not filled in), in the file's order."""
    for config, space in sweep.points:
        for values in make_draws(sweep, space):
            yield apply_draw(config, values)


def make_draws(sweep: Sweep, space: Space) -> list[dict[str, Any]]:
    """Return the draws of a method and setting; one without values if nothing is searched."""
    return [draw(space, sweep.searcher, index) for index in range(sweep.samples if space else 1)]


def draw(space: Space, searcher: Searcher, index: int) -> dict[str, Any]:
    """Make draw number `index`, from 0: key -> value, in the space's order.

    A value depends only on the searcher, the key's name and the index, so it is the same for every method, setting and
    seed, and does not depend on the other keys.
    """
    values = dict[str, Any]()
    for key, distribution in space.items():
        ((kind, arguments),) = distribution.items()
        if searcher.name == "random":
            quantile = float(generator(searcher.seed, f"search/{key}", index).random())
        else:
            quantile = _make_sobol_points(key, index.bit_length(), searcher.seed)[index]
        values[key] = DISTRIBUTIONS[kind](quantile, *arguments)
    return values


@cache
def _make_sobol_points(key: str, doublings: int, seed: int) -> list[float]:
    """Return the first 2^doublings points of a key's own scrambled Sobol sequence in [0, 1).

    In one dimension, Owen's scrambling (Randomly permuted (t,m,s)-nets and (t,s)-sequences, 1995) has one point in each
    n-th of the range for n = 2^m points, and puts the next n into the halves of these parts that are still empty, each
    at random within its half. Sobol's order of these halves is that of their neighbours: all keys would be high in the
    same draws, or low. So each key has a random order of its own.
    """
    keyed = generator(seed, f"sequence/{key}")
    points = keyed.random(1)
    for _ in range(doublings):
        empty = np.floor(2 * len(points) * points).astype(int) ^ 1
        points = np.append(points, (keyed.permutation(empty) + keyed.random(len(empty))) / (2 * len(points)))
    return [float(point) for point in points]


def find_axes(keys: Sequence[str], points: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Return the dotted keys that cases, grid and search set (`Sweep.keys`), each with True if its values differ.

    A section that is chosen by name gives its name, and its options separately; an option differs if it does so under
    one name.
    """
    rows = []
    for point in points:
        row: dict[str, str] = {}
        for key in keys:
            value = get_dotted(point, key)
            if isinstance(value, Mapping):
                row |= {key if k == "name" else f"{key}.{k}": str(v) for k, v in value.items()}
            else:
                row[key] = str(value)
        rows.append(row)
    axes = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        section, _, option = name.partition(".")
        values = {(row.get(section) if option else None, row.get(name)) for row in rows}
        axes[name] = len(values) > len({chosen for chosen, _ in values})
    return axes


def count_gradients(run: RunConfig, known: Published | None = None) -> float | None:
    """Return the batch gradients that a run takes, a forward pass counting as a third; None for data of unknown size.

    known: sizes of its data; None for the published ones.
    """
    known = known or run.data.get_expected()
    total = count_training_gradients(run, known)
    if total is None or known is None or known.train is None or known.test is None:
        return None
    training, evaluation, method = run.training, run.evaluation, run.algorithm
    (train, test), samples = count_split(run, known), count_samples(run, known)
    batch, epoch = training.find_largest_batch(samples), training.count_steps_per_epoch(samples)
    client = count_of_client(run, samples)
    rounds = range(1, training.rounds + 1)
    testing = FORWARD * test / batch * (1 if method.keeps == "none" else run.clients.total)
    testing += evaluation.train * FORWARD * train / batch
    total += testing * sum(evaluation.is_due(t, training.rounds) for t in rounds)
    if evaluation.personal is not None:
        times = sum(evaluation.is_personal_due(t, training.rounds) for t in rounds)
        tuning = {"tuned": sum(evaluation.personal.tuned) * epoch, "trained": client, "kept": 0}[method.personal]
        total += times * run.clients.total * tuning
        total += times * run.clients.unseen * sum(evaluation.personal.tuned) * epoch
    return total


def count_training_gradients(run: RunConfig, known: Published | None = None) -> float | None:
    """Return the part of `count_gradients` that its training takes; None also if it cannot be counted."""
    known = known or run.data.get_expected()
    if known is None or known.train is None:
        return None
    samples = count_samples(run, known)
    try:
        of_client = count_of_client(run, samples)
    except UserError:  # a method of the user's own that does not take the small model on which it is counted
        return None
    rounds, clients = run.training.rounds, run.clients
    trained = rounds * clients.cohort_size if clients.cohorts is None else sum(map(len, clients.cohorts[:rounds]))
    return trained * of_client


def count_of_client(run: RunConfig, samples: int) -> float:
    """Return the batch gradients of a client with this many samples in a round."""
    passes, training = get_cost(run), run.training
    of_step = passes.gradients + FORWARD * passes.predictions
    of_epoch = passes.full_gradients + FORWARD * passes.full_predictions
    return training.count_steps(samples) * of_step + training.count_steps_per_epoch(samples) * of_epoch


def count_split(run: RunConfig, known: Published) -> tuple[float, float]:
    """Return the samples that are trained on, without those held out, and the test samples; 0 for an unknown number."""
    train, test, data = float(known.train or 0), float(known.test or 0), run.data
    if data.test is not None:
        train, test = (train + test) * (1 - data.test.fraction), (train + test) * data.test.fraction
    return train * (1 - (data.validation.fraction if data.validation is not None else 0.0)), test


def count_samples(run: RunConfig, known: Published) -> int:
    """Return the samples that a client trains on if all have equally many."""
    return math.ceil(count_split(run, known)[0] / run.clients.dealt)


def get_cost(run: RunConfig, model: object = None, *inputs: Any) -> Cost:
    """Return the measured costs of a run's method, by default with the small model of `measure_cost`."""
    sources = run.algorithm.source, run.model.source  # a notebook can load a class again
    return _measure_once(json.dumps([run.algorithm.list_options(), model, sources]), *inputs)


@cache
def _measure_once(components: str, *inputs: Any) -> Cost:
    method, model, _ = json.loads(components)
    return measure_cost(algorithm(method), model, *inputs)
