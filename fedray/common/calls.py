"""Values that cross the border between fedray and a user's code, checked against annotations: arguments of fedray's
Python functions, and what the methods of a user's own class return.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from numbers import Integral
from types import SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fedray.common.errors import UserError, truncate_repr, warn_once

P = ParamSpec("P")
R = TypeVar("R")
DEEPEST = 50
"""Levels of a configuration from Python; a deeper one is presumed to contain itself."""


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an argument of a wrong type is a UserError that names it.

    Each call warns anew (`warn_once`). Names of arguments and their number give Python's TypeError, as of the function
    itself. Values are handed on as they are.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        annotations = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        hints = get_type_hints(SimpleNamespace(__annotations__=annotations, __wrapped__=function))
        try:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        for name, value in given.items():
            if not fits(value, hint := hints.get(name, Any)):
                found = f"found {truncate_repr(value)}; {format_hint(hint)} is required"
                raise UserError(f"{function.__name__}: {name}: {found}")
        warn_once.cache_clear()
        return function(*args, **kwargs)

    return call


def check_return(place: str, function: Callable[P, R], hint: Any) -> Callable[P, R]:
    """Return a user's function that raises UserError, beginning with `place`, if its result does not fit the hint."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        value = function(*args, **kwargs)
        if not fits(value, hint):
            raise UserError(f"{place} returns {truncate_repr(value)}; {format_hint(hint)} is required")
        return value

    return call


def format_hint(hint: Any) -> str:
    """Return an annotation as text, without the modules of its classes."""
    return re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(hint)).replace("NoneType", "None")


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value has the annotated type; elements of sequences and sets, keys and values of mappings, too.

    NumPy's integers are integers, anything that gives a float (such as a tensor of one element) is a float, and any
    mapping is a dictionary.
    """
    bases = getattr(hint, "__orig_bases__", ())  # of `class Vectors(dict[str, Tensor])`
    hint = next((base for base in bases if get_origin(base) is dict), hint)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Any:
        return True
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if kind is float:
        return hasattr(value, "__float__")
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind in (Sequence, Set):
        return isinstance(value, kind) and not isinstance(value, str | bytes) and all(fits(v, inner[0]) for v in value)
    if kind in (Mapping, dict):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(value[k], inner[1]) for k in value)
    return isinstance(value, kind)


def make_plain(place: str, value: Any) -> Any:
    """Return a value of a user's code as a YAML file would give it: numbers, texts, lists and mappings.

    It may hold NumPy's or PyTorch's numbers, and arrays and tensors of one dimension, which become lists. Raises
    UserError, with the key, if a part could not stand in a file.
    """
    if place.count(".") > DEEPEST:
        raise UserError(f"{truncate_repr(place)}: is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: make_plain(f"{place}.{key}".lstrip("."), one) for key, one in value.items()}
    if hasattr(value, "tolist") and getattr(value, "ndim", 2) < 2:
        return make_plain(place, value.tolist())
    if isinstance(value, list | tuple | range | Iterator):
        return [make_plain(f"{place}.{number}", one) for number, one in enumerate(value)]
    kinds = "a number, a text, a list or a mapping whose keys are texts"
    raise UserError(f"{place}: found {truncate_repr(value)}; {kinds} is required, as in a file")
