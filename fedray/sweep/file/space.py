"""What a search draws: the distribution of each key, and the draws of `random` and `sobol`. No results in here."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fedray.common.component import Checked, as_written, describe
from fedray.common.errors import UserError, truncated_repr, unknown
from fedray.common.rng import generator

Space = dict[str, dict[str, list[Any]]]
"""Dotted key -> {distribution: arguments}, as a sweep file has it."""


class Searcher(Checked):
    """Who draws the values of `search`."""

    name: Literal["random", "sobol", "optuna"] = Field(
        "random",
        description="random: independent draws; sobol: a scrambled Sobol sequence, which covers the space evenly; "
        "optuna: TPE, which learns from the cells that have finished",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="of the draws; not the seed of a run")
    generation: int | None = Field(
        None, gt=0, description="optuna: draws that are made together, before any of their results is known; default 8"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.generation is not None and self.name != "optuna":
            raise UserError(f"searcher.generation: belongs to optuna; {self.name} learns nothing")
        return self


def short(value: float) -> float:
    """Six significant digits, which a person can type again."""
    return float(f"{value:.6g}")


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "uniform": lambda u, low, high: short(low + u * (high - low)),
    "loguniform": lambda u, low, high: short(math.exp(math.log(low) + u * (math.log(high) - math.log(low)))),
    "randint": lambda u, low, high: min(low + int(u * (high - low)), high - 1),
    "choice": lambda u, *values: values[min(int(u * len(values)), len(values) - 1)],
}
"""Name -> the value at the quantile u in [0, 1)."""
ARGUMENTS = {
    "uniform": "[LOW, HIGH]",
    "loguniform": "[LOW, HIGH], above 0",
    "randint": "[LOW, HIGH), integers",
    "choice": "a list of values, at least one",
}
"""What they take, for messages."""
RANDOM: dict[str, Callable[..., Any]] = {
    "uniform": lambda rng, low, high: short(rng.uniform(low, high)),
    "loguniform": lambda rng, low, high: short(math.exp(rng.uniform(math.log(low), math.log(high)))),
    "randint": lambda rng, low, high: int(rng.integers(low, high)),
    "choice": lambda rng, *values: values[int(rng.integers(len(values)))],
}
"""The draws of `random`. They keep NumPy's own way, so that the cells of earlier searches are found."""


def check_space(where: str, found: Any) -> Space:
    """Refuse distributions that cannot be drawn from.

    Args:
        where: the key of the file that holds the space.
        found: what it holds.

    Raises:
        UserError: naming the key.
    """
    try:
        space = TypeAdapter(Space).validate_python(found)
    except ValidationError as error:
        raise describe(error, where) from None
    for key, distribution in space.items():
        if len(distribution) != 1:
            raise UserError(f"{where}.{key}: one distribution is required, found {list(distribution)}")
        ((kind, arguments),) = distribution.items()
        if kind not in DISTRIBUTIONS:
            raise unknown(f"{where}.{key}", kind, DISTRIBUTIONS)
        try:
            if kind != "choice" and not _are_numbers(arguments, int if kind == "randint" else int | float):
                raise TypeError
            RANDOM[kind](np.random.default_rng(0), *arguments)
        except (TypeError, ValueError, ArithmeticError):
            raise UserError(
                f"{where}.{key}: {kind} does not take {truncated_repr(arguments)}; {ARGUMENTS[kind]} is required"
            ) from None
    return space


def _are_numbers(values: list[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def draw(space: Space, searcher: Searcher, index: int, count: int) -> dict[str, Any]:
    """The draw of an index: key -> value, in the space's order.

    Draws of `random` and `sobol` depend on nothing but the searcher's seed, the key and the index, so they are the same
    for every method, setting and seed. Those of `optuna` are not made here but in `fedray.sweep.studies`.

    Args:
        space: The searched keys and their distributions.
        searcher: Who draws, `random` or `sobol`, and its seed.
        index: Which draw, from 0.
        count: How many draws there are.
    """
    if searcher.name == "sobol":
        points = _sobol(len(space), count, searcher.seed)[index]
        return {
            key: DISTRIBUTIONS[kind](float(u), *arguments)
            for u, (key, distribution) in zip(points, space.items(), strict=True)
            for kind, arguments in distribution.items()
        }
    return {
        key: RANDOM[kind](generator(searcher.seed, f"search/{key}", index), *arguments)
        for key, distribution in space.items()
        for kind, arguments in distribution.items()
    }


@cache
def _sobol(keys: int, count: int, seed: int) -> np.ndarray:
    """The first points of a scrambled Sobol sequence in [0, 1)^keys, `(count, keys)` (Owen's scrambling)."""
    from scipy.stats import qmc  # here: half a second to import

    size = 1 << (count - 1).bit_length()  # a whole net; its first points are the same for every size
    points: np.ndarray = qmc.Sobol(keys, scramble=True, rng=np.random.default_rng(seed)).random(size)
    return points[:count]


def written(distribution: Mapping[str, list[Any]]) -> str:
    """The range of a key as a reader wants it: `[0.01, 0.5], log`, `{all, body, head}`."""
    ((kind, arguments),) = distribution.items()
    if kind == "choice":
        return "{" + ", ".join(as_written(value) for value in arguments) + "}"
    close = ")" if kind == "randint" else "]"
    log = ", log" if kind == "loguniform" else ""
    return f"[{as_written(arguments[0])}, {as_written(arguments[1])}{close}{log}"


def at_edge(best: Any, drawn: list[Any]) -> bool:
    """Whether nothing was tried between the best value and an end of its range.

    Args:
        best: the chosen value of a key.
        drawn: its values in all draws.

    Returns:
        For numbers whether `best` is the smallest or the largest that was drawn, of at least two different ones. A
        choice of things without an order has no edge.
    """
    values = [value for value in drawn if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) < len(drawn) or len(set(values)) < 2:
        return False
    return bool(best in (min(values), max(values)))
