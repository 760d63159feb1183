"""Draws of a search, given the finished cells: one study per method and setting.

`random` and `sobol` make all draws at once. `optuna` makes them in generations of a fixed size: a generation is asked
for when every cell of the previous one has an outcome, and depends on the outcomes of all earlier draws. So the draws
depend only on results, not on the number of concurrent cells or on kills. With a scheduler that ends cells early the
results themselves depend on timing, and so do the draws.

Another version of Optuna may draw other values from the same results. So the draws of `optuna` are stored with the
sweep, and a later call goes on from these.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedray.common.errors import UserError, truncate_repr
from fedray.common.rng import make_key
from fedray.components.identity import hash_of
from fedray.sweep.file.entries import apply_draw
from fedray.sweep.file.space import Space, round_short
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import draw

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
        key: its key in the store: a hash of the setting and of everything that the draws depend on, but the results.
        asked: their values, and further ones that the store has from a call with more `samples`.
    """

    def __init__(
        self,
        sweep: Sweep,
        configs: list[dict[str, Any]],
        space: Space,
        make: Make,
        stored: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self.configs, self.space, self.draws = configs, space, list[Draw]()
        setting = {name: value for name, value in configs[0].items() if name not in ("seed", "runtime")}
        rules = [setting, space, sweep.searcher.model_dump(), sweep.select]
        self.key = hash_of({"study": json.loads(json.dumps(rules, default=str))})
        self.asked = list(stored.get(self.key, ()))
        if strange := [values for values in self.asked if not _fits(values, space)]:
            raise UserError(
                f"{sweep.name}: the store has the draw {truncate_repr(strange[0])}, which is not from `search`"
            )
        self.samples = sweep.samples if space else 1
        self._sweep, self._make = sweep, make

    def advance(self, known: Known) -> list[Cell]:
        """Make the draws that can be made now, and return their cells."""
        new: list[Cell] = []
        while len(self.draws) < self.samples and all(cell.hash in known for one in self.draws for cell in one.cells):
            if len(self.asked) == len(self.draws):
                self.asked += self._ask(known)
            made = [
                Draw(values, [self._make(apply_draw(config, values)) for config in self.configs])
                for values in self.asked[len(self.draws) : self.samples]
            ]
            self.draws += made
            new += [cell for one in made for cell in one.cells]
        return new

    def _ask(self, known: Known) -> list[dict[str, Any]]:
        return [draw(self.space, self._sweep.searcher, index) for index in range(self.samples)]

    def find_best(self, known: Known, lower: bool) -> tuple[int, float] | None:
        """Return index and score of the best finished draw, the first of equal ones."""
        scores = [(index, score) for index, one in enumerate(self.draws) if (score := one.score(known)) is not None]
        if not scores:
            return None
        return (min if lower else max)(scores, key=lambda pair: pair[1])


def _fits(values: Any, space: Space) -> bool:
    """Return True if a stored draw has a value for each key of a space, and for a choice one of its values."""
    if not isinstance(values, Mapping) or values.keys() != space.keys():
        return False
    return all(
        json.dumps(values[key]) in map(json.dumps, arguments)
        if kind == "choice"
        else isinstance(values[key], int | float)
        for key, distribution in space.items()
        for kind, arguments in distribution.items()
    )


class LearningStudy(Study):
    """Draws of Optuna's TPE (Bergstra et al., Algorithms for hyper-parameter optimization, NeurIPS 2011).

    The first generation is `sobol`'s.
    """

    def _ask(self, known: Known) -> list[dict[str, Any]]:
        first = len(self.draws)
        count = min(self._sweep.searcher.generation or GENERATION, self.samples - first)
        if not first:
            return [draw(self.space, self._sweep.searcher, index) for index in range(count)]
        import optuna  # here: a second to import, which only this searcher needs

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=make_key(self._sweep.searcher.seed, "tpe", first) % 2**32,
                n_startup_trials=1,
                multivariate=False,  # Optuna 5's default differs from 4's
                constant_liar=True,
            )
        lower = self._sweep.metric.is_smaller_better
        study = optuna.create_study(sampler=sampler, direction="minimize" if lower else "maximize")
        study.add_trials([self._make_trial(one, known) for one in self.draws])
        asked = [study.ask(self._distributions) for _ in range(count)]
        return [{key: self._decode(key, trial.params[key]) for key in self.space} for trial in asked]

    def _make_trial(self, one: Draw, known: Known) -> Any:
        from optuna.trial import TrialState, create_trial

        score = one.score(known)
        finished = score is not None and math.isfinite(score)
        return create_trial(
            # Diverged cells and those ended early count as pruned: TPE ranks them below all finished ones.
            state=TrialState.COMPLETE if finished else TrialState.PRUNED,
            value=score if finished else None,
            params={key: self._encode(key, value) for key, value in one.values.items()},
            distributions=self._distributions,
        )

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

    def _encode(self, key: str, value: Any) -> Any:
        ((kind, arguments),) = self.space[key].items()
        if kind == "choice":
            return [json.dumps(one) for one in arguments].index(json.dumps(value))
        return value if kind == "randint" else min(max(value, arguments[0]), arguments[1])  # it is rounded

    def _decode(self, key: str, value: Any) -> Any:
        ((kind, arguments),) = self.space[key].items()
        if kind == "choice":
            return arguments[value]
        return value if kind == "randint" else round_short(value)


def make_studies(
    sweep: Sweep, make: Make, stored: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({})
) -> list[Study]:
    """Make the studies of a sweep, in its order and without draws.

    Args:
        sweep: the file; its cases and grid, without the seeds, give the methods and settings.
        make: returns the cell of a configuration.
        stored: key of a study -> values of the draws that earlier calls have asked for; for a search that learns.

    Raises:
        UserError: stored values are not from the study's space.
    """
    groups: dict[str, tuple[list[dict[str, Any]], Space]] = {}
    for config, space in sweep.iter_combinations():
        setting = {name: value for name, value in config.items() if name != "seed"}
        key = json.dumps([setting, space], sort_keys=True, default=str)
        groups.setdefault(key, ([], space))[0].append(config)
    kind = LearningStudy if sweep.searcher.name == "optuna" else Study
    return [(kind if space else Study)(sweep, configs, space, make, stored) for configs, space in groups.values()]


def advance(all_studies: list[Study], known: Known) -> Iterator[Cell]:
    """Yield the cells that can be run now and are new, each once."""
    seen = {cell.hash for study in all_studies for one in study.draws for cell in one.cells}
    for study in all_studies:
        for cell in study.advance(known):
            if cell.hash not in seen:
                seen.add(cell.hash)
                yield cell
