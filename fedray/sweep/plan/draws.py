"""The configurations of a sweep file: cases x grid x draws."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedray.cells.spec import get_dotted
from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.sweep.file.dotted import apply_draw
from fedray.sweep.file.space import DISTRIBUTIONS, Searcher, Space
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.gradients import count_gradients_per_step


def iter_points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield every configuration as written (defaults not filled in), in the file's order.

    Draws of `optuna` follow from results; here those of `sobol` take their place (`fedray.sweep.plan.studies` makes the
    real ones).
    """
    for config, space in sweep.iter_combinations():
        for values in make_draws(sweep, config, space):
            yield apply_draw(config, values)


def make_draws(sweep: Sweep, config: Mapping[str, Any], space: Space) -> list[dict[str, Any]]:
    """Draw for a method and setting, as often as the budget allows; for `optuna` these are placeholders."""
    count = sweep.samples if space else 1
    draws = [draw(space, sweep.searcher, index) for index in range(count)]
    return take_affordable(sweep, config, draws)


def take_affordable(sweep: Sweep, config: Mapping[str, Any], draws: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first draws of a method and setting, as many as `equal_budget` allows.

    Args:
        sweep: the file.
        config: the method and setting.
        draws: draws of its space, in order; at most `samples`.

    Raises:
        UserError: the budget does not allow a single draw.
    """
    if sweep.equal_budget == "draws" or draws == [{}]:
        return list(draws)
    left, affordable = sweep.samples + 1e-6, list[dict[str, Any]]()
    for values in draws:
        run = RunConfig.parse(apply_draw(config, values))
        each = count_gradients_per_step(run)
        left -= each
        if left < 0:
            if not affordable:
                raise UserError(
                    f"samples: found {sweep.samples}; {run.algorithm.name} takes {each:g} gradients per local step, so "
                    "`equal_budget: gradients` allows it no draw"
                )
            break
        affordable.append(values)
    return affordable


def draw(space: Space, searcher: Searcher, index: int) -> dict[str, Any]:
    """Make one draw: key -> value, in the space's order.

    A value depends only on the searcher, the key's name and the index, so it is the same for every method, setting and
    seed, whatever else is searched. Draws of `optuna` after its first generation are made in
    `fedray.sweep.plan.studies`.

    Args:
        space: the searched keys and their distributions.
        searcher: its name and its seed; `optuna` begins with the draws of `sobol`.
        index: the number of the draw, from 0.
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


def find_axes(sweep: Sweep) -> dict[str, bool]:
    """Return the dotted keys that cases, grid and search set, each with True if its values differ.

    A section that is chosen by name gives its name, and its options separately; an option differs if it does so under
    one name.
    """
    keys, rows = sweep.keys, []
    for point in iter_points(sweep):
        row: dict[str, str] = {}
        for key in keys:
            value = get_dotted(point, key)
            if isinstance(value, Mapping):
                row |= {key if k == "name" else f"{key}.{k}": str(v) for k, v in value.items()}
            else:
                row[key] = str(value)
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _differs(rows, name) for name in names}


def _differs(rows: Sequence[Mapping[str, str]], key: str) -> bool:
    """Return True if a key has several values; for an option of a named section, several under one name."""
    section, _, option = key.partition(".")
    values = {(row.get(section) if option else None, row.get(key)) for row in rows}
    return len(values) > len({name for name, _ in values})
