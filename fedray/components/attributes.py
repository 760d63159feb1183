"""Attributes of an object of a user's class besides its options. Numbers would go on in them from client to client, and
a resume would lose them.
"""

import sys
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.common.rng import read_generator
from fedray.components.base import Component

CHANGEABLE = (dict, list, set, deque, bytearray, int, float, Tensor, np.ndarray, nn.Module, torch.optim.Optimizer)
"""Types of the attributes that may change, besides objects of the user's own classes."""
LIBRARIES = ("fedray.", "pydantic.")


def list_attributes(component: Component) -> dict[str, str]:
    """Return attributes, the object's own and its classes', as texts that change with them."""
    bases = type(component).__mro__
    names = _list_names(type(component), tuple(len(vars(base)) for base in bases))
    found = {name: vars(base)[name] for name, base in names if name in vars(base)}
    computed = {name: value for name, value in vars(component).items() if name not in type(component).model_fields}
    found |= computed | (component.__pydantic_private__ or {})
    return {name: _describe(value, type(component)) for name, value in found.items()}


@cache
def _list_names(kind: type, counts: tuple[int, ...]) -> list[tuple[str, type]]:
    """Return the names of a class's attributes that may change, and the base that has each. counts: of their names."""
    return [
        (name, base)
        for base in reversed(kind.__mro__)
        if not base.__module__.startswith(LIBRARIES)
        for name, value in vars(base).items()
        if not name.startswith("__")
        and name != "model_config"
        and (isinstance(value, CHANGEABLE) or _is_users(value, base))
    ]


def find_changed(component: Component, before: Mapping[str, str]) -> str:
    """Return the name of an attribute whose text is another than before; empty for none, or one computed since."""
    for name, text in list_attributes(component).items():
        if text != before.get(name, text if name in vars(component) else ""):
            return name
    return ""


def _is_users(value: Any, kind: type) -> bool:
    """Return True for an object, no class or function, whose class stands beside that of the component."""
    own = type(value).__module__.partition(".")[0] == kind.__module__.partition(".")[0]
    return own and not isinstance(value, type) and hasattr(value, "__dict__")


def _describe(value: Any, kind: type) -> str:
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return repr(value.state_dict())
    return read_generator(value) or (repr(vars(value)) if _is_users(value, kind) else repr(value))


@cache
def list_generators(kind: type) -> list[Any]:
    """Return the generators that stand in the modules and bodies of a user's classes."""
    kinds = [one for one in kind.__mro__ if not one.__module__.startswith(LIBRARIES)]
    held = [*(vars(sys.modules[one.__module__]) for one in kinds if one.__module__ in sys.modules), *map(vars, kinds)]
    return [value for names in held for value in [*names.values()] if read_generator(value)]
