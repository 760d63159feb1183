"""The draws of each method and setting of a search, with their cells, and the best of them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedray.sweep.file.space import Space
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import make_draws

Known = Mapping[str, float | None]
"""Hash -> value of `select`, for cells that have an outcome; None if that is not a finished run."""


@dataclass(frozen=True)
class Study:
    """The draws of one method and setting.

    Attributes:
        config: the setting, with the first of its seeds.
        space: the space that is drawn from.
        draws: key -> value of each.
        cells: the hashes of each draw's cells, one per seed.
    """

    config: dict[str, Any]
    space: Space
    draws: list[dict[str, Any]]
    cells: list[list[str]]

    def score(self, known: Known) -> list[float | None]:
        """Return for each draw the mean of `select` over the seeds; None unless every seed has finished."""
        found = [[known.get(cell) for cell in cells] for cells in self.cells]
        finished = [[value for value in values if value is not None] for values in found]
        return [
            sum(values) / len(values) if len(values) == len(cells) else None
            for values, cells in zip(finished, self.cells, strict=True)
        ]

    def find_best(self, known: Known, lower: bool) -> tuple[int, float] | None:
        """Return index and score of the best finished draw, the first of equal ones."""
        scores = [(index, score) for index, score in enumerate(self.score(known)) if score is not None]
        return (min if lower else max)(scores, key=lambda pair: pair[1]) if scores else None


def make_studies(sweep: Sweep, hashes: Iterable[str]) -> list[Study]:
    """Return the studies of a search, in its order, given the hash of each of `iter_points`."""
    studies, left = dict[str, Study](), iter(hashes)
    for config, space in sweep.points:
        setting = {name: value for name, value in config.items() if name != "seed"}
        key = json.dumps([setting, space], sort_keys=True, default=str)
        draws = make_draws(sweep, space)
        study = studies.setdefault(key, Study(config, space, draws, [[] for _ in draws]))
        for cells in study.cells:
            cells.append(next(left))
    return list(studies.values())
