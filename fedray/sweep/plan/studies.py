"""Draws of a search, given the finished cells: one study per method and setting.

`random` and `sobol` make all draws at once. `optuna` makes them in generations of a fixed size: a generation is asked
for when every cell of the previous one has an outcome, and outcomes are passed on in the order of the draws. So the
draws depend only on results, not on the number of concurrent cells or on kills: another call replays what is known.
With a scheduler that ends cells early the results themselves depend on timing, and so do the draws.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedray.sweep.file.dotted import apply_draw
from fedray.sweep.file.space import Space, round_short
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import draw, take_affordable

Known = Mapping[str, float | None]
"""Hash -> value of `select`, for cells that have an outcome; None if that is not a finished run."""
GENERATION = 8
"""Number of draws that TPE makes together."""
Make = Callable[[dict[str, Any]], Cell]
"""Returns the cell of a configuration written as in a sweep file."""


@dataclass(frozen=True)
class Draw:
    """One draw of a method and setting.

    Attributes:
        values: key -> value.
        cells: the cells, one per seed.
    """

    values: dict[str, Any]
    cells: list[Cell]

    def is_known(self, known: Known) -> bool:
        """Return True if all its cells have an outcome."""
        return all(cell.hash in known for cell in self.cells)

    def score(self, known: Known) -> float | None:
        """Return the mean of `select` over the seeds; None unless every seed has finished."""
        found = [known.get(cell.hash) for cell in self.cells]
        finished = [value for value in found if value is not None]
        return sum(finished) / len(found) if len(finished) == len(found) else None


class Study:
    """The draws of one method and setting.

    Attributes:
        configs: the setting, once for each seed.
        space: the space to draw from.
        draws: the draws made so far, by index.
    """

    def __init__(self, sweep: Sweep, configs: list[dict[str, Any]], space: Space, make: Make) -> None:
        self.configs, self.space, self.draws = configs, space, list[Draw]()
        self.samples = sweep.samples if space else 1
        self._sweep, self._make, self._spent = sweep, make, False

    def advance(self, known: Known) -> list[Cell]:
        """Make the draws that can be made now, and return their cells."""
        new: list[Cell] = []
        while not self._spent and all(one.is_known(known) for one in self.draws):
            all_draws = [*(one.values for one in self.draws), *self._ask(known)]
            afforded = take_affordable(self._sweep, self.configs[0], all_draws)
            self._spent = len(afforded) < len(all_draws) or len(all_draws) == self.samples
            made = [self._make_draw(values) for values in afforded[len(self.draws) :]]
            self.draws += made
            new += [cell for one in made for cell in one.cells]
        return new

    def _ask(self, known: Known) -> list[dict[str, Any]]:
        return [draw(self.space, self._sweep.searcher, index, self.samples) for index in range(self.samples)]

    def _make_draw(self, values: dict[str, Any]) -> Draw:
        return Draw(values, [self._make(apply_draw(config, values)) for config in self.configs])

    def find_best(self, known: Known, lower: bool) -> tuple[int, float] | None:
        """Return index and score of the best finished draw, the first of equal ones."""
        scores = [(index, score) for index, one in enumerate(self.draws) if (score := one.score(known)) is not None]
        if not scores:
            return None
        return (min if lower else max)(scores, key=lambda pair: pair[1])


class LearningStudy(Study):
    """Draws of Optuna's TPE (Bergstra et al., Algorithms for hyper-parameter optimization, NeurIPS 2011)."""

    def __init__(self, sweep: Sweep, configs: list[dict[str, Any]], space: Space, make: Make) -> None:
        import optuna  # here: a second to import, which only this searcher needs

        super().__init__(sweep, configs, space, make)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=sweep.searcher.seed,
                n_startup_trials=sweep.searcher.generation or GENERATION,
                constant_liar=True,
            )
        self._study = optuna.create_study(
            sampler=sampler, direction="minimize" if sweep.metric.is_smaller_better else "maximize"
        )
        self._asked: list[optuna.Trial] = []
        self._told = 0
        self._generation = sweep.searcher.generation or GENERATION

    def _ask(self, known: Known) -> list[dict[str, Any]]:
        from optuna.trial import TrialState

        for one in self.draws[self._told :]:
            score, trial = one.score(known), self._asked[self._told]
            # Diverged cells and those ended early count as pruned: TPE ranks them below all finished ones.
            self._study.tell(trial, score, None if score is not None else TrialState.PRUNED)
            self._told += 1
        count = min(self._generation, self.samples - len(self.draws))
        asked = [self._study.ask(self._distributions) for _ in range(count)]
        self._asked += asked
        return [{key: self._decode(key, trial.params[key]) for key in self.space} for trial in asked]

    @property
    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        made: dict[str, Any] = {}
        for key, distribution in self.space.items():
            ((kind, arguments),) = distribution.items()
            if kind == "choice":  # by number: a choice may hold lists and mappings, which Optuna does not take
                made[key] = CategoricalDistribution(range(len(arguments)))
            elif kind == "randint":
                made[key] = IntDistribution(arguments[0], arguments[1] - 1)
            else:
                made[key] = FloatDistribution(arguments[0], arguments[1], log=kind == "loguniform")
        return made

    def _decode(self, key: str, value: Any) -> Any:
        ((kind, arguments),) = self.space[key].items()
        if kind == "choice":
            return arguments[value]
        return value if kind == "randint" else round_short(value)


def make_studies(sweep: Sweep, make: Make) -> list[Study]:
    """Make the studies of a sweep, in its order and without draws.

    Args:
        sweep: the file; its cases and grid, without the seeds, give the methods and settings.
        make: returns the cell of a configuration.
    """
    groups: dict[str, tuple[list[dict[str, Any]], Space]] = {}
    for config, space in sweep.iter_combinations():
        setting = {name: value for name, value in config.items() if name != "seed"}
        key = json.dumps([setting, space], sort_keys=True, default=str)
        groups.setdefault(key, ([], space))[0].append(config)
    kind = LearningStudy if sweep.searcher.name == "optuna" else Study
    return [(kind if space else Study)(sweep, configs, space, make) for configs, space in groups.values()]


def advance(all_studies: list[Study], known: Known) -> Iterator[Cell]:
    """Yield the cells that can be run now and are new, each once."""
    seen = {cell.hash for study in all_studies for one in study.draws for cell in one.cells}
    for study in all_studies:
        for cell in study.advance(known):
            if cell.hash not in seen:
                seen.add(cell.hash)
                yield cell
