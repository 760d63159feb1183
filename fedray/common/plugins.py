"""From a section of a configuration to its component: by name, by `package.module:Class`, or a class itself.

A class of your own is found the same way for algorithms, models, partitions, data sets and probes. Its module is looked
for like any other, and last of all in the working directory, which is not searched unless such a class is named.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from fedray.common.component import Component
from fedray.common.errors import UserError, truncated_repr, unknown

FOLDER = "FEDRAY_PLUGINS"
"""Environment variable: the folder that is searched last for classes of the user's own. Ray's workers inherit it."""

_searched: set[str] = set()

C = TypeVar("C", bound=Component)


def folder() -> str:
    """The folder that is searched last: in Ray's workers the driver's working directory."""
    return os.environ.get(FOLDER) or os.getcwd()


def environment() -> dict[str, str]:
    """What workers need to find the classes that this process found; empty where it looked for none."""
    return {FOLDER: folder()} if folder() in _searched else {}


def resolve(
    section: str,
    value: Any,
    registry: Mapping[str, type[C]],
    base: type[C] | None = None,
    adapt: Callable[[type, str], type[C]] | None = None,
) -> C:
    """The component that a section of a configuration chooses.

    Args:
        section: the section's name, for messages.
        value: a name of the registry, `package.module:Class`, a class, a mapping with one of these as `name` and the
            options beside it, or a component.
        registry: name -> class.
        base: what a class of the user's own must be; None: the section takes none.
        adapt: makes a component class of a class that is no `base`, and of its path (models: of an nn.Module).

    Raises:
        UserError: a name or an option is unknown (the nearest valid one is named), or the class cannot serve.
    """
    if isinstance(value, Component):
        own = base is not None and ":" not in value.name and type(value) not in registry.values()
        value = {"name": type(value), **{k: getattr(value, k) for k in type(value).model_fields}} if own else value
    if isinstance(value, Component):
        return value  # type: ignore[return-value]
    if isinstance(value, str | type):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str | type):
        raise UserError(
            f"{section}: expected a name or a mapping with `name`, got {truncated_repr(value)}; "
            f"valid names: {', '.join(sorted(registry))}"
        )
    name, options = value["name"], {k: v for k, v in value.items() if k != "name"}
    if isinstance(name, str) and name in registry:
        return registry[name].parse(section, options)
    if base is None or (isinstance(name, str) and ":" not in name):
        raise unknown(_key(section), str(name), registry)
    path = name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"
    found = load_class(section, path) if isinstance(name, str) else name
    kind: type[C] = _named(section, path, found, base, adapt)
    return kind.parse(section, options)


def _key(section: str) -> str:
    """Where the name stands: a list of names (probes) has no key for it."""
    return section if section == "evaluation.probes" else f"{section}.name"


@cache
def _named(
    section: str, path: str, found: type, base: type[C], adapt: Callable[[type, str], type[C]] | None
) -> type[C]:
    """The class under the name by which a configuration finds it again."""
    if not issubclass(found, base):
        if adapt is not None:
            return adapt(found, path)
        raise UserError(f"{_key(section)}: {path} is not a subclass of {base.__module__}.{base.__name__}")
    _refuse_slips(section, path, found, base)
    return type(found.__name__, (found,), {"name": path, "__module__": found.__module__, "__doc__": found.__doc__})


def _refuse_slips(section: str, path: str, found: type[Component], base: type[Component]) -> None:
    """Refuse a constructor, and a method whose name is nearly that of a hook: nothing would call them."""
    ours = next(kind for kind in found.__mro__ if kind.__module__.startswith("fedray.") or kind is base)
    hooks = [name for name in dir(ours) if callable(getattr(ours, name)) and not hasattr(Component, name)]
    for kind in found.__mro__[: found.__mro__.index(ours)]:
        if "__init__" in vars(kind):
            raise UserError(
                f"{_key(section)}: {path} defines __init__; declare its options as fields instead, "
                "for example `strength: float = 1.0`"
            )
        for name, member in vars(kind).items():
            near = get_close_matches(name, hooks, n=1, cutoff=0.8)
            if inspect.isfunction(member) and not name.startswith("_") and not hasattr(ours, name) and near:
                raise UserError(
                    f"{_key(section)}: {path} defines {name}, which nothing calls; did you mean {near[0]!r}? "
                    f"Rename it; if it is a helper of yours, call it _{name}"
                )


def load_class(section: str, path: str) -> type:
    """Import `package.module:Class`.

    Whatever the module holds is run: called for what the user launches, never for what a checkpoint or a store holds.

    Raises:
        UserError: it cannot be imported, or is not a class.
    """
    _searched.add(folder())
    if folder() not in sys.path:
        sys.path.append(folder())
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user's own can raise anything
        reason = f"{type(error).__name__}: " * (not isinstance(error, ImportError | AttributeError)) + str(error)
        raise UserError(f"{_key(section)}: {path!r} cannot be imported: {reason}") from None
    if not inspect.isclass(found):
        raise UserError(f"{_key(section)}: {path!r} is not a class")
    return found


def refuse_unreachable(component: Component) -> None:
    """Refuse a class that another process cannot import, before Ray starts. Raises UserError."""
    module, colon, name = component.name.partition(":")
    if colon and (module == "__main__" or "<locals>" in name):
        raise UserError(
            f"{_key(component.section)}: Ray's workers cannot import {component.name}; "
            "put the class in a .py file, or set runtime.backend: inline"
        )
