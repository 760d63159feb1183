"""Arguments of fedray's Python functions, checked against their annotations before anything is done."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fedray.common.errors import UserError, truncate_repr

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an argument of a wrong type is a UserError that names it.

    Names of arguments and their number are Python's own business (TypeError). Values are handed on as they are.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = get_type_hints(function)
        for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items():
            if not _fits(value, hints.get(name, Any)):
                wanted = re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(hints[name]))
                raise UserError(f"{function.__name__}: {name}: found {truncate_repr(value)}; {wanted} is required")
        return function(*args, **kwargs)

    return call


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a value has the annotated type; the elements of sequences and the keys of mappings, too."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is Any:
        return True
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return False
    if kind is Sequence:
        return not isinstance(value, str | bytes) and all(_fits(one, inner[0]) for one in value)
    return kind is not Mapping or all(_fits(key, inner[0]) for key in value)
