"""The draws of each method and setting of a search, with their cells, and the best of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedray.sweep.file.points import apply_draw
from fedray.sweep.file.space import Space
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import make_draws

Known = Mapping[str, float | None]
"""Hash -> value of `select`, for cells that have an outcome; None if that is not a finished run."""


@dataclass(frozen=True)
class Draw:
    """One draw of a method and setting.

    Attributes:
        values: key -> value.
        cells: the cells, one per seed.
    """

    values: dict[str, Any]
    cells: list[Cell]

    def score(self, known: Known) -> float | None:
        """Return the mean of `select` over the seeds; None unless every seed has finished."""
        found = [known.get(cell.hash) for cell in self.cells]
        finished = [value for value in found if value is not None]
        return sum(finished) / len(found) if len(finished) == len(found) else None


@dataclass(frozen=True)
class Study:
    """The draws of one method and setting.

    Attributes:
        configs: the setting, once for each seed.
        space: the space that is drawn from.
        draws: by index.
    """

    configs: list[dict[str, Any]]
    space: Space
    draws: list[Draw]

    def find_best(self, known: Known, lower: bool) -> tuple[int, float] | None:
        """Return index and score of the best finished draw, the first of equal ones."""
        scores = [(index, score) for index, one in enumerate(self.draws) if (score := one.score(known)) is not None]
        if not scores:
            return None
        return (min if lower else max)(scores, key=lambda pair: pair[1])


def make_studies(sweep: Sweep, make: Callable[[dict[str, Any]], Cell]) -> list[Study]:
    """Return the studies of a sweep, in its order."""
    groups: dict[str, tuple[list[dict[str, Any]], Space]] = {}
    for config, space in sweep.points:
        setting = {name: value for name, value in config.items() if name != "seed"}
        key = json.dumps([setting, space], sort_keys=True, default=str)
        groups.setdefault(key, ([], space))[0].append(config)
    return [
        Study(
            configs,
            space,
            [
                Draw(values, [make(apply_draw(config, values)) for config in configs])
                for values in make_draws(sweep, space)
            ],
        )
        for configs, space in groups.values()
    ]
