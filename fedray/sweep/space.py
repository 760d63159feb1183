"""Search spaces: the distribution of each key, and the draws of `random` and `sobol`, which ignore results."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fedray.common.errors import UserError, truncate_repr, unknown
from fedray.common.yaml_files import format_flow
from fedray.components.base import Checked, describe, format_value

Space = dict[str, dict[str, list[Any]]]
"""Dotted key -> {distribution: arguments}, as in a sweep file."""


class Searcher(Checked):
    """Draws the values of `search`."""

    name: Literal["random", "sobol"] = Field(
        "random",
        description="random: independent draws; sobol: for each key a scrambled sequence, which covers the range "
        "evenly",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the draws; not the seed of a run")


def round_short(value: float) -> float:
    """Round to six significant digits, which a person can type again."""
    return float(f"{value:.6g}")


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "uniform": lambda u, low, high: round_short(low + u * (high - low)),
    "loguniform": lambda u, low, high: round_short(math.exp(math.log(low) + u * (math.log(high) - math.log(low)))),
    "randint": lambda u, low, high: min(low + int(u * (high - low)), high - 1),
    "choice": lambda u, *values: values[min(int(u * len(values)), len(values) - 1)],
}
"""Name -> function that returns the value at the quantile u in [0, 1)."""
ARGUMENTS = {
    "uniform": "[LOW, HIGH]",
    "loguniform": "[LOW, HIGH], above 0",
    "randint": "[LOW, HIGH), integers",
    "choice": "a list of values, at least one",
}
"""Arguments of each distribution, for messages."""


def check_space(where: str, found: Any) -> Space:
    """Return the space at a key of the file. Raises UserError, which names the key, for what cannot be drawn from."""
    for key, value in found.items() if isinstance(found, Mapping) else ():
        if isinstance(value, list):
            raise UserError(
                f"{where}.{key}: found {truncate_repr(value)}; a distribution is required, such as "
                f"{{choice: {truncate_repr(value)}}} or {{loguniform: [LOW, HIGH]}}"
            )
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
        if not _takes(kind, arguments):
            raise UserError(
                f"{where}.{key}: {kind} does not take {truncate_repr(arguments)}; {ARGUMENTS[kind]} is required"
            )
        if kind == "choice":
            refuse_repeats(f"{where}.{key}.choice", arguments)
    return space


def refuse_repeats(where: str, values: Sequence[Any]) -> None:
    """Raise UserError, which names the key, for a list that has a value twice."""
    written = [repr(value) for value in values]
    if len(set(written)) < len(values):
        twice = next(value for value in values if written.count(repr(value)) > 1)
        raise UserError(f"{where}: lists {format_flow([twice])[1:-1]} more than once")


def _takes(kind: str, arguments: list[Any]) -> bool:
    """Return True if a distribution can be drawn from with these arguments."""
    if kind == "choice":
        return bool(arguments)
    number = int if kind == "randint" else int | float
    if len(arguments) != 2 or not all(isinstance(one, number) and not isinstance(one, bool) for one in arguments):
        return False
    low, high = arguments
    if low > high or (kind == "randint" and low == high):
        return False
    try:
        return math.isfinite(DISTRIBUTIONS[kind](0.5, low, high))
    except (ValueError, ArithmeticError):  # the logarithm of 0, a number that is too large
        return False


def format_range(distribution: Mapping[str, list[Any]], tried: Collection[Any]) -> str:
    """Format the range of a key for a reader: `[0.01, 0.5], log`, `{all, body, head}`; if some values of a choice
    were not tried, `{all, head}, drawn from {all, body, head}`.
    """
    ((kind, arguments),) = distribution.items()
    if kind == "choice":
        met = [value for value in arguments if value in tried]
        sets = (f"{{{', '.join(map(format_value, values))}}}" for values in (met, arguments))
        return ", drawn from ".join(dict.fromkeys(sets))
    close = ")" if kind == "randint" else "]"
    log = ", log" if kind == "loguniform" else ""
    return f"[{format_value(arguments[0])}, {format_value(arguments[1])}{close}{log}"


NEAR_END = 0.05
"""Part of a continuous range (logarithmic if drawn so) that counts as its end."""


def is_at_edge(best: Any, distribution: Mapping[str, list[Any]], tried: Collection[Any]) -> bool:
    """Return True if the best value is at an end of its range, so that a better one may exist outside.

    The smallest and the largest of a choice's numbers that were tried, and the outer 5 % of a continuous range, are at
    an end; of a choice without an order none is.
    """
    ((kind, arguments),) = distribution.items()
    if kind == "choice":
        is_ordered = all(isinstance(one, int | float) and not isinstance(one, bool) for one in arguments)
        return is_ordered and len(set(arguments)) > 1 and best in (min(tried), max(tried))
    low, high = arguments
    if kind == "randint":
        return high - low > 1 and best in (low, high - 1)
    if low == high:
        return False
    if kind == "loguniform":
        low, high, best = math.log(low), math.log(high), math.log(best)
    part = (best - low) / (high - low)
    return bool(part <= NEAR_END or part >= 1 - NEAR_END)
