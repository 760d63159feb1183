"""Attributes of an object of a user's class besides its options. Numbers would go on in them from client to client, and
a resume would lose them.
"""

import inspect
import re
import sys
import zlib
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.common.rng import GENERATORS, keep_draws, read_generator
from fedray.common.vectors import view_bytes
from fedray.components.base import Component

LIBRARIES = ("fedray.", "pydantic.", "builtins")
CONTAINERS = (Mapping, list, tuple, deque)


def list_attributes(component: Component) -> dict[str, str]:
    """Return attributes, the object's own and its classes', as texts that change with them."""
    kind = type(component)
    found = {
        name: value
        for base in reversed(kind.__mro__)
        if not base.__module__.startswith(LIBRARIES)
        for name, value in vars(base).items()
        if not name.startswith("__") and name != "model_config" and not isinstance(value, cached_property)
    }
    found |= {name: value for name, value in vars(component).items() if name not in kind.model_fields}
    found |= component.__pydantic_private__ or {}
    return {name: _describe(value, kind, {}) for name, value in found.items()}


def find_changed(component: Component, before: Mapping[str, str]) -> str:
    """Return the name of an attribute whose text is another than before; empty for none.

    What a cached property has computed since is computed again, in case it has changed afterwards.
    """
    kind = type(component)
    for name, text in list_attributes(component).items():
        made = inspect.getattr_static(kind, name, None)
        if name not in before and isinstance(made, cached_property):
            with keep_draws():
                again = _describe(made.func(component), kind, {})
            text, again = (re.sub(" at 0x[0-9a-f]+", "", one) for one in (text, again))
            if text != again:
                return name
        elif text != before.get(name):
            return name
    return ""


def _describe(value: Any, kind: type, seen: dict[int, Any]) -> str:
    """Return a text that changes with a value: of an array a checksum, since its repr leaves most numbers out."""
    own = type(value).__module__.partition(".")[0] == kind.__module__.partition(".")[0]
    if isinstance(value, GENERATORS):
        return read_generator(value)
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        value = value.state_dict()
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    elif own and hasattr(value, "__dict__") and not isinstance(value, (type, *CONTAINERS)):
        value = vars(value)
    plain = isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized)
    if plain and not (value.is_conj() or value.is_neg()):
        return f"{value.dtype} {value.shape} {value.device} {zlib.crc32(view_bytes(value).data)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)}"
    if not isinstance(value, CONTAINERS):
        return repr(value)
    if id(value) in seen:
        return "..."
    seen[id(value)] = value
    entries = value.items() if isinstance(value, Mapping) else enumerate(value)
    return f"{type(value).__name__}{[(name, _describe(entry, kind, seen)) for name, entry in entries]}"


def find_own_generators(kind: type) -> list[Any]:
    """Return the generators that stand in the modules and bodies of a user's classes."""
    kinds = [one for one in kind.__mro__ if not one.__module__.startswith(LIBRARIES)]
    modules = dict.fromkeys(one.__module__ for one in kinds)
    held = [*(vars(sys.modules[name]) for name in modules if name in sys.modules), *map(vars, kinds)]
    return [value for names in held for value in [*names.values()] if isinstance(value, GENERATORS)]
